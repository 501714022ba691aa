"""Data sets and their readers, partitions over clients, and the flat store of examples."""

from fedjax_algos.data import partitioning as partitioning
from fedjax_algos.data import readers as readers
from fedjax_algos.data import stored as stored
from fedjax_algos.data.dataset import Dataset as Dataset
from fedjax_algos.data.dataset import divide as divide
from fedjax_algos.data.dataset import from_arrays as from_arrays
from fedjax_algos.data.description import describe_partition as describe_partition
from fedjax_algos.data.description import held_labels as held_labels
from fedjax_algos.data.description import partition_table as partition_table
from fedjax_algos.data.federated_data import AnyDataset as AnyDataset
from fedjax_algos.data.federated_data import ClientDataset as ClientDataset
from fedjax_algos.data.federated_data import ClientSource as ClientSource
from fedjax_algos.data.federated_data import FederatedData as FederatedData
from fedjax_algos.data.federated_data import datasets as datasets
from fedjax_algos.data.federated_data import federate as federate
from fedjax_algos.data.images import ImageFormat as ImageFormat
from fedjax_algos.data.partitioning import Partition as Partition
from fedjax_algos.data.partitioning import hold_out as hold_out
from fedjax_algos.data.partitioning import partitions as partitions
from fedjax_algos.data.partitioning import shifts as shifts
from fedjax_algos.data.stored import StoredData as StoredData
from fedjax_algos.data.stored import by_client as by_client
from fedjax_algos.data.stored import in_memory as in_memory
from fedjax_algos.data.stored import open_federated as open_federated
from fedjax_algos.data.stored import pack as pack
