"""Readers of data sets: each module adds a factory to the registry `datasets`."""

from fedjax_algos.data.readers import (
    cifar,
    digits,
    fed_isic2019,
    fed_ixi,
    fedjax_sqlite,
    hf,
    idx,
    image_folder,
    leaf,
    npz,
    synthetic,
    text,
    tfds,
    tff_hdf5,
    tff_sqlite,
)

__all__ = [
    "cifar",
    "digits",
    "fed_isic2019",
    "fed_ixi",
    "fedjax_sqlite",
    "hf",
    "idx",
    "image_folder",
    "leaf",
    "npz",
    "synthetic",
    "text",
    "tfds",
    "tff_hdf5",
    "tff_sqlite",
]
