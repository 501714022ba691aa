"""The named features of each client, as files hold them."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.core.files import PathLike, reading, require
from fedjax_algos.core.reprs import printable


class ClientFeatures(NamedTuple):
    """The named features of each client in a file, of which one client's are read at a time.

    Attributes:
      name: the name of the file in messages.
      client_ids: the clients' names.
      counts: int64[num_clients]: examples of each client.
      features: their names.
      read: `(client, features, limit) -> {feature: values}`: of the first `limit` examples, or of
        all if it is None, an array [n, ...] of numbers, or a list of n texts or files of images
        as bytes.
      identity: a text that changes if the file does.
    """

    name: str
    client_ids: Sequence[str]
    counts: np.ndarray
    features: Sequence[str]
    read: Callable[[int, Sequence[str], int | None], Mapping[str, Any]]
    identity: str

    def client(self, client: int) -> str:
        """The name of a client for messages."""
        return printable(f"{self.name}: client {self.client_ids[client]!r}")

    def require(self, name: str) -> None:
        """Raises ValueError, which lists the features, if the clients do not have one."""
        known = ", ".join(self.features)[:200]
        with reading(self.name, "a data set of this form", "choose one"):
            require(name in self.features, f"it has no feature {name!r}, only {known}")

    def non_empty(self) -> "ClientFeatures":
        """Those of the clients that have examples; ValueError if there are none."""
        kept = np.flatnonzero(self.counts)
        if len(kept) == len(self.counts):
            return self
        with reading(self.name, "a data set of clients", "fetch it again"):
            require(len(kept), "none of the clients has an example")
        return self._replace(
            client_ids=[self.client_ids[client] for client in kept.tolist()],
            counts=self.counts[kept],
            read=lambda client, *arguments: self.read(int(kept[client]), *arguments),
        )

    def drawn(self, number: int) -> "ClientFeatures":
        """That number of the examples, drawn with a fixed seed; all if there are fewer."""
        if number >= self.counts.sum():
            return self
        generator = np.random.default_rng(0)
        rows = np.sort(generator.choice(int(self.counts.sum()), number, replace=False))
        ends = np.cumsum(self.counts)
        owners = np.searchsorted(ends, rows, side="right")
        places = rows - (ends - self.counts)[owners]
        kept, counts = np.unique(owners, return_counts=True)
        parts = np.split(places, np.cumsum(counts)[:-1])  # of each client that is kept

        def read(client: int, names: Sequence[str], limit: int | None) -> Mapping[str, Any]:
            chosen = parts[client][:limit]
            stored = self.read(int(kept[client]), names, int(chosen[-1]) + 1)
            return {
                name: [values[i] for i in chosen] if isinstance(values, list) else values[chosen]
                for name, values in stored.items()
            }

        return self._replace(
            client_ids=[self.client_ids[client] for client in kept.tolist()],
            counts=counts,
            read=read,
            identity=f"{self.identity}; {number} examples",
        )


def file_identity(path: PathLike) -> str:
    """A text that changes if a file does, which may be too large to be read twice."""
    with reading(path, "a file", "fetch the file again"):
        status = os.stat(path)
    return f"{status.st_size} bytes, written {status.st_mtime_ns}"
