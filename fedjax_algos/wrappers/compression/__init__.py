"""Compression: what clients send takes fewer bytes, in any algorithm."""
