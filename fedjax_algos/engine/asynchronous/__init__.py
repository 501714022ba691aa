"""Execution of plans: waves of dispatches that train together, and the updates in flight."""
