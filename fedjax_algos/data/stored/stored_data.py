"""Clients' examples that stay in files; a run holds the examples of its next cohorts only."""

import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import jax
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike
from fedjax_algos.base.limits import check_memory, host_memory, readable_bytes
from fedjax_algos.base.reprs import describe, describe_tree
from fedjax_algos.core import Batch
from fedjax_algos.core.checks import check_kind, check_seed, check_whole
from fedjax_algos.core.options import check_choice
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.data.dataset import Dataset
from fedjax_algos.data.federated_data import ClientDataset, ClientSource, FederatedData
from fedjax_algos.data.partitioning.base import Partition, describe_counts
from fedjax_algos.data.partitioning.simple import choose_clients
from fedjax_algos.data.stored.packing import packed

CACHE_BYTES = 2**28  # the default of `cache_bytes`


class StoredData:
    """The examples of all clients in files; only some clients' examples are in memory at a time.

    A run takes it in place of the result of `federate`, and has the same results, bit for bit.
    While the devices compute a round, threads read and decode the examples of the next cohorts and
    put them on the devices. The examples of clients read last stay cached, up to `cache_bytes`.

    Args:
      source: the source of the examples.
      clients: int[num_clients]: the source's clients that take part; client i of a run is the
        source's client `clients[i]`. None for all in the order of the source.
      cache_bytes: the bytes of decoded examples to keep in memory.
      threads: the number of threads that read and decode at the same time.

    Raises:
      TypeError: for a source of another type.
      ValueError: for clients not in the source or without examples, and numbers out of range.
    """

    def __init__(
        self,
        source: ClientSource,
        clients: Sequence[int] | np.ndarray | None = None,
        *,
        cache_bytes: int = CACHE_BYTES,
        threads: int = 8,
    ):
        fix = "give the result of open_federated or of a reader of client data sets"
        check_kind("source", source, ClientSource, fix)
        source.check()
        check_whole("cache_bytes", cache_bytes, 0, host_memory())
        check_whole("threads", threads)
        self.source, self.cache_bytes, self.threads = source, cache_bytes, threads
        numbers = np.arange(source.num_clients) if clients is None else np.asarray(clients)
        plain = numbers.ndim == 1 and numbers.size > 0 and numbers.dtype.kind in "iu"
        known = plain and 0 <= numbers.min() <= numbers.max() < source.num_clients
        found = f"clients={np.array2string(numbers, threshold=9)} are {describe_tree(numbers)}"
        fix = f"give different whole numbers of clients, 0 to {source.num_clients - 1}"
        require(known and len(np.unique(numbers)) == len(numbers), f"{found}; {fix}")
        self.clients, self._sizes = numbers, np.asarray(source.counts)[numbers].astype(np.int32)
        least = source.client_ids[int(numbers[self._sizes.argmin()])]
        found = f"{source.name}: client {least!r} holds no example"
        require(self._sizes.min() >= 1, f"{found}; leave it out with clients=")
        self._starts = np.concatenate([[0], np.cumsum(self._sizes, dtype=np.int64)])
        self._cache: OrderedDict[int, Batch] = OrderedDict()
        self._cached_bytes, self._lock = 0, threading.Lock()

    @property
    def num_clients(self) -> int:
        """Returns N, the number of clients."""
        return len(self.clients)

    @property
    def client_ids(self) -> list[str]:
        """Returns the names of the clients."""
        return [self.source.client_ids[number] for number in self.clients.tolist()]

    def counts(self) -> np.ndarray:
        """Returns n_i, int32[num_clients]."""
        return self._sizes

    @functools.cached_property
    def shapes(self) -> FederatedData:
        """Returns the shapes and dtypes of `federate`'s result for the same examples."""
        total = int(self._starts[-1])

        def shape(*sizes, dtype=np.int32):
            return jax.ShapeDtypeStruct(sizes, jax.dtypes.canonicalize_dtype(dtype))

        stored = self.source.example.items()
        examples = {name: shape(total, *one.shape, dtype=one.dtype) for name, one in stored}
        return FederatedData(examples, shape(total), shape(self.num_clients + 1))

    def cohort(self, clients: np.ndarray, rows: int | None = None) -> FederatedData:
        """Reads the examples of some clients; in the result, the others hold no examples.

        Args:
          clients: int[...]: client ids; an id of `num_clients` or more marks an empty slot.
          rows: the length of the arrays, padded with zeros; None for the number of examples.

        Returns:
          NumPy arrays, on the host. Client ids stay the same.

        Raises:
          ValueError: for negative ids, missing or damaged files, fewer `rows` than there are
            examples, or examples that do not fit into memory.
        """
        wanted = np.unique(clients)
        require(not (wanted < 0).any(), f"clients={wanted[:1]} are out of range; give their ids")
        wanted = wanted[wanted < self.num_clients]
        sizes = np.zeros(self.num_clients, np.int64)
        sizes[wanted] = self._sizes[wanted]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        total = int(offsets[-1])
        rows = total if rows is None else rows
        require(rows >= total, f"rows={rows} do not hold the {total} examples of the clients")
        places: Any = np.arange(rows, dtype=np.int32), offsets.astype(np.int32)
        return FederatedData(self._gather(offsets, rows), *places)

    def load(self, max_examples: int | None = None, seed: int = 0) -> Batch:
        """Reads the examples of all clients, or some of them, as one tree of arrays.

        Args:
          max_examples: if there are more, draws this many without replacement, in order.
          seed: the seed of the draw.

        Returns:
          {name: [examples, ...]}, NumPy arrays in the order of the clients.

        Raises:
          ValueError: for missing or damaged files, and examples that do not fit into memory.
        """
        total = int(self._starts[-1])
        check_seed(seed)
        check_whole("max_examples", 1 if max_examples is None else max_examples)
        if max_examples is None or max_examples >= total:
            return self._gather(self._starts, total)
        chosen = np.sort(np.random.default_rng(seed).choice(total, max_examples, replace=False))
        return self._gather(np.searchsorted(chosen, self._starts), max_examples, chosen)

    def _gather(self, offsets: np.ndarray, rows: int, chosen: np.ndarray | None = None) -> Batch:
        """Returns arrays [rows, ...] with client i's part of `chosen`, or all, at offsets[i]."""
        example = self.source.example
        what = f"the {rows} examples of {np.count_nonzero(np.diff(offsets))} clients"
        check_memory(what, rows * tree_bytes(dict(example)), "give fewer or smaller ones")
        arrays = {name: np.zeros((rows, *one.shape), one.dtype) for name, one in example.items()}

        def fill(client):
            part = slice(offsets[client], offsets[client + 1])
            own = slice(None) if chosen is None else chosen[part] - self._starts[client]
            read = self._read(client)
            for name, array in arrays.items():
                array[part] = read[name][own]

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(fill, np.flatnonzero(np.diff(offsets)).tolist()))  # raises their errors
        return arrays

    def _read(self, client: int) -> Batch:
        """Returns a client's examples, from the cache or from its files."""
        with self._lock:
            if client in self._cache:
                self._cache.move_to_end(client)
                return self._cache[client]
        examples = self.source.examples_of(int(self.clients[client]))
        size = tree_bytes(examples)
        with self._lock:
            if size <= self.cache_bytes and client not in self._cache:
                self._cache[client] = examples
                self._cached_bytes += size
            while self._cached_bytes > self.cache_bytes:
                self._cached_bytes -= tree_bytes(self._cache.popitem(last=False)[1])  # the oldest
        return examples

    def __repr__(self) -> str:
        source, counts = self.source, describe_counts(self._sizes)
        facts = {"name": source.name, "clients": self.num_clients, "examples": self._starts[-1]}
        facts |= {"per_client": counts, "each": f"({describe_tree(dict(source.example))})"}
        return describe(self, **facts, cache=readable_bytes(self.cache_bytes))


