"""Puts stored examples on the devices, for the current cohort and the next ones.

A program reads the examples of one round, or of one call on the virtual clock, as `FederatedData`
where all other clients hold none, so programs do not know of the files. The arrays are padded with
zeros to a few sizes, so that few programs are compiled.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np

from fedjax_algos.base.limits import check_device_memory
from fedjax_algos.base.reprs import describe
from fedjax_algos.core.trees import take, tree_bytes
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.data.stored import StoredData
from fedjax_algos.engine.compilation import round_up_size

_READ_AHEAD = 2  # cohorts that are read in advance
PIECE = 128  # examples in a piece of a full gradient, unless it is a batch


class CohortData:
    """Examples of stored clients, put on the devices cohort by cohort."""

    def __init__(
        self,
        stored: StoredData,
        put: Callable[[FederatedData], Any],
        check: Callable[[FederatedData], None],
        least_rows: int,
        device_of_client: np.ndarray | None = None,
    ):
        self.stored, self.put, self.check = stored, put, check
        self.num_clients, self.shapes = stored.num_clients, stored.shapes
        self.counts, self.device_of_client = stored.counts, device_of_client
        self.least_rows, self.total = least_rows, int(stored.counts().sum(dtype=np.int64))
        self.most_rows = 0
        self._ahead: dict[bytes, Future] = {}
        self._reader = ThreadPoolExecutor(1)

    def devices_of(self, clients: np.ndarray) -> np.ndarray:
        """Returns the devices of clients, int32[...], as positions in the mesh."""
        assert self.device_of_client is not None
        return self.device_of_client[clients]

    def reserve(self, cohorts: Iterable[np.ndarray]) -> None:
        """Announces the cohorts to come; ValueError if one exceeds the memory."""
        for clients in cohorts:
            self.most_rows = max(self.most_rows, self._rows_of(self._sorted(clients)))
        one = jax.eval_shape(partial(take, index=0), self.shapes.examples)
        size = (1 + _READ_AHEAD) * self.most_rows * tree_bytes(one)
        fix = "give smaller cohorts, or fewer waves_per_call on the virtual clock"
        check_device_memory(f"the {self.most_rows} examples of a cohort", size, fix)

    def read_ahead(self, clients: np.ndarray) -> None:
        """Starts reading the examples of a cohort, int32[...], while the devices compute."""
        clients = self._sorted(clients)
        key = clients.tobytes()
        if key not in self._ahead and len(self._ahead) <= _READ_AHEAD:
            self._ahead[key] = self._reader.submit(self._read, clients)

    def cohort(self, clients: np.ndarray) -> Any:
        """Returns a cohort's examples, on the devices; ValueError for damaged files or labels."""
        clients = self._sorted(clients)
        if clients.tobytes() not in self._ahead:
            self._ahead.clear()  # other cohorts were expected
            self.read_ahead(clients)
        return self._ahead.pop(clients.tobytes()).result()

    def cohorts(self, clients: Iterable[np.ndarray]) -> Iterator[Any]:
        """Yields the examples of several cohorts, int32[...] each; the next ones are read ahead."""
        upcoming, rest = deque[np.ndarray](), iter(clients)
        while True:
            upcoming.extend(itertools.islice(rest, 1 + _READ_AHEAD - len(upcoming)))
            if not upcoming:
                return
            for cohort in upcoming:
                self.read_ahead(cohort)
            yield self.cohort(upcoming.popleft())

    def empty(self) -> FederatedData:
        """Returns one example of zeros without a client, for shapes that need no examples."""
        one = jax.tree.map(lambda s: np.zeros((min(len(s), 1), *s.shape[1:]), s.dtype), self.shapes)
        return one._replace(offsets=np.zeros(self.num_clients + 1, np.int32))

    def _sorted(self, clients):  # without the marks of empty slots
        clients = np.unique(clients)
        return clients[clients < self.num_clients].astype(np.int32)

    def _rows_of(self, clients):
        return round_up_size(max(1, int(self.counts()[clients].sum(dtype=np.int64))))

    def _read(self, clients):
        """Reads a cohort into arrays with the rows of the largest one, or 1/2, 1/4, ... of them."""
        rows = self._rows_of(clients)
        size = self.most_rows = max(self.most_rows, rows)
        while size // 2 >= rows:
            size //= 2
        # no more than all examples: the pieces of a full gradient are bounded by their number
        cohort = self.stored.cohort(clients, min(max(size, self.least_rows), self.total))
        self.check(cohort)
        return self.put(cohort)

    def __repr__(self) -> str:
        return describe(self, stored=self.stored, rows=self.most_rows)
