"""Partitions: pure functions of labels and a seed that assign examples to clients."""

from fedjax_algos.data.partitioning.base import Partition, hold_out, partitions
from fedjax_algos.data.partitioning.by_labels import (
    class_partition,
    classes_per_client,
    dirichlet,
    dirichlet_balanced,
    dirichlet_classes,
    dual_dirichlet,
)
from fedjax_algos.data.partitioning.simple import iid, natural, pachinko, quantity

__all__ = [
    "Partition",
    "class_partition",
    "classes_per_client",
    "dirichlet",
    "dirichlet_balanced",
    "dirichlet_classes",
    "dual_dirichlet",
    "hold_out",
    "iid",
    "natural",
    "pachinko",
    "partitions",
    "quantity",
]
