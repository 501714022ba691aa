"""Populations in files: reads them client by client, packs them, and cuts them into cohorts."""

from fedjax_algos.data.stored.packing import pack as pack
from fedjax_algos.data.stored.packing import packed as packed
from fedjax_algos.data.stored.stored_data import StoredData as StoredData
from fedjax_algos.data.stored.stored_data import by_client as by_client
from fedjax_algos.data.stored.stored_data import in_memory as in_memory
from fedjax_algos.data.stored.stored_data import open_federated as open_federated
