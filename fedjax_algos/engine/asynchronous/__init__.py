"""Executes plans: waves of dispatches that train together, and updates in flight."""
