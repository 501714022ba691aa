"""Data of clients from a packed folder, and packed folders from data that are in memory."""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from fedjax_algos.core import Batch
from fedjax_algos.core.checks import check_kind
from fedjax_algos.core.files import PathLike
from fedjax_algos.core.options import check_choice
from fedjax_algos.data.dataset import Dataset
from fedjax_algos.data.federated_data import ClientDataset, ClientSource
from fedjax_algos.data.partitioning.base import Partition
from fedjax_algos.data.partitioning.simple import choose_clients
from fedjax_algos.data.stored.packed import packed
from fedjax_algos.data.stored.stored_data import CACHE_BYTES, StoredData


def open_federated(
    folder: PathLike,
    split: Literal["train", "test"] = "train",
    *,
    num_clients: int | None = None,
    min_examples: int = 1,
    seed: int = 0,
    cache_bytes: int = CACHE_BYTES,
) -> StoredData:
    """The clients of a packed folder, whose examples are read when they are needed.

    Args:
      folder: a folder that `fedjax-algos pack` or `data.pack` has written.
      split: "train" or "test".
      num_clients: if there are more, so many are drawn without replacement, in their order.
      min_examples: clients with fewer are left out.
      seed: the seed of the draw.
      cache_bytes: the bytes of examples that are kept in memory, see `StoredData`.

    Raises:
      ValueError: for a folder that is missing, incomplete or damaged, and more clients than there
        are.
    """
    check_choice("split", split, ("train", "test"))
    source = getattr(packed(path=folder), split)
    clients = choose_clients(source.counts, num_clients, seed, min_examples)
    return StoredData(source, clients, cache_bytes=cache_bytes)


def by_client(
    dataset: Dataset, partition: Partition, client_ids: Sequence[str] | None = None
) -> ClientDataset:
    """A data set in memory as one that is read client by client, for `pack`.

    Args:
      dataset: labelled examples.
      partition: which training examples each client holds.
      client_ids: the clients' names; None for their numbers.

    Returns:
      The test examples are those of one client, named "test".

    Raises:
      TypeError: for objects of other types.
      ValueError: for another number of names than clients.
    """
    check_kind("dataset", dataset, Dataset, "give what a reader of data sets returned")
    check_kind("partition", partition, Partition, "give Partition.of(rows of each client)")
    names = [str(i) for i in range(partition.num_clients)] if client_ids is None else client_ids
    if len(names) != partition.num_clients:
        raise ValueError(
            f"there are {len(names)} client_ids and {partition.num_clients} clients; give one each"
        )
    whole = Partition.of([np.arange(len(dataset.test["y"]))])
    return ClientDataset(
        source_of(dataset.train, partition, names),
        source_of(dataset.test, whole, ["test"]),
        dataset.num_classes,
        dataset.notes,
    )


def source_of(examples: Batch, partition: Partition, client_ids: Sequence[str]) -> ClientSource:
    """A source of examples that are in memory.

    Args:
      examples: {name: [total, ...]}.
      partition: which rows each client holds.
      client_ids: the clients' names.
    """
    arrays = {name: np.asarray(array) for name, array in examples.items()}
    indices, offsets = (np.asarray(part) for part in partition)

    def read(client):
        rows = indices[offsets[client] : offsets[client + 1]]
        return {name: array[rows] for name, array in arrays.items()}

    example = {
        name: jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for name, array in arrays.items()
    }
    digest = hashlib.sha256(partition.digest().encode())
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    counts, identity = np.diff(offsets), digest.hexdigest()
    return ClientSource("examples in memory", client_ids, counts, example, read, identity=identity)


def in_memory(dataset: ClientDataset, max_test_examples: int | None = None) -> Dataset:
    """Reads all examples of a data set that is read client by client.

    Its natural clients are those of the data set that hold an example.

    Args:
      dataset: the data set of the clients.
      max_test_examples: if there are more, so many are drawn with seed 0, in their order.

    Raises:
      ValueError: for files that are missing or damaged, and examples that do not fit into memory.
    """
    held = np.flatnonzero(dataset.train.counts)
    train = StoredData(dataset.train, held, cache_bytes=0)
    users = np.repeat(np.arange(len(held), dtype=np.int32), train.counts())
    rest: Any = dataset.num_classes, users, dataset.notes  # no classes stay none
    return Dataset(train.load(), load_test(dataset, max_test_examples), *rest)


def load_test(dataset: ClientDataset, max_examples: int | None = None) -> Batch:
    """Reads the test examples of a data set, or some of them.

    Args:
      dataset: the data set of the clients.
      max_examples: if there are more, so many are drawn with seed 0, in their order.
    """
    held = np.flatnonzero(dataset.test.counts)
    return StoredData(dataset.test, held, cache_bytes=0).load(max_examples)
