"""Selects clients from a round's candidates, by reported or recorded values."""
