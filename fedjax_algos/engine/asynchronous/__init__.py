"""Execution of plans: which dispatches train together, and the state of updates in flight."""
