"""Readers of data sets: each module adds a factory to the registry `datasets`."""

from fedjax_algos.data.readers import (
    digits,
    fedjax_sqlite,
    hf,
    leaf,
    npz,
    synthetic,
    text,
    tfds,
    tff_hdf5,
    tff_sqlite,
)

__all__ = [
    "digits",
    "fedjax_sqlite",
    "hf",
    "leaf",
    "npz",
    "synthetic",
    "text",
    "tfds",
    "tff_hdf5",
    "tff_sqlite",
]
