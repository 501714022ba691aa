"""Readers of data sets: each module adds its factories to the registry `datasets`."""

from fedjax_algos.data.readers import (
    cifar,
    client_files,
    csv_table,
    flamby,
    idx,
    image_folder,
    made,
    npz,
)

__all__ = ["cifar", "client_files", "csv_table", "flamby", "idx", "image_folder", "made", "npz"]
