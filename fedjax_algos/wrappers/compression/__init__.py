"""Compression: messages take fewer bytes, in any algorithm."""
