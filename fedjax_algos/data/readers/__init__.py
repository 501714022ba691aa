"""Readers of data sets: each module adds a factory to the registry `datasets`."""

from fedjax_algos.data.readers import (
    digits,
    fed_isic2019,
    image_folder,
    leaf,
    npz,
    synthetic,
    text,
    tfds,
)

__all__ = ["digits", "fed_isic2019", "image_folder", "leaf", "npz", "synthetic", "text", "tfds"]
