"""Readers of data sets: each adds a factory to the registry `datasets` when it is imported."""

from fedjax_algos.data.readers import leaf, npz, synthetic, text, tfds

__all__ = ["leaf", "npz", "synthetic", "text", "tfds"]
