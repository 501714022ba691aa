"""Data sets and their readers, partitions over clients, and the flat store of examples."""

from fedjax_algos.data import partitioning, readers, stored
from fedjax_algos.data.dataset import Dataset, divide, from_arrays
from fedjax_algos.data.description import describe_partition, held_labels, partition_table
from fedjax_algos.data.federated_data import (
    AnyDataset,
    ClientDataset,
    ClientSource,
    FederatedData,
    datasets,
    federate,
)
from fedjax_algos.data.images import ImageFormat
from fedjax_algos.data.partitioning import Partition, hold_out, partitions
from fedjax_algos.data.stored import StoredData, by_client, in_memory, open_federated, pack

__all__ = [
    "AnyDataset",
    "ClientDataset",
    "ClientSource",
    "Dataset",
    "FederatedData",
    "ImageFormat",
    "Partition",
    "StoredData",
    "by_client",
    "datasets",
    "describe_partition",
    "divide",
    "federate",
    "from_arrays",
    "held_labels",
    "hold_out",
    "in_memory",
    "open_federated",
    "pack",
    "partition_table",
    "partitioning",
    "partitions",
    "readers",
    "stored",
]
