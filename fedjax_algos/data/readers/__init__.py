"""Readers of data sets: each module adds a factory to the registry `datasets`."""

from fedjax_algos.data.readers import (
    cifar,
    digits,
    fed_isic2019,
    fed_ixi,
    idx,
    image_folder,
    leaf,
    npz,
    synthetic,
    text,
    tfds,
)

__all__ = [
    "cifar",
    "digits",
    "fed_isic2019",
    "fed_ixi",
    "idx",
    "image_folder",
    "leaf",
    "npz",
    "synthetic",
    "text",
    "tfds",
]