def open_federated(
    folder: PathLike,
    split: Literal["train", "test"] = "train",
    *,
    num_clients: int | None = None,
    min_examples: int = 1,
    seed: int = 0,
    cache_bytes: int = CACHE_BYTES,
) -> StoredData:
    """Opens the clients of a packed folder; examples are read when they are needed.

    Args:
      folder: a folder that `fedjax-algos pack` or `data.pack` has written.
      split: "train" or "test".
      num_clients: if there are more, draws this many without replacement and keeps their order.
      min_examples: leaves out clients with fewer examples.
      seed: the seed of the draw.
      cache_bytes: the bytes of examples to keep in memory, see `StoredData`.

    Raises:
      ValueError: for a folder that is missing, incomplete or damaged, or lacks clients.
    """
    check_choice("split", split, ("train", "test"))
    source = getattr(packed(path=folder), split)
    clients = choose_clients(source.counts, num_clients, seed, min_examples)
    return StoredData(source, clients, cache_bytes=cache_bytes)


def by_client(
    dataset: Dataset, partition: Partition, client_ids: Sequence[str] | None = None
) -> ClientDataset:
    """Converts a data set in memory to one that is read client by client, for `pack`.

    Args:
      dataset: labelled examples.
      partition: the training examples of each client.
      client_ids: the clients' names; None for their numbers.

    Returns:
      The data set; one client, named "test", holds the test examples.

    Raises:
      TypeError: for objects of other types.
      ValueError: for another number of names than clients.
    """
    check_kind("dataset", dataset, Dataset, "give the result of a reader of data sets")
    check_kind("partition", partition, Partition, "give Partition.of(rows of each client)")
    names = [str(i) for i in range(partition.num_clients)] if client_ids is None else client_ids
    train = source_of(dataset.train, partition, names)
    train.check()
    test = source_of(dataset.test, Partition.of([np.arange(len(dataset.test["y"]))]), ["test"])
    return ClientDataset(train, test, dataset.num_classes, dataset.notes)


