"""Partitions whose heterogeneity is a Dirichlet distribution's."""

from typing import Annotated

import numpy as np

from fedjax_algos.core.registry import NonNegative, Positive, Range
from fedjax_algos.data.partitioning.base import (
    Partition,
    deal,
    divide,
    draw,
    even_sizes,
    gather,
    log_dirichlet,
    partitions,
    raised,
    require,
    resize,
    shares,
    shuffled_sort,
)

REDRAWS = 100


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
    labels = require(labels, num_clients, min_examples)
    rng = np.random.default_rng(seed)
    rows: list[list[int]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        examples = rng.permutation(np.flatnonzero(labels == label))
        parts = rng.dirichlet(np.full(num_clients, alpha))
        if not np.isfinite(parts).all():  # every gamma draw underflowed: all to one client
            parts = np.eye(num_clients)[rng.integers(num_clients)]
        cuts = np.rint(np.cumsum(parts)[:-1] * len(examples)).astype(int)
        for row, part in zip(rows, np.split(examples, cuts), strict=True):
            row.extend(part)
    for row in rows:
        while len(row) < min_examples:
            giver = max(rows, key=len)
            row.append(giver.pop(rng.integers(len(giver))))
    return Partition.of([rng.permutation(row) for row in rows])


@partitions
def dirichlet_balanced(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    alpha: NonNegative = 0.1,
    tries: Annotated[int, Range(1)] = 100,
) -> Partition:
    """As `dirichlet`, but clients are of equal size: the split of the code of GHBM and FedHBM.

    Class after class is divided by a draw of Dir(alpha 1_N) without the shares of clients that
    have 1/N of all examples already. Of `tries` such tables the one with the smallest standard
    deviation of sizes is kept. Random surplus examples then go to those that lack some, until
    sizes differ by at most one. alpha = 0 sorts the examples by label and gives each client one
    of N contiguous shards: one class each, where 1/N of the examples divides the classes.

    A positive alpha that gives each class to fewer clients than must hold it leaves most to the
    random repair: 100 clients with 10 classes are most heterogeneous near alpha = 0.1, and those of
    alpha = 0.001 are almost alike.

    Zaccone et al., "Communication-Efficient Heterogeneous Federated Learning with Generalized
    Heavy-Ball Momentum", https://arxiv.org/abs/2311.18578, and its code,
    https://github.com/RickZack/GHBM; the text describes `dirichlet_classes` instead. The paper's
    settings are alpha = 0 and, for IID clients, 10,000. Parts are rounded, not floored, and
    remainders of sizes go to the clients that had most.

    Args:
      labels: int[examples].
      num_clients: N.
      seed: of the draw.
      alpha: concentration; a small one is heterogeneous.
      tries: tables among which the most even one is chosen.

    Raises:
      ValueError: if there are more clients than examples.
    """
    labels = require(labels, num_clients)
    rng = np.random.default_rng(seed)
    if alpha == 0:
        return _shards(labels, num_clients, rng)
    _, classes, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    tables = (_fill(per_class, num_clients, alpha, rng) for _ in range(tries))
    table = min(tables, key=lambda table: table.sum(axis=1).std())
    sizes = np.empty(num_clients, int)
    sizes[np.argsort(-table.sum(axis=1), kind="stable")] = even_sizes(len(labels), num_clients)
    return gather(resize(deal(classes, table, rng), sizes, rng), num_clients, rng)


def _fill(
    per_class: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """int[num_clients, classes]: one try of `dirichlet_balanced`."""
    table = np.zeros((num_clients, len(per_class)), int)
    held = np.zeros(num_clients, int)
    for label, size in enumerate(per_class):
        logs = log_dirichlet(rng, np.full(num_clients, alpha))
        table[:, label] = divide(shares(logs, held * num_clients < per_class.sum()), size)
        held += table[:, label]
    return table


@partitions
def dirichlet_classes(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    alpha: NonNegative = 0.1,
) -> Partition:
    """Clients of equal size, each with its own label distribution q_i ~ Dir(alpha prior).

    The prior is the labels' own distribution, so that the concentrations of all classes sum to
    alpha. Clients draw their examples one after the other by q_i without replacement; q_i is
    renormalised when a class is exhausted, so the last clients take what is left and may lack a
    class however large alpha is. alpha = 0 is `dirichlet_balanced`'s. Sizes differ by at most one.

    Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", https://arxiv.org/abs/1909.06335, and the text of the GHBM paper,
    https://arxiv.org/abs/2311.18578. What follows an exhausted class is decided here.

    Args:
      labels: int[examples].
      num_clients: N.
      seed: of the draw.
      alpha: concentration; a small one is heterogeneous.

    Raises:
      ValueError: if there are more clients than examples.
    """
    labels = require(labels, num_clients)
    rng = np.random.default_rng(seed)
    if alpha == 0:
        return _shards(labels, num_clients, rng)
    _, classes, left = np.unique(labels, return_inverse=True, return_counts=True)
    table = np.zeros((num_clients, len(left)), int)
    q = log_dirichlet(rng, np.tile(alpha * left / len(labels), (num_clients, 1)))
    for client, size in enumerate(even_sizes(len(labels), num_clients)):
        table[client] = draw(rng, size, q[client], left)
        left = left - table[client]
    return gather(deal(classes, table, rng), num_clients, rng)


def _shards(labels: np.ndarray, num_clients: int, rng: np.random.Generator) -> Partition:
    """The examples by label, in contiguous shards of equal size, in random order."""
    shards = np.array_split(shuffled_sort(labels, rng), num_clients)
    return Partition.of([shards[i] for i in rng.permutation(num_clients)])


@partitions
def dual_dirichlet(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    alpha1: Positive | None = None,
    alpha2: Positive = 0.5,
    min_examples: Annotated[int, Range(1)] = 2,
) -> Partition:
    """One Dirichlet for the sizes of clients and one for their labels: FedCompass' second split.

    With w ~ Dir(alpha1/m 1_m) and k_i ~ Dir(alpha2 prior), client i gets the share
    w_i k_ic / sum_j w_j k_jc of class c. The prior is the labels' own distribution. If a client
    has fewer than `min_examples`, all is drawn again, up to 100 times; after that the draw that
    lacks fewest is repaired with random examples of the largest clients.

    Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client
    Devices Using a Computing Power-Aware Scheduler", ICLR 2024, Algorithm 5,
    https://arxiv.org/abs/2309.14675, which asks for no least size. Shares are computed from
    logarithms, so none is 0/0. Its code floors the parts and gives the remainders to the last
    client; here classes are cut at rounded cumulative sums.

    Args:
      labels: int[examples].
      num_clients: m.
      seed: of the draw.
      alpha1: concentration of sizes; None for m, as in the paper.
      alpha2: concentration of labels; a small one is heterogeneous.
      min_examples: what each client holds at least.

    Raises:
      ValueError: if there are fewer than `num_clients * min_examples` examples.
    """
    labels = require(labels, num_clients, min_examples)
    rng = np.random.default_rng(seed)
    _, classes, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    of_sizes = np.full(num_clients, (num_clients if alpha1 is None else alpha1) / num_clients)
    of_labels = np.tile(alpha2 * per_class / len(labels), (num_clients, 1))
    fewest = len(labels)
    for _ in range(REDRAWS):
        w, k = log_dirichlet(rng, of_sizes), log_dirichlet(rng, of_labels)
        drawn = divide(shares(w[:, None] + k), per_class)
        missing = np.maximum(min_examples - drawn.sum(axis=1), 0).sum()
        if missing < fewest:
            fewest, table = missing, drawn
        if not missing:
            break
    owners = deal(classes, table, rng)
    return gather(resize(owners, raised(table.sum(axis=1), min_examples), rng), num_clients, rng)
