"""Partitions by labels: Dirichlet distributions, or clients with only some of the classes."""

from typing import Annotated

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.core.options import Count, NonNegative, Positive, Range
from fedjax_algos.data.partitioning import base
from fedjax_algos.data.partitioning.base import Partition, partitions

REDRAWS = 100  # of a table where a client has too few examples, or a class has no holder

# The fewest and most classes of a client in FedCompass' code, by clients, for ten classes.
CLASSES = {1: (10, 10), 2: (7, 8), 3: (6, 8), 4: (5, 7), 5: (5, 6), 6: (4, 6), 7: (4, 5)}
CLASSES_OF_MORE = (3, 5)  # for 8 clients or more


@partitions.register
def dirichlet(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    alpha: Positive = 0.1,
    min_examples: Count = 2,
) -> Partition:
    """Divides each class over the clients by its own draw of Dir(alpha 1_N); sizes are unequal.

    A small alpha is heterogeneous: a few clients hold most of a class. Clients with fewer than
    `min_examples` then receive random examples of the largest clients. No example is lost or
    duplicated, and the function always ends.

    Args:
      labels, num_clients, seed: int[examples], the number of clients N, the seed of the draw.
      alpha: concentration, above 0; small values are heterogeneous.
      min_examples: the fewest examples of a client, at least 1.

    Raises:
      ValueError: if there are fewer than `num_clients * min_examples` examples.
    """
    labels, rng = base.checked(labels, num_clients, seed, min_examples)
    rows: list[list[int]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        examples = rng.permutation(np.flatnonzero(labels == label))
        parts = rng.dirichlet(np.full(num_clients, alpha))
        if not np.isfinite(parts).all():  # all gamma draws underflowed: one client takes the class
            parts = np.eye(num_clients)[rng.integers(num_clients)]
        cuts = np.rint(np.cumsum(parts)[:-1] * len(examples)).astype(int)
        for row, part in zip(rows, np.split(examples, cuts), strict=True):
            row.extend(part)
    for row in rows:
        while len(row) < min_examples:
            giver = max(rows, key=len)
            row.append(giver.pop(rng.integers(len(giver))))
    return Partition.of([rng.permutation(row) for row in rows])


@partitions.register
def dirichlet_balanced(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    alpha: NonNegative = 0.1,
    tries: Annotated[int, Range(1, 10**6)] = 100,
) -> Partition:
    """Divides classes as `dirichlet`, with equal sizes: the split in the code of GHBM and FedHBM.

    One class after another is divided by a draw of Dir(alpha 1_N), without the shares of clients
    that already have 1/N of all examples. This is done `tries` times, and the table with the
    smallest standard deviation of sizes is used. Random surplus examples then move to smaller
    clients until sizes differ by at most one. alpha = 0 sorts the examples by label and gives each
    client one of N contiguous shards: one class each, if 1/N of all examples divides every class.

    With a tiny positive alpha, few clients draw a class, and most of it then moves to others: with
    10 classes, 100 clients are most heterogeneous near alpha = 0.1, and almost alike for 0.001.

    Zaccone et al., "Communication-Efficient Heterogeneous Federated Learning with Generalized
    Heavy-Ball Momentum", https://arxiv.org/abs/2311.18578, and its code,
    https://github.com/RickZack/GHBM; the text describes `dirichlet_classes` instead. The paper's
    settings are alpha = 0 and, for IID clients, 10,000. Here parts are rounded, not floored, and
    the clients with most examples receive the remainders of the sizes.

    Args:
      labels, num_clients, seed: int[examples], the number of clients N, the seed of the draw.
      alpha: concentration, at least 0; small values are heterogeneous.
      tries: the number of tables to choose the most even one from, 1 to a million.

    Raises:
      ValueError: if there are more clients than examples.
    """
    labels, rng = base.checked(labels, num_clients, seed)
    if alpha == 0:
        return _shards(labels, num_clients, rng)
    _, classes, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    base.check_table(num_clients, len(per_class))
    tables = (draw_balanced_table(per_class, num_clients, alpha, rng) for _ in range(tries))
    table = min(tables, key=lambda table: table.sum(axis=1).std())
    sizes = np.empty(num_clients, int)
    sizes[np.argsort(-table.sum(axis=1), kind="stable")] = base.even_sizes(len(labels), num_clients)
    return base.partition_by_table(classes, table, rng, sizes)


def draw_balanced_table(
    per_class: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Draws int[num_clients, num_classes], one try of `dirichlet_balanced`."""
    table = np.zeros((num_clients, len(per_class)), int)
    sizes = np.zeros(num_clients, int)
    for label, size in enumerate(per_class):
        logs = base.log_dirichlet(rng, np.full(num_clients, alpha))
        shares = base.renormalise(logs, sizes * num_clients < per_class.sum())
        table[:, label] = base.divide_by_weights(shares, size)
        sizes += table[:, label]
    return table


@partitions.register
def dirichlet_classes(
    labels: np.ndarray, num_clients: int, seed: int, *, alpha: NonNegative = 0.1
) -> Partition:
    """Gives clients of equal size their own label distributions q_i ~ Dir(alpha prior).

    The prior is the distribution of all labels, so the concentrations of all classes sum to alpha.
    One client after another draws its examples by q_i without replacement; q_i is renormalised when
    a class is exhausted. So the last clients take what remains and may lack a class for any alpha.
    alpha = 0 is the same as in `dirichlet_balanced`. Sizes differ by at most one.

    Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", https://arxiv.org/abs/1909.06335, and the text of the GHBM paper,
    https://arxiv.org/abs/2311.18578. Neither has a rule for exhausted classes; this one is ours.

    Args:
      labels, num_clients, seed: int[examples], the number of clients N, the seed of the draw.
      alpha: concentration, at least 0; small values are heterogeneous.

    Raises:
      ValueError: if there are more clients than examples.
    """
    labels, rng = base.checked(labels, num_clients, seed)
    if alpha == 0:
        return _shards(labels, num_clients, rng)
    _, classes, remaining = np.unique(labels, return_inverse=True, return_counts=True)
    base.check_table(num_clients, len(remaining))
    table = np.zeros((num_clients, len(remaining)), int)
    q = base.log_dirichlet(rng, np.tile(alpha * remaining / len(labels), (num_clients, 1)))
    for client, size in enumerate(base.even_sizes(len(labels), num_clients)):
        table[client] = base.draw_class_counts(rng, size, q[client], remaining)
        remaining = remaining - table[client]
    return base.partition_by_table(classes, table, rng)


def _shards(labels: np.ndarray, num_clients: int, rng: np.random.Generator) -> Partition:
    """Sorts the examples by label and deals contiguous shards of equal size in random order."""
    shards = np.array_split(base.shuffled_argsort(labels, rng), num_clients)
    return Partition.of([shards[i] for i in rng.permutation(num_clients)])


@partitions.register
def dual_dirichlet(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    alpha1: Positive | None = None,
    alpha2: Positive = 0.5,
    min_examples: Count = 2,
) -> Partition:
    """Draws sizes from one Dirichlet and labels from another: FedCompass' second split.

    With w ~ Dir(alpha1/m 1_m) and k_i ~ Dir(alpha2 prior), client i receives the share
    w_i k_ic / sum_j w_j k_jc of class c. The prior is the distribution of all labels. If a client
    has fewer than `min_examples`, everything is drawn again, up to 100 times. After that the draw
    that lacks the fewest examples is repaired with random examples of the largest clients.

    Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client
    Devices Using a Computing Power-Aware Scheduler", ICLR 2024, Algorithm 5,
    https://arxiv.org/abs/2309.14675, which has no minimum size. We compute shares from logarithms,
    so none is 0/0. Its code floors the parts and gives the remainders to the last client; we cut
    classes at rounded cumulative sums.

    Args:
      labels, num_clients, seed: int[examples], the number of clients m, the seed of the draw.
      alpha1: concentration of the sizes, above 0; None for m, as in the paper.
      alpha2: concentration of the labels, above 0; small values are heterogeneous.
      min_examples: the fewest examples of a client, at least 1.

    Raises:
      ValueError: if there are fewer than `num_clients * min_examples` examples.
    """
    labels, rng = base.checked(labels, num_clients, seed, min_examples)
    _, classes, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    base.check_table(num_clients, len(per_class))
    of_sizes = np.full(num_clients, (num_clients if alpha1 is None else alpha1) / num_clients)
    of_labels = np.tile(alpha2 * per_class / len(labels), (num_clients, 1))
    fewest_missing = len(labels)
    for _ in range(REDRAWS):
        w, k = base.log_dirichlet(rng, of_sizes), base.log_dirichlet(rng, of_labels)
        drawn = base.divide_by_weights(base.renormalise(w[:, None] + k), per_class)
        missing = np.maximum(min_examples - drawn.sum(axis=1), 0).sum()
        if missing < fewest_missing:
            fewest_missing, table = missing, drawn
        if not missing:
            break
    sizes = base.raise_to_minimum(table.sum(axis=1), min_examples)
    return base.partition_by_table(classes, table, rng, sizes)


@partitions.register
def classes_per_client(
    labels: np.ndarray, num_clients: int, seed: int, *, classes: Count = 2
) -> Partition:
    """Gives every client the same number of distinct classes, and each class equally many clients.

    The N P slots are divided evenly over the classes (some have one more if they do not divide),
    shuffled and assigned to the clients. A client that has a class twice exchanges one slot with a
    random client without that class. The examples of a class are divided evenly over its slots.
    Clients have equal sizes if the classes have.

    This is the setting of FedLGA: Li et al., "FedLGA: Toward System-Heterogeneity of Federated
    Learning via Local Gradient Approximation", https://arxiv.org/abs/2112.11989, which does not
    specify the assignment. Shards of label-sorted examples can give a client fewer classes.

    Args:
      labels, num_clients, seed: int[examples], the number of clients N, the seed of the assignment.
      classes: P, the number of classes of each client, at least 1.

    Raises:
      ValueError: for fewer classes than P, fewer slots than classes, or too small a class.
    """
    labels, rng = base.checked(labels, num_clients, seed)
    names, numbers, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    slots, fewest = num_clients * classes, -(-len(names) // num_clients)
    found = f"classes={classes} is out of range for {num_clients} clients"
    fix = f"give {fewest} to {len(names)}, all that there are, or more clients"
    require(fewest <= classes <= len(names), f"{found}; {fix}")
    per_slot = rng.permutation(base.even_sizes(slots, len(names)))
    worst = (per_class < per_slot).argmax()
    found = f"class {names[worst]} has {per_class[worst]} examples for {per_slot[worst]} clients"
    require(per_class[worst] >= per_slot[worst], f"{found}; use fewer clients or fewer classes")
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
    """Exchanges clients' slots until no client has a class twice; all sums stay the same."""
    # If client i has class c twice, some client j lacks it. If i has all classes of j, then j has
    # one of them twice. In both cases an exchange leaves fewer duplicates, so the loop ends.
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
    """Gives clients uneven parts of a random number of random classes: FedCompass' first split.

    Each client draws a number of classes uniformly from `min_classes` to `max_classes`, and that
    many classes. All clients draw again, up to 100 times, until every class has a holder. A class
    is divided over its holders in proportion to |N(mean, deviation^2)|.

    Li et al., "FedCompass", ICLR 2024, Algorithm 4, https://arxiv.org/abs/2309.14675. The default
    numbers of classes are from its code for 10 classes: 5 to 6 for 5 clients, 3 to 5 for 8 or more.
    We shuffle a class before we divide it; the code does not. If no draw reaches every class,
    classes without a holder replace classes with several, or are added to clients with room.
    Clients with fewer than `min_examples` receive random examples of the largest, of any class.

    Args:
      labels, num_clients, seed: int[examples], the number of clients m, the seed of the draw.
      min_classes: the fewest classes of a client, at least 1; None for the code's, at most all.
      max_classes: the most classes of a client, at least `min_classes`; None for the code's.
      mean: mu, the mean length of a part, above 0; only the ratio to `deviation` matters.
      deviation: sigma, the standard deviation of the length of a part, at least 0.
      min_examples: the fewest examples of a client, at least 1.

    Raises:
      ValueError: if the clients cannot hold all classes, if the numbers of classes contradict each
        other or the data, or for fewer than `num_clients * min_examples` examples.
    """
    labels, rng = base.checked(labels, num_clients, seed, min_examples)
    _, numbers, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    base.check_table(num_clients, len(per_class))
    usual = [min(n, len(per_class)) for n in CLASSES.get(num_clients, CLASSES_OF_MORE)]
    low = usual[0] if min_classes is None else min_classes
    high = usual[1] if max_classes is None else max_classes
    fewest = -(-len(per_class) // num_clients)  # so that the clients hold all classes
    found = f"min_classes={low} and max_classes={high} do not fit {num_clients} clients"
    fix = f"give a maximum of {fewest} to {len(per_class)}, all that there are, above the minimum"
    require(max(low, fewest) <= high <= len(per_class), f"{found}; {fix}")
    holds = draw_class_holders(num_clients, len(per_class), low, high, rng)
    lengths = np.abs(rng.normal(mean, deviation, holds.shape))
    table = base.divide_by_weights(np.where(holds, lengths, 0), per_class)
    sizes = base.raise_to_minimum(table.sum(axis=1), min_examples)
    return base.partition_by_table(numbers, table, rng, sizes)


def draw_class_holders(
    num_clients: int, num_classes: int, low: int, high: int, rng: np.random.Generator
) -> np.ndarray:
    """Draws the classes of each client, bool[num_clients, num_classes]; no class is left out."""
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
