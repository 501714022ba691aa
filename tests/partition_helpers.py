"""Partitions with options that suit seven labels, and what tests read from a partition."""

import numpy as np

from fedjax_algos.data import partitions

CASES = sorted(set(partitions) - {"natural"})  # whose first argument is no label
SEVEN = {  # options for seven labels
    "dirichlet_balanced": {"tries": 3},
    "pachinko": {"hierarchy": (0, 0, 1, 1, 2, 2, 2)},
}


def make(name, labels, num_clients, seed, **keywords):
    return partitions[name](labels, num_clients, seed, **(SEVEN.get(name, {}) | keywords))


def rows(partition):
    return np.split(partition.indices, partition.offsets[1:-1])


def histogram(labels, partition):
    """int[num_clients, num_classes]."""
    num_classes = max(labels) + 1
    return np.array([np.bincount(labels[row], minlength=num_classes) for row in rows(partition)])


def second_moment(counts, totals):
    """An unbiased estimate of E[p^2] from counts that are binomial(totals, p)."""
    return np.mean(counts * (counts - 1)) / np.mean(totals * (totals - 1))
