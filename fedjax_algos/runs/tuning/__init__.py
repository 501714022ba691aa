"""Tuning: the same budget for all methods, on examples that no test set holds."""
