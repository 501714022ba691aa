"""Partitions in which each client holds only some of the classes."""

import numpy as np

from fedjax_algos.core.files import require
from fedjax_algos.core.options import Count, NonNegative, Positive
from fedjax_algos.data.partitioning import base
from fedjax_algos.data.partitioning.base import Partition, partitions

REDRAWS = 100  # of the holders of all classes

# FedCompass' code for ten classes, by number of clients: the fewest and most classes of a client.
CLASSES = {1: (10, 10), 2: (7, 8), 3: (6, 8), 4: (5, 7), 5: (5, 6), 6: (4, 6), 7: (4, 5)}
CLASSES_OF_MORE = (3, 5)  # for 8 clients or more


@partitions.register
def classes_per_client(
    labels: np.ndarray, num_clients: int, seed: int, *, classes: Count = 2
) -> Partition:
    """Every client holds the same number of distinct classes, and all classes have equal slots.

    There are N P slots, as many for each class (some have one more where they do not divide). They
    are shuffled and assigned to the clients. A client that has a class twice exchanges one slot
    with a random client without that class. The examples of a class are divided evenly over its
    slots. Sizes are equal if the classes are.

    The setting of FedLGA: Li et al., "FedLGA: Toward System-Heterogeneity of Federated Learning
    via Local Gradient Approximation", https://arxiv.org/abs/2112.11989, which does not specify the
    assignment. The common cut of label-sorted examples into shards can give a client fewer classes.

    Args:
      labels, num_clients, seed: int[examples], the number of clients N, the seed of the assignment.
      classes: P, the number of classes of each client, at least 1.

    Raises:
      ValueError: if there are fewer than P classes, fewer slots than classes, or fewer examples of
        a class than slots.
    """
    labels, rng = base.checked(labels, num_clients, seed)
    names, numbers, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    slots = num_clients * classes
    known = f"the {len(names)} that there are"
    require(classes <= len(names), f"classes={classes} is more than {known}; give fewer")
    few = f"{num_clients} clients with {classes} classes each leave some of the {len(names)} out"
    fix = f"{-(-len(names) // num_clients)} classes or {-(-len(names) // classes)} clients"
    require(slots >= len(names), f"{few}; use at least {fix}")
    per_slot = rng.permutation(base.even_sizes(slots, len(names)))
    worst = (per_class < per_slot).argmax()
    small = f"class {names[worst]} has {per_class[worst]} examples for {per_slot[worst]} clients"
    require(per_class[worst] >= per_slot[worst], f"{small}; use fewer clients or fewer classes")
    class_of_slot = rng.permutation(np.repeat(np.arange(len(names)), per_slot))
    base.check_table(num_clients, len(names))
    slot_counts = np.zeros((num_clients, len(names)), int)
    np.add.at(slot_counts, (np.repeat(np.arange(num_clients), classes), class_of_slot), 1)
    table = np.zeros_like(slot_counts)
    for c, column in enumerate(exchange_duplicates(slot_counts, rng).T):
        holders = rng.permutation(np.flatnonzero(column))
        table[holders, c] = base.even_sizes(per_class[c], len(holders))
    return base.partition_by_table(numbers, table, rng)


