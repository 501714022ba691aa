"""The Pachinko allocation: two-level label distributions, for labels with a hierarchy."""

import numpy as np

from fedjax_algos.core.options import Positive
from fedjax_algos.data.partitioning.base import (
    Partition,
    check_labels,
    check_table,
    draw_class_counts,
    even_sizes,
    generator,
    log_dirichlet,
    partition_by_table,
    partitions,
)

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
def pachinko(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    root_alpha: Positive = 0.1,
    leaf_alpha: Positive = 10.0,
    hierarchy: tuple[int, ...] = CIFAR100_COARSE,
) -> Partition:
    """Each client has a distribution over coarse labels, and for each of them over its fine labels.

    A client draws r ~ Dir(root_alpha 1) over the coarse labels and, for each of them,
    f ~ Dir(leaf_alpha 1) over its fine labels. For each of its examples it draws a coarse label
    by r, a fine label by f, and a random example of that label, without replacement. An exhausted
    fine label is removed from f and an exhausted coarse label from r, which are renormalised.
    Clients draw one after another, so the last ones take what remains. Sizes differ by at most one.

    The allocation of TensorFlow Federated's CIFAR-100 of 500 clients with 100 examples each, which
    documents the two defaults (Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
    https://arxiv.org/abs/2003.00295). Its own split is a file and is not reproduced: the
    seed draws another one. The method is Li and McCallum's, "Pachinko Allocation", ICML 2006.

    Args:
      labels: int[examples], fine labels from 0.
      num_clients: N, the number of clients.
      seed: the seed of the draw.
      root_alpha: concentration over coarse labels, above 0; small values are heterogeneous.
      leaf_alpha: concentration over the fine labels of a coarse one, above 0.
      hierarchy: the coarse label of each fine label, as any whole numbers; by default that of
        CIFAR-100.

    Raises:
      ValueError: if the hierarchy does not have an entry for each label, or if there are more
        clients than examples.
    """
    labels = check_labels(labels, num_clients)
    low, high = labels.min(), labels.max()
    if labels.dtype.kind not in "iu" or low < 0 or int(high) != len(hierarchy) - 1:
        raise ValueError(
            f"hierarchy has {len(hierarchy)} entries, but labels run from {low} to {high}; "
            "give whole labels from 0 and the coarse label of each one"
        )
    rng = generator(seed)
    _, coarse = np.unique(hierarchy, return_inverse=True)
    leaves = [np.flatnonzero(coarse == c) for c in range(coarse.max() + 1)]
    remaining = np.bincount(labels, minlength=len(hierarchy))
    check_table(num_clients, len(hierarchy))
    table = np.zeros((num_clients, len(hierarchy)), int)
    for row, size in zip(table, even_sizes(len(labels), num_clients), strict=True):
        r = log_dirichlet(rng, np.full(len(leaves), root_alpha))
        numbers = draw_class_counts(rng, size, r, np.bincount(coarse, remaining).astype(int))
        for c in np.flatnonzero(numbers):
            f = log_dirichlet(rng, np.full(len(leaves[c]), leaf_alpha))
            row[leaves[c]] = draw_class_counts(rng, numbers[c], f, remaining[leaves[c]])
        remaining -= row
    return partition_by_table(labels, table, rng)
