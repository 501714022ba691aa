"""Partitions that look at no label: IID, by quantity, and by a data set's own clients."""

from typing import Annotated

import numpy as np

from fedjax_algos.core.registry import Positive, Range
from fedjax_algos.data.partitioning.base import (
    Partition,
    divide,
    log_dirichlet,
    partitions,
    raised,
    require,
    shares,
)


@partitions
def iid(labels: np.ndarray, num_clients: int, seed: int) -> Partition:
    """A shuffle, cut into parts whose sizes differ by at most one."""
    require(labels, num_clients)
    order = np.random.default_rng(seed).permutation(len(labels))
    return Partition.of(np.array_split(order, num_clients))


@partitions
def quantity(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    beta: Positive = 0.5,
    min_examples: Annotated[int, Range(1)] = 2,
) -> Partition:
    """Sizes are a draw of Dir(beta 1_N) and have nothing to do with labels.

    A shuffle is cut at the rounded cumulative sums. The largest clients then fill up those with
    fewer than `min_examples`. A small beta gives most examples to few clients.

    Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022,
    https://arxiv.org/abs/2102.02079, draw again until every client has 10 examples, which need not
    end; here small sizes are repaired.

    Args:
      labels: [examples]; only their number is used.
      num_clients: N.
      seed: of the draw.
      beta: concentration.
      min_examples: what each client holds at least.

    Raises:
      ValueError: if there are fewer than `num_clients * min_examples` examples.
    """
    require(labels, num_clients, min_examples)
    rng = np.random.default_rng(seed)
    sizes = divide(shares(log_dirichlet(rng, np.full(num_clients, beta))), len(labels))
    order = rng.permutation(len(labels))
    return Partition.of(np.split(order, np.cumsum(raised(sizes, min_examples))[:-1]))


@partitions
def natural(
    users: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    min_examples: Annotated[int, Range(1)] = 1,
) -> Partition:
    """One client for each user, in the order of their names; examples stay in their order.

    If there are more users than clients, the seed chooses among them without replacement, and the
    examples of the others are left out. Users with fewer than `min_examples` are never chosen.

    Args:
      users: int or str[examples], whose each example is. They take the place of labels.
      num_clients: N.
      seed: of the choice.
      min_examples: what a user must have to be a client.

    Raises:
      ValueError: if fewer than `num_clients` users have `min_examples`.
    """
    users = require(users, 1)
    if num_clients < 1:
        raise ValueError(f"num_clients={num_clients} is out of range; give at least 1")
    _, owners, sizes = np.unique(users, return_inverse=True, return_counts=True)
    able = np.flatnonzero(sizes >= min_examples)
    if num_clients > len(able):
        raise ValueError(
            f"{num_clients} clients are more than the {len(able)} users with at least "
            f"{min_examples} examples; use at most {len(able)} clients"
        )
    chosen = able
    if num_clients < len(able):
        rng = np.random.default_rng(seed)
        chosen = np.sort(rng.choice(able, num_clients, replace=False))
    kept = np.flatnonzero(np.isin(owners, chosen))
    order = kept[np.argsort(owners[kept], kind="stable")]
    return Partition.of(np.split(order, np.cumsum(sizes[chosen])[:-1]))
