"""Readers of files that hold clients, or examples with a feature that names them."""

from fedjax_algos.data.readers.client_files import hf, leaf, sqlite, texts, tfds, tff_hdf5

__all__ = ["hf", "leaf", "sqlite", "texts", "tfds", "tff_hdf5"]
