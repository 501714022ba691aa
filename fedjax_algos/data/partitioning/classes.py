"""Partitions in which each client holds some of the classes only."""

from typing import Annotated

import numpy as np

from fedjax_algos.core.registry import NonNegative, Positive, Range
from fedjax_algos.data.partitioning.base import (
    Partition,
    deal,
    divide,
    even_sizes,
    gather,
    partitions,
    raised,
    require,
    resize,
)

REDRAWS = 100
Number = Annotated[int, Range(1)]

# Clients: the fewest and most classes of each, in the code of FedCompass for ten classes.
CLASSES = {1: (10, 10), 2: (7, 8), 3: (6, 8), 4: (5, 7), 5: (5, 6), 6: (4, 6), 7: (4, 5)}
CLASSES_OF_MORE = (3, 5)


@partitions
def classes_per_client(
    labels: np.ndarray, num_clients: int, seed: int, *, classes: Number = 2
) -> Partition:
    """Every client holds the same number of distinct classes, and all classes have equal slots.

    N * classes slots, as many for each class (some have one more where they do not divide), are
    shuffled and dealt. A client that got a class twice swaps one with a random client without it.
    The examples of a class are divided evenly over its slots. Sizes are equal if the classes are.

    The setting of FedLGA: Li et al., "FedLGA: Toward System-Heterogeneity of Federated Learning
    via Local Gradient Approximation", https://arxiv.org/abs/2112.11989, which does not say how to
    deal. The common cut of label-sorted examples into shards can give a client fewer classes.

    Args:
      labels: int[examples].
      num_clients: N.
      seed: of the dealing.
      classes: P, the number of classes of each client.

    Raises:
      ValueError: if there are fewer classes than that, fewer slots than classes, or fewer examples
        of a class than slots.
    """
    labels = require(labels, num_clients)
    rng = np.random.default_rng(seed)
    names, numbers, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    slots = num_clients * classes
    if classes > len(names):
        raise ValueError(
            f"classes={classes} is more than the {len(names)} that there are; give fewer"
        )
    if slots < len(names):
        raise ValueError(
            f"{num_clients} clients with {classes} classes each leave some of the {len(names)} "
            f"out; use at least {-(-len(names) // num_clients)} classes or "
            f"{-(-len(names) // classes)} clients"
        )
    per_slot = rng.permutation(even_sizes(slots, len(names)))
    short = np.flatnonzero(per_class < per_slot)
    if len(short):
        c = short[0]
        raise ValueError(
            f"class {names[c]} has {per_class[c]} examples for {per_slot[c]} clients; "
            "use fewer clients or fewer classes for each"
        )
    dealt = rng.permutation(np.repeat(np.arange(len(names)), per_slot))
    held = np.zeros((num_clients, len(names)), int)
    np.add.at(held, (np.repeat(np.arange(num_clients), classes), dealt), 1)
    table = np.zeros_like(held)
    for c, column in enumerate(_distinct(held, rng).T):
        holders = rng.permutation(np.flatnonzero(column))
        table[holders, c] = even_sizes(per_class[c], len(holders))
    return gather(deal(numbers, table, rng), num_clients, rng)


def _distinct(held: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Swaps until no entry of `held` is above one, with the sums of rows and columns unchanged.

    Client i has c twice, and so some j lacks it. If i has all of j's classes, j must have one of
    them twice. In both cases the swap leaves fewer doubles in all, so the loop ends.
    """
    held = held.copy()
    while (held > 1).any():
        for i, c in np.argwhere(held > 1):
            if held[i, c] > 1:
                j = rng.choice(np.flatnonzero(held[:, c] == 0))
                new = (held[j] > 0) & (held[i] == 0)
                d = rng.choice(np.flatnonzero(new if new.any() else held[j] > 1))
                held[[i, j], [c, d]] -= 1
                held[[i, j], [d, c]] += 1
    return held


@partitions
def class_partition(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    min_classes: Number | None = None,
    max_classes: Number | None = None,
    mean: Positive = 10.0,
    deviation: NonNegative = 3.0,
    min_examples: Number = 1,
) -> Partition:
    """Clients hold a random number of random classes, in uneven parts: FedCompass' first split.

    Each client draws its number of classes uniformly from `min_classes` to `max_classes`, and that
    many of them; all draw again, up to 100 times, until every class has a holder. A class is
    divided over its holders in proportion to |N(mean, deviation^2)|.

    Li et al., "FedCompass", ICLR 2024, Algorithm 4, https://arxiv.org/abs/2309.14675. The numbers
    of classes are those of its code for 10 classes: 5 to 6 for 5 clients, 3 to 5 for 8 or more.
    The examples of a class are shuffled before they are divided, which the code does not. If no
    draw reaches every class, the ones without holders replace classes that have several, or are
    added to clients that have room. Clients with fewer than `min_examples` receive random examples
    of the largest ones, whatever their class.

    Args:
      labels: int[examples].
      num_clients: m.
      seed: of the draw.
      min_classes: the fewest classes of a client; None for the code's, at most all classes.
      max_classes: the most classes of a client; None likewise.
      mean: of the length of a part.
      deviation: standard deviation of the length of a part.
      min_examples: what each client holds at least.

    Raises:
      ValueError: if the clients cannot hold all classes, if the numbers of classes contradict each
        other or the data, or if there are fewer than `num_clients * min_examples` examples.
    """
    labels = require(labels, num_clients, min_examples)
    rng = np.random.default_rng(seed)
    _, numbers, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    usual = [min(n, len(per_class)) for n in CLASSES.get(num_clients, CLASSES_OF_MORE)]
    low = usual[0] if min_classes is None else min_classes
    high = usual[1] if max_classes is None else max_classes
    if low > high:
        raise ValueError(
            f"min_classes={low} is above max_classes={high}; give both (the default for "
            f"{num_clients} clients is {usual[0]} to {usual[1]})"
        )
    if high > len(per_class):
        raise ValueError(
            f"max_classes={high} is more than the {len(per_class)} that there are; give fewer"
        )
    if num_clients * high < len(per_class):
        raise ValueError(
            f"{num_clients} clients with at most {high} classes each cannot hold "
            f"{len(per_class)}; give max_classes={-(-len(per_class) // num_clients)} or more"
        )
    held = _holders(num_clients, len(per_class), low, high, rng)
    lengths = np.abs(rng.normal(mean, deviation, held.shape))
    owners = deal(numbers, divide(np.where(held, lengths, 0), per_class), rng)
    counts = np.bincount(owners, minlength=num_clients)
    return gather(resize(owners, raised(counts, min_examples), rng), num_clients, rng)


def _holders(
    num_clients: int, num_classes: int, low: int, high: int, rng: np.random.Generator
) -> np.ndarray:
    """bool[num_clients, num_classes]: who holds which class; every class has a holder."""
    every = np.tile(np.arange(num_classes), (num_clients, 1))
    for _ in range(REDRAWS):
        numbers = rng.integers(low, high, num_clients, endpoint=True)
        held = rng.permuted(every, axis=1) < numbers[:, None]
        if held.any(axis=0).all():
            return held
    for c in rng.permutation(np.flatnonzero(~held.any(axis=0))):
        spare = held & (held.sum(axis=0) > 1)
        if spare.any():
            i = rng.choice(np.flatnonzero(spare.any(axis=1)))
            held[i, rng.choice(np.flatnonzero(spare[i]))] = False
        else:
            i = rng.choice(np.flatnonzero(held.sum(axis=1) < high))
        held[i, c] = True
    return held