def source_of(examples: Batch, partition: Partition, client_ids: Sequence[str]) -> ClientSource:
    """Makes a source of examples in memory: {name: [total, ...]}, and names of the clients."""
    arrays = {name: np.asarray(array) for name, array in examples.items()}
    indices, offsets = (np.asarray(part) for part in partition)

    def read(client):
        rows = indices[offsets[client] : offsets[client + 1]]
        return {name: array[rows] for name, array in arrays.items()}

    example = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in arrays.items()}
    digest = hashlib.sha256(partition.digest().encode())
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    counts, identity = np.diff(offsets), digest.hexdigest()
    return ClientSource("examples in memory", client_ids, counts, example, read, identity=identity)


def in_memory(dataset: ClientDataset, max_test_examples: int | None = None) -> Dataset:
    """Reads all examples of a data set that is read client by client.

    Its natural clients are the data set's clients that hold an example.

    Args:
      dataset: the data set of the clients.
      max_test_examples: if there are more, draws this many with seed 0 and keeps their order.

    Raises:
      ValueError: for files that are missing or damaged, and examples that do not fit into memory.
    """
    held = np.flatnonzero(dataset.train.counts)
    train = StoredData(dataset.train, held, cache_bytes=0)
    users = np.repeat(np.arange(len(held), dtype=np.int32), train.counts())
    rest: Any = dataset.num_classes, users, dataset.notes  # None stays None
    return Dataset(train.load(), load_test(dataset, max_test_examples), *rest)


def load_test(dataset: ClientDataset, max_examples: int | None = None) -> Batch:
    """Returns the test examples; if more than `max_examples`, draws this many with seed 0."""
    held = np.flatnonzero(dataset.test.counts)
    return StoredData(dataset.test, held, cache_bytes=0).load(max_examples)
