"""Clients' examples that stay in files: a run holds only those of its present and next cohorts."""

import functools
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from fedjax_algos.core import Batch
from fedjax_algos.core.checks import check_kind, check_seed, check_whole
from fedjax_algos.core.limits import check_memory, host_memory, readable_bytes
from fedjax_algos.core.reprs import describe, describe_tree
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.data.federated_data import ClientSource, FederatedData
from fedjax_algos.data.partitioning.base import describe_counts

CACHE_BYTES = 2**28  # the default of `cache_bytes`
_THREADS = 8


class StoredData:
    """The examples of all clients in files, of which some clients' are in memory at a time.

    A run takes it in place of what `federate` returns, and has the same results, bit for bit. While
    the devices compute a round, the examples of the next cohorts are read and decoded by threads,
    and put on the devices. The examples of the clients that were read last are kept, up to
    `cache_bytes`.

    Args:
      source: where the examples are read from.
      clients: int[num_clients]: which clients of the source take part: client i of a run is the
        source's client `clients[i]`. None for all in the order of the source.
      cache_bytes: the bytes of decoded examples that are kept in memory.
      threads: that read and decode at the same time.

    Raises:
      TypeError: for a source of another type.
      ValueError: for clients that the source does not have or that hold no example, and numbers out
        of range.
    """

    def __init__(
        self,
        source: ClientSource,
        clients: Sequence[int] | np.ndarray | None = None,
        *,
        cache_bytes: int = CACHE_BYTES,
        threads: int = _THREADS,
    ):
        fix = "give what open_federated or a reader of a client data set returned"
        check_kind("source", source, ClientSource, fix)
        check_whole("cache_bytes", cache_bytes, 0, host_memory())
        check_whole("threads", threads)
        self.source, self.cache_bytes, self.threads = source, cache_bytes, threads
        self.clients = np.arange(source.num_clients) if clients is None else np.asarray(clients)
        self._sizes = _checked_sizes(source, self.clients)
        self._cache: OrderedDict[int, Batch] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()

    @property
    def num_clients(self) -> int:
        """N, the number of clients."""
        return len(self.clients)

    @property
    def client_ids(self) -> list[str]:
        """The names of the clients."""
        return [self.source.client_ids[number] for number in self.clients.tolist()]

    def counts(self) -> np.ndarray:
        """int32[num_clients]: n_i."""
        return self._sizes

    @functools.cached_property
    def shapes(self) -> FederatedData:
        """Shapes and dtypes of what `federate` would return for the same examples."""
        total = int(self._sizes.sum(dtype=np.int64))

        def shape(*sizes, dtype=np.int32):
            return jax.ShapeDtypeStruct(sizes, jax.dtypes.canonicalize_dtype(dtype))

        examples = {
            name: shape(total, *one.shape, dtype=one.dtype)
            for name, one in self.source.example.items()
        }
        return FederatedData(examples, shape(total), shape(self.num_clients + 1))

    def cohort(self, clients: np.ndarray, rows: int | None = None) -> FederatedData:
        """Reads the examples of some clients; the others hold none in the result.

        Args:
          clients: int[...]: client ids; one of `num_clients` or more marks an empty slot.
          rows: the length of the arrays, which end with zeros; None for the number of examples.

        Returns:
          NumPy arrays, on the host. Client ids are those of all clients.

        Raises:
          ValueError: for files that are missing or damaged, fewer `rows` than there are examples,
            or examples that do not fit into memory.
        """
        wanted = np.unique(clients)
        wanted = wanted[wanted < self.num_clients]
        sizes = np.zeros(self.num_clients, np.int64)
        sizes[wanted] = self._sizes[wanted]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        total = int(offsets[-1])
        rows = total if rows is None else rows
        if rows < total:
            raise ValueError(f"rows={rows} do not hold the {total} examples of the clients")
        arrays = self._empty(f"the {total} examples of {len(wanted)} clients", rows)

        def fill(client):
            own = self._read(int(client))
            for name, array in arrays.items():
                array[offsets[client] : offsets[client + 1]] = own[name]

        self._in_threads(fill, wanted)
        indices: Any = np.arange(rows, dtype=np.int32)
        starts: Any = offsets.astype(np.int32)
        return FederatedData(arrays, indices, starts)

    def load(self, max_examples: int | None = None, seed: int = 0) -> Batch:
        """Reads the examples of all clients, or some of them, as one tree of arrays.

        Args:
          max_examples: if there are more, so many are drawn without replacement, in their order.
          seed: the seed of the draw.

        Returns:
          {name: [examples, ...]}, NumPy arrays in the order of the clients.

        Raises:
          ValueError: for files that are missing or damaged, and examples that do not fit into
            memory.
        """
        ends = np.cumsum(self._sizes, dtype=np.int64)
        total = int(ends[-1])
        check_seed(seed)
        check_whole("max_examples", max_examples or 1)
        if max_examples is None or max_examples >= total:
            chosen = np.arange(total)
        else:
            chosen = np.sort(np.random.default_rng(seed).choice(total, max_examples, replace=False))
        arrays = self._empty(f"the {len(chosen)} examples", len(chosen))
        bounds = np.searchsorted(chosen, np.concatenate([[0], ends]))

        def fill(client):
            first, last = bounds[client], bounds[client + 1]
            own = self._read(int(client))
            rows = chosen[first:last] - (ends[client] - self._sizes[client])
            for name, array in arrays.items():
                array[first:last] = own[name][rows]

        self._in_threads(fill, np.flatnonzero(np.diff(bounds)))
        return arrays

    def _empty(self, what, rows):
        """Arrays of zeros for so many examples."""
        example = self.source.example
        check_memory(what, rows * tree_bytes(dict(example)), "give fewer or smaller ones")
        return {name: np.zeros((rows, *one.shape), one.dtype) for name, one in example.items()}

    def _in_threads(self, function, clients: Iterable[int]) -> None:
        with ThreadPoolExecutor(self.threads) as pool:
            for _ in pool.map(function, clients):
                pass

    def _read(self, client: int) -> Batch:
        """The examples of a client, from the cache or from its files."""
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
                _, oldest = self._cache.popitem(last=False)
                self._cached_bytes -= tree_bytes(oldest)
        return examples

    def __repr__(self) -> str:
        return describe(
            self,
            name=self.source.name,
            clients=self.num_clients,
            examples=int(self._sizes.sum(dtype=np.int64)),
            per_client=describe_counts(self._sizes),
            each=f"({describe_tree(dict(self.source.example))})",
            cache=readable_bytes(self.cache_bytes),
        )


def _checked_sizes(source: ClientSource, clients: np.ndarray) -> np.ndarray:
    """int32[num_clients]: n_i of the chosen clients."""
    if clients.ndim != 1 or not clients.size or clients.dtype.kind not in "iu":
        raise ValueError(
            f"clients are {describe_tree(clients)}; give a list of at least one whole number"
        )
    if clients.min() < 0 or clients.max() >= source.num_clients:
        raise ValueError(
            f"clients has {clients.min()} to {clients.max()}; {source.name} has clients 0 to "
            f"{source.num_clients - 1}"
        )
    if len(np.unique(clients)) < len(clients):
        raise ValueError("clients names a client twice; give each once")
    sizes = np.asarray(source.counts)[clients].astype(np.int32)
    if sizes.min() < 1:
        empty = int(clients[sizes.argmin()])
        raise ValueError(
            f"{source.name}: client {source.client_ids[empty]!r} holds no example; leave it out "
            "with clients="
        )
    return sizes
