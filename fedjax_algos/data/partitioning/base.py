"""The type `Partition`, the registry, and helpers for tables int[num_clients, num_classes]."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import check_int32, check_memory
from fedjax_algos.base.reprs import describe
from fedjax_algos.core.checks import check_seed, check_whole
from fedjax_algos.core.registry import Registry


class Partition(NamedTuple):
    """The examples of each client, in compressed sparse rows.

    Client i holds the examples `indices[offsets[i]:offsets[i + 1]]`.

    Attributes:
      indices: int32[assigned]: row numbers of examples, one client after another.
      offsets: int32[num_clients + 1]: where each client's part of `indices` starts, and the end.
    """

    indices: np.ndarray
    offsets: np.ndarray

    @property
    def num_clients(self) -> int:
        """N, including clients without examples."""
        return len(self.offsets) - 1

    def counts(self) -> np.ndarray:
        """Returns int32[num_clients]: n_i, the number of examples of each client."""
        return np.diff(self.offsets)

    def digest(self) -> str:
        """Returns the partition's SHA-256 in hexadecimal digits, the same on every machine."""
        content = np.concatenate([self.offsets, self.indices]).astype("<i4")
        return hashlib.sha256(content.tobytes()).hexdigest()

    @classmethod
    def of(cls, rows: Sequence[ArrayLike], *, shared: bool = False) -> "Partition":
        """Makes a partition from one array of example numbers for each client.

        Args:
          rows: int[n_i] for each client.
          shared: whether an example may occur several times, in one client or in several.

        Raises:
          TypeError: for rows that cannot be iterated over.
          ValueError: for rows that are not numbers of examples, and for an example that occurs
            twice without `shared`.
        """
        found = f"rows are of type {type(rows).__name__}"
        plain = not isinstance(rows, Partition | Mapping)
        require(plain, f"{found}; give a list of each client's example numbers")
        arrays = [_checked_rows(client, each) for client, each in enumerate(rows)]
        offsets = np.cumsum([0, *map(len, arrays)])
        check_int32("the examples of all clients", offsets[-1], "give fewer")
        indices = np.concatenate(arrays) if arrays else np.empty(0)
        ordered = np.sort(indices)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        found = f"the rows have example {next(iter(twice), None)} twice"
        require(shared or not len(twice), f"{found}; give it to one client, or give shared=True")
        return cls(indices.astype(np.int32), offsets.astype(np.int32))

    def __repr__(self) -> str:
        sizes = {"per_client": describe_counts(self.counts())} if self.num_clients else {}
        return describe(self, clients=self.num_clients, examples=len(self.indices), **sizes)


def hold_out(partition: Partition, share: float, seed: int) -> tuple[Partition, Partition]:
    """Divides each client's examples into training and held-out examples.

    Args:
      partition: the partition of all examples.
      share: the share of each client's n_i examples that are held out, from 0 to below 1. Their
        number is rounded down for most clients, and up for the clients nearest to the next number.
        So the total does not depend on the sizes. Every client keeps at least one example.
      seed: the seed of the draw, which is uniform.

    Returns:
      Two partitions over the same clients. `federate` needs `allow_empty=True` for the second one.
    """
    require(0 <= share < 1, f"share={share!r} is out of range; give a number from 0 to below 1")
    rng = np.random.default_rng([seed, partition.num_clients])
    counts = partition.counts()
    numbers = np.floor(share * counts).astype(int)
    nearest = np.argsort(numbers - share * counts, kind="stable")
    nearest = nearest[numbers[nearest] + 1 < counts[nearest]]
    numbers[nearest[: int(share * counts.sum()) - numbers.sum()]] += 1
    kept, held, all_rows = [], [], np.split(partition.indices, partition.offsets[1:-1])
    for rows, number in zip(all_rows, numbers, strict=True):
        order = rng.permutation(len(rows))
        kept.append(np.sort(rows[order[number:]]))
        held.append(np.sort(rows[order[:number]]))
    return Partition.of(kept, shared=True), Partition.of(held, shared=True)


def describe_counts(counts: np.ndarray) -> str:
    """Formats the smallest and the largest count, such as `2..60`."""
    return f"{counts.min()}..{counts.max()}"


partitions = Registry[Partition]("partition", Partition)


def even_sizes(total: int, num_clients: int) -> np.ndarray:
    """Divides a total into int[num_clients] sizes that differ by at most 1, larger ones first."""
    return (total + num_clients - 1 - np.arange(num_clients)) // num_clients


def raise_to_minimum(sizes: np.ndarray, minimum: int) -> np.ndarray:
    """Moves examples, one by one, from the largest clients to those below the minimum."""
    missing = np.maximum(minimum - sizes, 0).sum()
    low, high = minimum, max(minimum, sizes.max())
    while low < high:  # bisects the new largest size
        level = (low + high + 1) // 2
        enough = np.maximum(sizes - level, 0).sum() >= missing
        low, high = (level, high) if enough else (low, level - 1)
    result = np.clip(sizes, minimum, low)
    result[np.flatnonzero(sizes > low)[: sizes.sum() - result.sum()]] += 1
    return result


