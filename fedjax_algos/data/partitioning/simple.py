"""Partitions that do not use labels: IID, by quantity, and by the natural clients of a data set."""

import numpy as np

from fedjax_algos.core.checks import check_whole
from fedjax_algos.core.options import Count, Positive
from fedjax_algos.data.partitioning.base import (
    Partition,
    check_labels,
    divide_by_weights,
    generator,
    log_dirichlet,
    partitions,
    raise_to_minimum,
    renormalise,
)


@partitions.register
def iid(labels: np.ndarray, num_clients: int, seed: int) -> Partition:
    """A shuffle, cut into parts whose sizes differ by at most one.

    Args:
      labels: [examples]; only their number is used.
      num_clients: N, the number of clients.
      seed: the seed of the shuffle.

    Raises:
      ValueError: if there are more clients than examples.
    """
    check_labels(labels, num_clients)
    order = generator(seed).permutation(len(labels))
    return Partition.of(np.array_split(order, num_clients))


@partitions.register
def quantity(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    beta: Positive = 0.5,
    min_examples: Count = 2,
) -> Partition:
    """Sizes are a draw of Dir(beta 1_N) and independent of the labels.

    A shuffle is cut at the rounded cumulative sums. Clients with fewer than `min_examples` then
    receive examples of the largest ones. A small beta gives most examples to few clients.

    Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022,
    https://arxiv.org/abs/2102.02079, draw again until every client has 10 examples, which may never
    end; here small sizes are repaired.

    Args:
      labels: [examples]; only their number is used.
      num_clients: N, the number of clients.
      seed: the seed of the draw.
      beta: concentration, above 0; small values are heterogeneous.
      min_examples: the fewest examples of a client, at least 1.

    Raises:
      ValueError: if there are fewer than `num_clients * min_examples` examples.
    """
    check_labels(labels, num_clients, min_examples)
    rng = generator(seed)
    shares = renormalise(log_dirichlet(rng, np.full(num_clients, beta)))
    sizes = raise_to_minimum(divide_by_weights(shares, len(labels)), min_examples)
    return Partition.of(np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1]))


@partitions.register
def natural(
    users: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    min_examples: Count = 1,
) -> Partition:
    """The data set's natural clients, sorted by name; examples keep their order.

    If there are more natural clients than `num_clients`, the seed chooses among them without
    replacement, and the examples of the others are left out. Natural clients with fewer than
    `min_examples` are never chosen.

    Args:
      users: int or str[examples], the natural client of each example, in place of the labels.
      num_clients: N, the number of clients.
      seed: the seed of the choice.
      min_examples: the fewest examples of a client, at least 1.

    Raises:
      ValueError: if fewer than `num_clients` natural clients have `min_examples`.
    """
    users = check_labels(users, 1)
    _, owners, sizes = np.unique(users, return_inverse=True, return_counts=True)
    chosen = choose_clients(sizes, num_clients, seed, min_examples)
    assigned = np.flatnonzero(np.isin(owners, chosen))
    order = assigned[np.argsort(owners[assigned], kind="stable")]
    return Partition.of(np.split(order, np.cumsum(sizes[chosen])[:-1]))


def choose_clients(
    counts: np.ndarray, num_clients: int | None, seed: int, min_examples: int = 1
) -> np.ndarray:
    """int64[num_clients]: the natural clients that are chosen by their counts, in ascending order.

    `None` chooses all of those with `min_examples`; a smaller number is drawn by the seed.
    """
    check_whole("min_examples", min_examples)
    chosen = np.flatnonzero(counts >= min_examples)
    number = max(1, len(chosen)) if num_clients is None else num_clients
    check_whole("num_clients", number)
    if number > len(chosen):
        raise ValueError(
            f"{number} clients are more than the {len(chosen)} natural clients with at least "
            f"{min_examples} examples; use at most {len(chosen)} clients"
        )
    if number < len(chosen):
        chosen = np.sort(generator(seed).choice(chosen, number, replace=False))
    return chosen