def exchange_duplicates(slot_counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int[num_clients, num_classes] of 0 and 1 with the same sums, made by exchanging slots.

    If client i has class c twice, some client j lacks it. If i has all classes of j, then j has one
    of them twice. In both cases an exchange reduces the number of duplicates, so the loop ends.
    """
    slot_counts = slot_counts.copy()
    while (slot_counts > 1).any():
        for i, c in np.argwhere(slot_counts > 1):
            if slot_counts[i, c] > 1:
                j = rng.choice(np.flatnonzero(slot_counts[:, c] == 0))
                new = (slot_counts[j] > 0) & (slot_counts[i] == 0)
                d = rng.choice(np.flatnonzero(new if new.any() else slot_counts[j] > 1))
                slot_counts[[i, j], [c, d]] -= 1
                slot_counts[[i, j], [d, c]] += 1
    return slot_counts


@partitions.register
def class_partition(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    min_classes: Count | None = None,
    max_classes: Count | None = None,
    mean: Positive = 10.0,
    deviation: NonNegative = 3.0,
    min_examples: Count = 1,
) -> Partition:
    """Clients hold a random number of random classes, in uneven parts: FedCompass' first split.

    Each client draws its number of classes uniformly from `min_classes` to `max_classes`, and that
    many of them; all clients draw again, up to 100 times, until every class has a holder. A class
    is divided over its holders in proportion to |N(mean, deviation^2)|.

    Li et al., "FedCompass", ICLR 2024, Algorithm 4, https://arxiv.org/abs/2309.14675. The numbers
    of classes are those of its code for 10 classes: 5 to 6 for 5 clients, 3 to 5 for 8 or more.
    The examples of a class are shuffled before they are divided, which the code does not do. If no
    draw reaches every class, the classes without holders replace classes that have several, or are
    added to clients that have room. Clients with fewer than `min_examples` receive random examples
    of the largest ones, of any class.

    Args:
      labels, num_clients, seed: int[examples], the number of clients m, the seed of the draw.
      min_classes: the fewest classes of a client, at least 1; None for the number in the code, but
        at most all classes.
      max_classes: the most classes of a client, at least `min_classes`; None likewise.
      mean: mu, the mean length of a part before normalisation, above 0; only the ratio to
        `deviation` matters.
      deviation: sigma, the standard deviation of the length of a part, at least 0.
      min_examples: the fewest examples of a client, at least 1.

    Raises:
      ValueError: if the clients cannot hold all classes, if the numbers of classes contradict each
        other or the data, or if there are fewer than `num_clients * min_examples` examples.
    """
    labels, rng = base.checked(labels, num_clients, seed, min_examples)
    _, numbers, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    usual = [min(n, len(per_class)) for n in CLASSES.get(num_clients, CLASSES_OF_MORE)]
    low = usual[0] if min_classes is None else min_classes
    high = usual[1] if max_classes is None else max_classes
    default = f"the default for {num_clients} clients is {usual[0]} to {usual[1]}"
    above = f"min_classes={low} is above max_classes={high}"
    require(low <= high, f"{above}; give both ({default})")
    known = f"the {len(per_class)} that there are"
    require(high <= len(per_class), f"max_classes={high} is more than {known}; give fewer")
    few = f"{num_clients} clients with at most {high} classes each cannot hold {len(per_class)}"
    fix = f"give max_classes={-(-len(per_class) // num_clients)} or more"
    require(num_clients * high >= len(per_class), f"{few}; {fix}")
    holds = draw_class_holders(num_clients, len(per_class), low, high, rng)
    lengths = np.abs(rng.normal(mean, deviation, holds.shape))
    table = base.divide_by_weights(np.where(holds, lengths, 0), per_class)
    sizes = base.raise_to_minimum(table.sum(axis=1), min_examples)
    return base.partition_by_table(numbers, table, rng, sizes)


def draw_class_holders(
    num_clients: int, num_classes: int, low: int, high: int, rng: np.random.Generator
) -> np.ndarray:
    """bool[num_clients, num_classes]: who holds `low` to `high` classes; each has a holder."""
    all_classes = np.tile(np.arange(num_classes), (num_clients, 1))
    for _ in range(REDRAWS):
        numbers = rng.integers(low, high, num_clients, endpoint=True)
        holds = rng.permuted(all_classes, axis=1) < numbers[:, None]
        if holds.any(axis=0).all():
            return holds
    for c in rng.permutation(np.flatnonzero(~holds.any(axis=0))):
        spare = holds & (holds.sum(axis=0) > 1)
        if spare.any():
            i = rng.choice(np.flatnonzero(spare.any(axis=1)))
            holds[i, rng.choice(np.flatnonzero(spare[i]))] = False
        else:
            i = rng.choice(np.flatnonzero(holds.sum(axis=1) < high))
        holds[i, c] = True
    return holds
