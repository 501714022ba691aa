"""Layers that are fast when each client has its own weights, and initial params of layers."""
