"""Errors, files, size limits and readable texts, which know nothing about simulations."""
