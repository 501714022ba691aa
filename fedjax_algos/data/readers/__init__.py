"""Readers of data sets: each module adds a factory to the registry `datasets`."""

from fedjax_algos.data.readers import digits, leaf, npz, synthetic, text, tfds

__all__ = ["digits", "leaf", "npz", "synthetic", "text", "tfds"]