def log_dirichlet(rng: np.random.Generator, concentration: np.ndarray) -> np.ndarray:
    """Draws log Dir(concentration) along the last axis; finite even if the draws underflow."""
    a = np.maximum(concentration, 1e-300)  # Gamma(a) = Gamma(a + 1) U^(1/a)
    logs = np.log(rng.standard_gamma(a + 1)) - rng.standard_exponential(a.shape) / a
    logs -= logs.max(axis=-1, keepdims=True)
    return logs - np.log(np.exp(logs).sum(axis=-1, keepdims=True))


def renormalise(logs: np.ndarray, allowed: np.ndarray | bool = True) -> np.ndarray:
    """Returns exp(logs) [shares, ...] where allowed, else 0, with sum 1 along the first axis."""
    logs = np.where(allowed, logs, -np.inf)
    weights = np.exp(logs - logs.max(axis=0))
    return weights / weights.sum(axis=0)


def draw_class_counts(
    rng: np.random.Generator, number: int, logs: np.ndarray, available: np.ndarray
) -> np.ndarray:
    """Draws `number` examples without replacement, by exp(logs) [classes]; returns int[classes]."""
    # All are drawn at once, and draws beyond a class's examples are repeated. The distribution is
    # the same as for successive draws, which also repeat each draw of an exhausted class.
    drawn = np.zeros_like(available)
    while number > 0:
        batch = rng.multinomial(number, renormalise(logs, available > drawn))
        number += drawn.sum()
        drawn = np.minimum(drawn + batch, available)
        number -= drawn.sum()
    return drawn


def divide_by_weights(weights: np.ndarray, sizes: np.ndarray | int) -> np.ndarray:
    """Cuts sizes int[...] at the weights' rounded cumulative sums, to int[num_clients, ...]."""
    ends = np.cumsum(weights, axis=0)
    return np.diff(np.rint(ends / ends[-1] * sizes).astype(int), axis=0, prepend=0)


def partition_by_table(
    classes: np.ndarray,
    table: np.ndarray,
    rng: np.random.Generator,
    sizes: np.ndarray | None = None,
) -> Partition:
    """Gives client i `table[i, c]` random examples of class c, and moves some to fit `sizes`."""
    num_clients, num_classes = table.shape
    owners = np.empty(len(classes), int)
    clients = np.tile(np.arange(num_clients), num_classes)
    owners[shuffled_argsort(classes, rng)] = np.repeat(clients, table.T.ravel())
    if sizes is not None:
        counts = np.bincount(owners, minlength=num_clients)
        order = shuffled_argsort(owners, rng)
        rank = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        surplus = rng.permutation(order[rank >= sizes[owners[order]]])
        owners[surplus] = np.repeat(np.arange(num_clients), np.maximum(sizes - counts, 0))
    offsets = np.cumsum([0, *np.bincount(owners, minlength=num_clients)])
    return Partition(shuffled_argsort(owners, rng).astype(np.int32), offsets.astype(np.int32))


def shuffled_argsort(keys: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns int[keys]: the order that sorts the keys, random among equal ones."""
    order = rng.permutation(len(keys))
    return order[np.argsort(keys[order], kind="stable")]


def _checked_rows(client: int, rows: ArrayLike) -> np.ndarray:
    """Checks a client's example numbers and returns them as int[n_i]."""
    rows = np.asarray(rows)
    if rows.shape == (0,):
        return rows.astype(np.int32)
    found = f"the rows of client {client} are {rows.dtype}{list(rows.shape)}"
    fix = "give its example numbers, in one axis, such as np.flatnonzero(mask)"
    require(rows.ndim == 1 and rows.dtype.kind in "iu", f"{found}; {fix}")
    check_int32(f"an example of client {client}", rows.max(), "give numbers of examples")
    return rows


def check_table(num_clients: int, num_classes: int) -> None:
    """Raises ValueError if a table of clients and classes does not fit into memory."""
    what = f"a table of {num_clients} clients and {num_classes} classes"
    fix = "give fewer clients, or labels of fewer classes"
    check_memory(what, num_clients * num_classes * 8, fix)


def checked(
    labels: np.ndarray, num_clients: int, seed: int, min_examples: int = 1
) -> tuple[np.ndarray, np.random.Generator]:
    """Returns the labels as an array, and a generator; ValueError if there are too few labels."""
    labels = np.asarray(labels)
    check_whole("num_clients", num_clients)
    found = f"labels of shape {labels.shape} cannot give {num_clients} clients {min_examples} each"
    fix = f"give a label for each example, and at most {labels.size // min_examples} clients"
    fits = labels.ndim == 1 and labels.size >= num_clients * min_examples
    require(fits, f"{found}; {fix}")
    check_seed(seed)
    return labels, np.random.default_rng(seed)
