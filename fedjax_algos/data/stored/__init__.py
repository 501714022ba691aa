"""Populations in files: read client by client, packed into one folder, and cut into cohorts."""

from fedjax_algos.data.stored.packing import pack, packed
from fedjax_algos.data.stored.stored_data import StoredData, by_client, in_memory, open_federated

__all__ = ["StoredData", "by_client", "in_memory", "open_federated", "pack", "packed"]
