"""Data: one flat store of examples, partitions of it, and readers."""

from fedjax_algos.data import read_leaf, read_npz, read_text, read_tfds, synthetic  # noqa: F401
from fedjax_algos.data.datasets import Dataset, datasets, from_arrays
from fedjax_algos.data.describe import describe_partition, partition_table, plot_partition
from fedjax_algos.data.partition import Partition, partitions
from fedjax_algos.data.store import FederatedData, federate

__all__ = [
    "Dataset",
    "FederatedData",
    "Partition",
    "datasets",
    "describe_partition",
    "federate",
    "from_arrays",
    "partition_table",
    "partitions",
    "plot_partition",
]
