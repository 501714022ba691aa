"""Partitions of some classes for each client: FedLGA's and FedCompass'."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_helpers import histogram, make

from fedjax_algos.data.partitioning.base import even_sizes
from fedjax_algos.data.partitioning.classes import draw_class_holders, exchange_duplicates


@pytest.mark.parametrize(
    ("num_classes", "per_class", "classes", "size"), [(10, 6000, 2, 1200), (100, 500, 20, 1000)]
)
def test_fedlga_devices(num_classes, per_class, classes, size):
    """The paper's 50 devices with 2 of 10, or 20 of 100 classes: all equal."""
    labels = np.repeat(np.arange(num_classes), per_class)
    table = histogram(labels, make("classes_per_client", labels, 50, 0, classes=classes))
    assert ((table > 0).sum(axis=1) == classes).all()
    assert ((table > 0).sum(axis=0) == 10).all()
    assert (table.sum(axis=1) == size).all()


def test_slots_and_parts_differ_by_at_most_one():
    labels = np.repeat([0, 1, 2], [40, 50, 61])
    table = histogram(labels, make("classes_per_client", labels, 5, 0))
    assert sorted((table > 0).sum(axis=0)) == [3, 3, 4]
    for column in table.T:
        assert np.ptp(column[column > 0]) <= 1


def test_duplicates_are_exchanged_even_if_no_single_exchange_suffices():
    """Client 0 has class 1 twice, and client 1 has only class 0, which client 0 also has."""
    slots = np.array([[1, 2, 0], [3, 0, 0], [0, 1, 2], [0, 1, 2]])
    repaired = exchange_duplicates(slots, np.random.default_rng(0))
    np.testing.assert_array_equal(repaired, np.ones((4, 3)))


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(1, 8), st.integers(1, 8))
def test_exchanges_always_end(seed, num_clients, num_classes, classes):
    classes = min(classes, num_classes)
    rng = np.random.default_rng(seed)
    each = even_sizes(num_clients * classes, num_classes)
    class_of_slot = rng.permutation(np.repeat(np.arange(num_classes), each))
    slots = np.zeros((num_clients, num_classes), int)
    np.add.at(slots, (np.repeat(np.arange(num_clients), classes), class_of_slot), 1)
    repaired = exchange_duplicates(slots, rng)
    assert repaired.max() == 1
    np.testing.assert_array_equal(repaired.sum(axis=0), slots.sum(axis=0))
    np.testing.assert_array_equal(repaired.sum(axis=1), slots.sum(axis=1))


def test_all_pairs_of_classes_are_about_equally_frequent():
    labels = np.repeat(np.arange(4), 500)
    pairs = Counter()
    for seed in range(60):
        table = histogram(labels, make("classes_per_client", labels, 40, seed))
        pairs.update(tuple(int(c) for c in np.flatnonzero(row)) for row in table)
    assert set(pairs) == set(itertools.combinations(range(4), 2))
    assert all(abs(n / (60 * 40) - 1 / 6) < 0.03 for n in pairs.values())


def test_no_client_is_preferred():
    """All clients hold each class, and its one remaining example, equally often."""
    labels = np.repeat(np.arange(4), 51)
    holds, remainders = np.zeros((10, 4)), np.zeros(10)
    for seed in range(300):
        table = histogram(labels, make("classes_per_client", labels, 10, seed))
        holds += table > 0
        remainders += (table == 11).sum(axis=1)  # 51 examples for 5 clients
    np.testing.assert_allclose(holds / 300, 0.5, atol=0.12)
    np.testing.assert_allclose(remainders / 300, 0.4, atol=0.14)


# class_partition


@pytest.mark.parametrize(
    ("num_clients", "low", "high"),
    [(1, 10, 10), (2, 7, 8), (3, 6, 8), (4, 5, 7), (5, 5, 6), (6, 4, 6), (7, 4, 5), (8, 3, 5),
     (10, 3, 5), (20, 3, 5)],
)  # fmt: skip
def test_class_partition_has_the_numbers_of_classes_of_the_code(num_clients, low, high):
    labels = np.repeat(np.arange(10), 2000)
    seeds = range(8 if num_clients > 3 else 20)
    made = (make("class_partition", labels, num_clients, seed) for seed in seeds)
    numbers = [(histogram(labels, partition) > 0).sum(axis=1) for partition in made]
    assert set(np.concatenate(numbers)) == set(range(low, high + 1))


def test_numbers_of_classes_are_uniform_and_classes_too():
    drawn = [draw_class_holders(50, 10, 3, 5, np.random.default_rng(s)) for s in range(60)]
    holds = np.concatenate(drawn)
    frequencies = np.bincount(holds.sum(axis=1))[3:] / len(holds)
    np.testing.assert_allclose(frequencies, [1 / 3] * 3, atol=0.04)
    np.testing.assert_allclose(holds.mean(axis=0), [0.4] * 10, atol=0.04)


def test_holders_are_repaired_when_no_draw_has_all_classes():
    """Five clients with at most two of ten classes: every class must have exactly one holder."""
    for seed, low in itertools.product(range(20), (1, 2)):
        holds = draw_class_holders(5, 10, low, 2, np.random.default_rng(seed))
        assert (holds.sum(axis=0) == 1).all()
        assert (holds.sum(axis=1) == 2).all()


def test_parts_of_a_class_are_absolute_normals():
    labels = np.zeros(10_000, int)
    options = {"min_classes": 1, "max_classes": 1}
    parts = [
        make("class_partition", labels, 2, seed, mean=4.0, deviation=3.0, **options).counts()[0]
        for seed in range(200)
    ]
    lengths = np.abs(np.random.default_rng(0).normal(4, 3, (200_000, 2)))
    expected = lengths[:, 0] / lengths.sum(axis=1)
    assert np.mean(parts) / 1e4 == pytest.approx(0.5, abs=0.04)
    assert np.std(parts) / 1e4 == pytest.approx(expected.std(), rel=0.1)
    even = make("class_partition", labels, 8, 0, deviation=0.0, **options)
    assert set(even.counts()) == {1250}


def test_class_partition_fills_small_clients():
    labels = np.arange(60) % 2
    counts = make("class_partition", labels, 20, 0, max_classes=2, min_classes=1, min_examples=3)
    assert set(counts.counts()) == {3}
