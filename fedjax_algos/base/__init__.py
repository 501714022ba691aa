"""Errors, files, memory limits and readable texts; nothing here depends on the simulator."""
