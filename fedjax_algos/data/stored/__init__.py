"""Populations in files: read client by client, packed into one folder, and cut into cohorts."""

from fedjax_algos.data.stored.opening import (
    by_client,
    in_memory,
    load_test,
    open_federated,
    source_of,
)
from fedjax_algos.data.stored.packed import packed
from fedjax_algos.data.stored.packing import pack
from fedjax_algos.data.stored.stored_data import StoredData

__all__ = [
    "StoredData",
    "by_client",
    "in_memory",
    "load_test",
    "open_federated",
    "pack",
    "packed",
    "source_of",
]
