"""Differential privacy: noise on what the server learns, and what it costs in epsilon."""
