"""Partitions: pure, seeded functions from labels to the examples of each client."""

import hashlib
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_algos.registry import Positive, Range, Registry

partitions = Registry("partition")


class Partition(NamedTuple):
    """Which examples each client holds, in compressed rows: client i has
    `indices[offsets[i]:offsets[i + 1]]`."""

    indices: np.ndarray  # int32[assigned]
    offsets: np.ndarray  # int32[num_clients + 1]

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    def counts(self) -> np.ndarray:
        """int32[num_clients]: n_i."""
        return np.diff(self.offsets)

    def digest(self) -> str:
        """SHA-256 of the partition, the same on every machine."""
        content = hashlib.sha256(np.ascontiguousarray(self.offsets, "<i4").tobytes())
        content.update(np.ascontiguousarray(self.indices, "<i4").tobytes())
        return content.hexdigest()

    @classmethod
    def of(cls, rows: list[np.ndarray]) -> "Partition":
        """From one array of example numbers for each client."""
        offsets = np.cumsum([0, *map(len, rows)])
        indices = np.concatenate(rows) if rows else np.empty(0)
        return cls(indices.astype(np.int32), offsets.astype(np.int32))


@partitions
def iid(labels: np.ndarray, num_clients: int, seed: int) -> Partition:
    """A shuffle, cut into parts whose sizes differ by at most one."""
    _require(labels, num_clients, 1)
    order = np.random.default_rng(seed).permutation(len(labels))
    return Partition.of(np.array_split(order, num_clients))


@partitions
def dirichlet(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    alpha: Positive = 0.1,
    min_examples: Annotated[int, Range(1)] = 2,
) -> Partition:
    """Each class is divided over the clients by its own draw of Dir(alpha 1_N); sizes are unequal.

    A small alpha is heterogeneous: most of a class goes to few clients. Clients left with fewer
    than `min_examples` then receive random examples of the largest ones, so no example is lost or
    doubled and the function always ends.

    Args:
      labels: int[examples].
      num_clients: N.
      seed: of the draw.
      alpha: concentration.
      min_examples: what each client holds at least.

    Raises:
      ValueError: if there are fewer than `num_clients * min_examples` examples.
    """
    _require(labels, num_clients, min_examples)
    rng = np.random.default_rng(seed)
    rows: list[list[int]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        examples = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(num_clients, alpha))
        if not np.isfinite(shares).all():  # every gamma draw underflowed: all to one client
            shares = np.eye(num_clients)[rng.integers(num_clients)]
        cuts = np.rint(np.cumsum(shares)[:-1] * len(examples)).astype(int)
        for row, part in zip(rows, np.split(examples, cuts), strict=True):
            row.extend(part)
    for row in rows:
        while len(row) < min_examples:
            giver = max(rows, key=len)
            row.append(giver.pop(rng.integers(len(giver))))
    return Partition.of([rng.permutation(row) for row in rows])


def _require(labels: np.ndarray, num_clients: int, min_examples: int) -> None:
    if len(labels) < num_clients * min_examples:
        raise ValueError(
            f"{len(labels)} examples cannot give {num_clients} clients {min_examples} each; "
            f"use at most {len(labels) // min_examples} clients"
        )
