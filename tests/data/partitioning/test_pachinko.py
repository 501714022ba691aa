"""The Pachinko allocation: its hierarchy, its two distributions, and exhausted labels."""

from collections import Counter

import numpy as np
import pytest
from partition_helpers import histogram, make, second_moment

from fedjax_algos.data import partitions
from fedjax_algos.data.partitioning.simple import CIFAR100_COARSE


def test_cifar100_has_twenty_coarse_labels_of_five():
    assert Counter(CIFAR100_COARSE) == dict.fromkeys(range(20), 5)
    aquatic_mammals = [4, 30, 55, 72, 95]  # beaver, dolphin, otter, seal, whale
    assert [i for i, coarse in enumerate(CIFAR100_COARSE) if coarse == 0] == aquatic_mammals


def test_pachinko_of_cifar100():
    """TFF's sizes: 500 clients with 100 examples; a client's coarse labels are few."""
    labels = np.repeat(np.arange(100), 500)
    partition = partitions["pachinko"](labels, 500, 0)
    assert set(partition.counts()) == {100}
    table = histogram(labels, partition)
    coarse = np.zeros((500, 20), int)
    np.add.at(coarse.T, np.array(CIFAR100_COARSE), table.T)
    first = coarse[:250] / 100
    assert (first.max(axis=1)).mean() > 0.4
    assert second_moment(coarse[:100], np.array([100])) == pytest.approx(1.1 / (20 * 3), rel=0.15)


def first_clients(**options):
    """The labels of the first three of 20 clients, for whom no label is exhausted."""
    labels = np.repeat(np.arange(8), 250)
    hierarchy = (5, 5, 7, 7, -1, -1, 0, 0)
    made = [make("pachinko", labels, 20, s, hierarchy=hierarchy, **options) for s in range(100)]
    return np.concatenate([histogram(labels, partition)[:3] for partition in made])


def test_pachinko_is_dirichlet_at_both_levels():
    counts = first_clients(root_alpha=0.3, leaf_alpha=5.0).reshape(-1, 4, 2).sum(axis=2)
    expected = 1.3 / (4 * (4 * 0.3 + 1))
    assert second_moment(counts, np.array([100])) == pytest.approx(expected, rel=0.06)
    counts = first_clients(root_alpha=1e6, leaf_alpha=1.0).reshape(-1, 4, 2)
    coarse = counts.sum(axis=2)
    assert second_moment(coarse, np.array([100])) == pytest.approx(1 / 16, rel=0.06)
    assert second_moment(counts[..., 0], coarse) == pytest.approx(1 / 3, rel=0.06)


def test_pachinko_stays_in_the_coarse_label_when_a_fine_one_is_exhausted():
    """Client 0 draws one coarse label: its rare fine label is exhausted, the common one is not."""
    labels = np.repeat([0, 1, 2, 3], [2, 98, 2, 98])
    for seed in range(20):
        made = make("pachinko", labels, 2, seed, hierarchy=(0, 0, 1, 1), root_alpha=1e-9)
        table = histogram(labels, made)
        assert sorted(table.tolist()) == [[0, 0, 2, 98], [2, 98, 0, 0]]


def test_pachinko_continues_with_another_coarse_label_when_one_is_exhausted():
    labels = np.repeat([0, 1, 2], [30, 10, 60])  # coarse 0: 40, coarse 1: 60
    for seed in range(20):
        made = make("pachinko", labels, 2, seed, hierarchy=(0, 0, 1), root_alpha=1e-9)
        first, second = histogram(labels, made)
        assert first.tolist() in ([30, 10, 10], [0, 0, 50])
        assert (first + second).tolist() == [30, 10, 60]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.arange(10), "hierarchy has 7 entries, but labels run from 0 to 9; give whole labels"),
        (np.arange(6), "hierarchy has 7 entries, but labels run from 0 to 5"),
        (np.arange(-1, 7), "labels run from -1 to 6"),
        (np.arange(7.0), "labels run from 0.0 to 6.0; give whole labels"),
    ],
)
def test_pachinko_needs_a_coarse_label_for_each_label(labels, message):
    with pytest.raises(ValueError, match=message):
        make("pachinko", labels, 2, 0)
