"""What all partitions share: the result, the registry, and dealing examples out by a table."""

import hashlib
from typing import NamedTuple

import numpy as np

from fedjax_algos.core.registry import Registry

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


def require(labels: np.ndarray, num_clients: int, min_examples: int = 1) -> np.ndarray:
    """The labels as an array.

    Raises:
      ValueError: unless they are one for each example, and enough for the clients.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"labels have shape {labels.shape}; give one label for each example")
    if num_clients < 1:
        raise ValueError(f"num_clients={num_clients} is out of range; give at least 1")
    if len(labels) < num_clients * min_examples:
        raise ValueError(
            f"{len(labels)} examples cannot give {num_clients} clients {min_examples} each; "
            f"use at most {len(labels) // min_examples} clients"
        )
    return labels


def even_sizes(total: int, num_clients: int) -> np.ndarray:
    """int[num_clients]: sizes that differ by at most one, the larger ones first."""
    return (total + num_clients - 1 - np.arange(num_clients)) // num_clients


def raised(sizes: np.ndarray, least: int) -> np.ndarray:
    """The sizes after every client below `least` was filled by the ones largest at the moment."""
    missing = np.maximum(least - sizes, 0).sum()
    low, high = least, max(least, sizes.max())
    while low < high:  # the level to which the largest sink
        level = (low + high + 1) // 2
        enough = np.maximum(sizes - level, 0).sum() >= missing
        low, high = (level, high) if enough else (low, level - 1)
    result = np.clip(sizes, least, low)
    result[np.flatnonzero(sizes > low)[: sizes.sum() - result.sum()]] += 1
    return result


def log_dirichlet(rng: np.random.Generator, concentration: np.ndarray) -> np.ndarray:
    """Logarithms of draws of Dir(concentration) along the last axis.

    They are finite also where the draws themselves are too small for a float, because
    Gamma(a) = Gamma(a + 1) U^(1/a). So shares can be renormalised after some are struck out.
    """
    a = np.maximum(concentration, 1e-300)
    logs = np.log(rng.standard_gamma(a + 1)) - rng.standard_exponential(a.shape) / a
    logs -= logs.max(axis=-1, keepdims=True)
    return logs - np.log(np.exp(logs).sum(axis=-1, keepdims=True))


def shares(logs: np.ndarray, allowed: np.ndarray | bool = True) -> np.ndarray:
    """What exp(logs) is after striking out and renormalising, along the first axis."""
    logs = np.where(allowed, logs, -np.inf)
    weights = np.exp(logs - logs.max(axis=0))
    return weights / weights.sum(axis=0)


def draw(rng: np.random.Generator, number: int, logs: np.ndarray, left: np.ndarray) -> np.ndarray:
    """int[classes]: how many of `number` examples, drawn without replacement, are of each class.

    Each draw chooses a class by exp(logs), renormalised over those with examples left. Here they
    are drawn together; what exceeds a class is drawn again from the others. That is the same
    distribution: a draw of an exhausted class is one to be repeated, whenever it comes.

    Args:
      rng: the generator.
      number: of examples, at most all that are left.
      logs: float[classes], logarithms of the shares.
      left: int[classes], the examples of each class.
    """
    drawn = np.zeros_like(left)
    while number > 0:
        batch = rng.multinomial(number, shares(logs, left > drawn))
        number += drawn.sum()
        drawn = np.minimum(drawn + batch, left)
        number -= drawn.sum()
    return drawn


def divide(weights: np.ndarray, sizes: np.ndarray | int) -> np.ndarray:
    """int[num_clients, ...]: each class (or all) divided in proportion to its column of weights.

    A class is cut at its rounded cumulative sums: all of it is used, each part is less than one
    example from its share, and no client takes a remainder.
    """
    ends = np.cumsum(weights, axis=0)
    return np.diff(np.rint(ends / ends[-1] * sizes).astype(int), axis=0, prepend=0)


def deal(classes: np.ndarray, table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int[examples]: owners, where client i gets `table[i, c]` random examples of class c."""
    num_clients, num_classes = table.shape
    owners = np.empty(len(classes), int)
    clients = np.tile(np.arange(num_clients), num_classes)
    owners[shuffled_sort(classes, rng)] = np.repeat(clients, table.T.ravel())
    return owners


def resize(owners: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The owners after random examples of clients above their size went to those below it."""
    counts = np.bincount(owners, minlength=len(sizes))
    order = shuffled_sort(owners, rng)
    place = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    surplus = rng.permutation(order[place >= sizes[owners[order]]])
    owners = owners.copy()
    owners[surplus] = np.repeat(np.arange(len(sizes)), np.maximum(sizes - counts, 0))
    return owners


def gather(owners: np.ndarray, num_clients: int, rng: np.random.Generator) -> Partition:
    """The partition with these owners; each client's examples are in random order."""
    ends = np.cumsum(np.bincount(owners, minlength=num_clients))
    offsets = np.concatenate([[0], ends])
    return Partition(shuffled_sort(owners, rng).astype(np.int32), offsets.astype(np.int32))


def shuffled_sort(keys: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The order that sorts the keys, random among equal ones."""
    order = rng.permutation(len(keys))
    return order[np.argsort(keys[order], kind="stable")]
