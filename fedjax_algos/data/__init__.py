"""Data: one flat store of examples, partitions of it, and readers."""

from fedjax_algos.data import readers
from fedjax_algos.data.dataset import Dataset, datasets, from_arrays
from fedjax_algos.data.description import describe_partition, partition_table, plot_partition
from fedjax_algos.data.federated_data import FederatedData, federate
from fedjax_algos.data.partitioning import Partition, partitions

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
    "readers",
]
