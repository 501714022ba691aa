"""Puts stored examples on the devices, for the current cohort and the next ones.

A program reads the examples of one round, or of one call on the virtual clock, as `FederatedData`
in which all other clients hold none. So no program knows of the files. The arrays are padded with
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
            self.most_rows = max(self.most_rows, self._rows_of(self._held(clients)))
        one = jax.eval_shape(partial(take, index=0), self.shapes.examples)
        size = (1 + _READ_AHEAD) * self.most_rows * tree_bytes(one)
        fix = "give smaller cohorts, or fewer waves_per_call on the virtual clock"
        check_device_memory(f"the {self.most_rows} examples of a cohort", size, fix)

    def read_ahead(self, clients: np.ndarray) -> None:
        """Starts reading the examples of a cohort, int32[...], while the devices compute."""
        wanted = self._held(clients)
        key = wanted.tobytes()
        if key not in self._ahead and len(self._ahead) <= _READ_AHEAD:
            self._ahead[key] = self._reader.submit(self._read, wanted)

    def cohort(self, clients: np.ndarray) -> Any:
        """Returns a cohort's examples, on the devices; ValueError for damaged files or labels."""
        wanted = self._held(clients)
        if wanted.tobytes() not in self._ahead:
            self._ahead.clear()  # other cohorts were expected
            self.read_ahead(wanted)
        return self._ahead.pop(wanted.tobytes()).result()

    def cohorts(self, clients: Iterable[np.ndarray]) -> Iterator[Any]:
        """Yields the examples of several cohorts, int32[...] each; the next ones are read ahead."""
        coming: deque[np.ndarray] = deque()
        rest = iter(clients)
        while True:
            coming.extend(itertools.islice(rest, 1 + _READ_AHEAD - len(coming)))
            if not coming:
                return
            for soon in coming:
                self.read_ahead(soon)
            yield self.cohort(coming.popleft())

    def empty(self) -> FederatedData:
        """Returns one example of zeros without a client, for shapes that need no examples."""
        return jax.tree.map(
            lambda leaf: np.zeros((min(len(leaf), 1), *leaf.shape[1:]), leaf.dtype), self.shapes
        )._replace(offsets=np.zeros(self.num_clients + 1, np.int32))

    def _held(self, clients):  # without the marks of empty slots
        wanted = np.unique(clients)
        return wanted[wanted < self.num_clients].astype(np.int32)

    def _rows_of(self, wanted):
        return round_up_size(max(1, int(self.counts()[wanted].sum(dtype=np.int64))))

    def _read(self, wanted):
        """Reads a cohort into arrays with the rows of the largest one, or 1/2, 1/4, ... of them."""
        rows = self._rows_of(wanted)
        self.most_rows = max(self.most_rows, rows)
        size = self.most_rows
        while size // 2 >= rows:
            size //= 2
        # no more than all examples: the pieces of a full gradient are bounded by their number
        cohort = self.stored.cohort(wanted, min(max(size, self.least_rows), self.total))
        self.check(cohort)
        return self.put(cohort)

    def __repr__(self) -> str:
        return describe(self, stored=self.stored, rows=self.most_rows)
