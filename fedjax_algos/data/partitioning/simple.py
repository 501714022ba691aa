"""Partitions without labels (IID, by quantity, natural), and Pachinko for a label hierarchy."""

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.core.checks import check_seed, check_whole
from fedjax_algos.core.options import Count, Positive
from fedjax_algos.data.partitioning import base
from fedjax_algos.data.partitioning.base import Partition, partitions

# The coarse label of each of CIFAR-100's fine labels, https://www.cs.toronto.edu/~kriz/cifar.html.
# fmt: off
CIFAR100_COARSE = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11,
    6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5,
    5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17,
    10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13,
    16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)
# fmt: on


@partitions.register
def iid(labels: np.ndarray, num_clients: int, seed: int) -> Partition:
    """Shuffles the examples and cuts them into parts whose sizes differ by at most one.

    Args:
      labels: [examples]; only their number is used.
      num_clients, seed: the number of clients N, and the seed of the shuffle.

    Raises:
      ValueError: if there are more clients than examples.
    """
    labels, rng = base.checked(labels, num_clients, seed)
    return Partition.of(np.array_split(rng.permutation(len(labels)), num_clients))


@partitions.register
def quantity(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    beta: Positive = 0.5,
    min_examples: Count = 2,
) -> Partition:
    """Draws the clients' sizes from Dir(beta 1_N), independently of the labels.

    A shuffle is cut at the rounded cumulative sums. Clients with fewer than `min_examples` then
    receive examples of the largest ones. A small beta gives most examples to few clients.

    Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022,
    https://arxiv.org/abs/2102.02079, draw again until every client has 10 examples. That may never
    end, so we repair small sizes instead.

    Args:
      labels: [examples]; only their number is used.
      num_clients, seed: the number of clients N, and the seed of the draw.
      beta: concentration, above 0; small values are heterogeneous.
      min_examples: the fewest examples of a client, at least 1.

    Raises:
      ValueError: if there are fewer than `num_clients * min_examples` examples.
    """
    labels, rng = base.checked(labels, num_clients, seed, min_examples)
    shares = base.renormalise(base.log_dirichlet(rng, np.full(num_clients, beta)))
    sizes = base.raise_to_minimum(base.divide_by_weights(shares, len(labels)), min_examples)
    return Partition.of(np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1]))


@partitions.register
def natural(
    users: np.ndarray, num_clients: int, seed: int, *, min_examples: Count = 1
) -> Partition:
    """Uses the data set's natural clients, sorted by name; examples keep their order.

    Natural clients with fewer than `min_examples` are left out. If more than `num_clients` remain,
    the seed draws some without replacement.

    Args:
      users: int or str[examples], the natural client of each example, in place of the labels.
      num_clients, seed: the number of clients N, and the seed of the choice.
      min_examples: the fewest examples of a client, at least 1.

    Raises:
      ValueError: if fewer than `num_clients` natural clients have `min_examples`.
    """
    users, _ = base.checked(users, 1, seed)
    _, owners, sizes = np.unique(users, return_inverse=True, return_counts=True)
    chosen = choose_clients(sizes, num_clients, seed, min_examples)
    assigned = np.flatnonzero(np.isin(owners, chosen))
    order = assigned[np.argsort(owners[assigned], kind="stable")]
    return Partition.of(np.split(order, np.cumsum(sizes[chosen])[:-1]))


def choose_clients(
    counts: np.ndarray, num_clients: int | None, seed: int, min_examples: int = 1
) -> np.ndarray:
    """Returns int64[num_clients], ascending: natural clients with at least `min_examples`."""
    check_whole("min_examples", min_examples)
    chosen = np.flatnonzero(counts >= min_examples)
    number = max(1, len(chosen)) if num_clients is None else num_clients
    check_whole("num_clients", number)
    found = f"only {len(chosen)} natural clients have at least {min_examples} examples"
    require(number <= len(chosen), f"{found}; use at most {len(chosen)} clients, not {number}")
    if number < len(chosen):
        check_seed(seed)
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, number, replace=False))
    return chosen


@partitions.register
def pachinko(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    root_alpha: Positive = 0.1,
    leaf_alpha: Positive = 10.0,
    hierarchy: tuple[int, ...] = CIFAR100_COARSE,
) -> Partition:
    """Gives each client a distribution over coarse labels, and over the fine labels of each.

    A client draws r ~ Dir(root_alpha 1) over the coarse labels and, for each of them,
    f ~ Dir(leaf_alpha 1) over its fine labels. For each of its examples it draws a coarse label
    by r, a fine label by f, and a random example of that label, without replacement. An exhausted
    fine label is removed from f, an exhausted coarse label from r, and the rest is renormalised.
    Clients draw one after another, so the last ones take what remains. Sizes differ by at most one.

    This is the allocation of TensorFlow Federated's CIFAR-100 with 500 clients of 100 examples, and
    the two defaults are documented there (Reddi et al., "Adaptive Federated Optimization", ICLR
    2021, https://arxiv.org/abs/2003.00295). Its split itself is a file and is not reproduced: the
    seed draws another one. The method is Li and McCallum's, "Pachinko Allocation", ICML 2006.

    Args:
      labels: int[examples], fine labels from 0.
      num_clients, seed: the number of clients N, and the seed of the draw.
      root_alpha: concentration over coarse labels, above 0; small values are heterogeneous.
      leaf_alpha: concentration over the fine labels of a coarse one, above 0.
      hierarchy: the coarse label of each fine label, whole numbers; CIFAR-100's by default.

    Raises:
      ValueError: for a hierarchy without an entry for each label, or more clients than examples.
    """
    labels, rng = base.checked(labels, num_clients, seed)
    low, high = labels.min(), labels.max()
    found = f"hierarchy has {len(hierarchy)} entries, but labels run from {low} to {high}"
    fits = labels.dtype.kind in "iu" and low >= 0 and int(high) == len(hierarchy) - 1
    require(fits, f"{found}; give whole labels from 0 and the coarse label of each one")
    _, coarse = np.unique(hierarchy, return_inverse=True)
    leaves = [np.flatnonzero(coarse == c) for c in range(coarse.max() + 1)]
    remaining = np.bincount(labels, minlength=len(hierarchy))
    base.check_table(num_clients, len(hierarchy))
    table = np.zeros((num_clients, len(hierarchy)), int)
    for row, size in zip(table, base.even_sizes(len(labels), num_clients), strict=True):
        r = base.log_dirichlet(rng, np.full(len(leaves), root_alpha))
        numbers = base.draw_class_counts(rng, size, r, np.bincount(coarse, remaining).astype(int))
        for c in np.flatnonzero(numbers):
            f = base.log_dirichlet(rng, np.full(len(leaves[c]), leaf_alpha))
            row[leaves[c]] = base.draw_class_counts(rng, numbers[c], f, remaining[leaves[c]])
        remaining -= row
    return base.partition_by_table(labels, table, rng)
