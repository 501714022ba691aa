"""Partitions by quantity and by natural clients, and the Pachinko allocation."""

from collections import Counter

import numpy as np
import pytest
from partition_helpers import histogram, make, rows, second_moment

import fedjax_algos as fa
from fedjax_algos.data import partitions
from fedjax_algos.data.partitioning.simple import CIFAR100_COARSE


def test_quantity_repairs_small_clients():
    assert set(make("quantity", np.zeros(50), 10, 0, beta=1e-6, min_examples=5).counts()) == {5}
    counts = make("quantity", np.zeros(500), 10, 0, beta=1e-6, min_examples=5).counts()
    assert sorted(counts) == [5] * 9 + [455]


def test_natural_takes_natural_clients_in_order():
    users = np.array(["eve", "bob", "eve", "ann", "bob", "eve"])
    partition = partitions["natural"](users, 3, 0)
    assert [row.tolist() for row in rows(partition)] == [[3], [1, 4], [0, 2, 5]]
    assert partitions["natural"](users, 3, 9).digest() == partition.digest()
    large = partitions["natural"](users, 2, 0, min_examples=2)
    assert [row.tolist() for row in rows(large)] == [[1, 4], [0, 2, 5]]
    assert fa.federate({"x": np.arange(6)}, large).num_clients == 2


@pytest.mark.all
def test_natural_chooses_clients_uniformly_by_the_seed():
    users = np.repeat(np.arange(10) * 7 - 3, np.arange(1, 11))
    chosen = Counter()
    for seed in range(500):
        partition = partitions["natural"](users, 4, seed)
        order = [int(name) for row in rows(partition) for name in set(users[row])]
        assert order == sorted(set(order))
        assert [np.sum(users == name) for name in order] == list(partition.counts())
        chosen.update(order)
    assert all(abs(n / 500 - 0.4) < 0.09 for n in chosen.values())


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


@pytest.mark.all
def test_pachinko_is_dirichlet_at_both_levels():
    labels, hierarchy = np.repeat(np.arange(8), 250), (5, 5, 7, 7, -1, -1, 0, 0)

    def first_clients(**options):
        """The labels of the first three of 20 clients, for whom no label is exhausted."""
        made = [make("pachinko", labels, 20, s, hierarchy=hierarchy, **options) for s in range(100)]
        tables = [histogram(labels, partition)[:3] for partition in made]
        return np.concatenate(tables).reshape(-1, 4, 2)

    counts = first_clients(root_alpha=0.3, leaf_alpha=5.0).sum(axis=2)
    expected = 1.3 / (4 * (4 * 0.3 + 1))
    assert second_moment(counts, np.array([100])) == pytest.approx(expected, rel=0.06)
    counts = first_clients(root_alpha=1e6, leaf_alpha=1.0)
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
