"""Partitions by labels, Dirichlet ones and those of some classes: each rule, each distribution."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_helpers import histogram, make, rows, second_moment

from fedjax_algos.data.partitioning import base, by_labels


@pytest.mark.parametrize("name", ["dirichlet_balanced", "dirichlet_classes"])
def test_alpha_0_cuts_shards_of_sorted_labels_in_random_order(name):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
    table = histogram(labels, make(name, labels, 20, 1, alpha=0.0))
    assert (table.max(axis=1) == 30).all()
    assert ((table > 0).sum(axis=0) == 2).all()
    assert (np.diff(table.argmax(axis=1)) < 0).any()
    labels = np.array([1, 0, 1, 0, 2, 0, 1])  # sorted 000 1112: shards 000, 11, 12
    shards = [sorted(labels[row]) for row in rows(make(name, labels, 3, 0, alpha=0.0))]
    assert sorted(shards) == [[0, 0, 0], [1, 1], [1, 2]]


def test_balanced_gives_nothing_to_full_clients():
    per_class = np.array([90, 10, 50, 50])
    for seed in range(20):
        table = by_labels.draw_balanced_table(per_class, 5, 0.3, np.random.default_rng(seed))
        np.testing.assert_array_equal(table.sum(axis=0), per_class)
        sizes = np.cumsum(table, axis=1)
        assert not table[:, 1:][sizes[:, :-1] >= 40].any()


def test_balanced_uses_the_most_even_table_and_moves_the_surplus():
    labels = np.repeat(np.arange(6), 100)
    rng = np.random.default_rng(4)
    tries = [by_labels.draw_balanced_table(np.full(6, 100), 10, 0.5, rng) for _ in range(30)]
    surplus = [np.maximum(table.sum(axis=1) - 60, 0).sum() for table in tries]
    best = int(np.argmin([table.sum(axis=1).std() for table in tries]))
    result = histogram(labels, make("dirichlet_balanced", labels, 10, 4, alpha=0.5, tries=30))
    distances = [np.abs(result - table).sum() for table in tries]
    assert distances[best] <= 2 * surplus[best]
    assert np.argmin(distances) == best


def test_dirichlet_classes_draws_from_alpha_times_the_prior():
    """No class is exhausted for the first clients: E[q_c^2] = p (alpha p + 1) / (alpha + 1)."""
    labels, alpha = np.repeat([0, 1], [1000, 3000]), 2.0
    made = (make("dirichlet_classes", labels, 40, seed, alpha=alpha) for seed in range(100))
    counts = np.concatenate([histogram(labels, partition)[:8] for partition in made])
    prior = np.array([0.25, 0.75])
    np.testing.assert_allclose(counts.mean(axis=0) / 100, prior, atol=0.03)
    for c, p in enumerate(prior):
        expected = p * (alpha * p + 1) / (alpha + 1)
        assert second_moment(counts[:, c], np.array([100])) == pytest.approx(expected, abs=0.03)


@pytest.mark.all
def test_label_shares_follow_the_formula_of_both_draws():
    """Mean squares of shares agree with the formula and NumPy's Dirichlet, for an unequal prior."""
    labels, m = np.repeat([0, 1], [1000, 3000]), 4
    options = {"alpha2": 3.0, "min_examples": 1}
    made = [make("dual_dirichlet", labels, m, seed, **options) for seed in range(400)]
    tables = np.array([histogram(labels, partition) for partition in made])
    actual = ((tables / [1000, 3000]) ** 2).mean(axis=(0, 1))
    rng = np.random.default_rng(1)
    sizes, of_labels = rng.dirichlet(np.ones(m), 40_000), rng.dirichlet([0.75, 2.25], (40_000, m))
    shares = sizes[:, :, None] * of_labels
    expected = ((shares / shares.sum(axis=1, keepdims=True)) ** 2).mean(axis=(0, 1))
    np.testing.assert_allclose(actual, expected, rtol=0.06)
    assert expected[0] > expected[1] + 0.02


@pytest.mark.parametrize("alpha2", [1e-300, 1e-6, 1e-2])
def test_dual_dirichlet_never_divides_0_by_0(alpha2):
    labels = np.random.default_rng(0).integers(0, 5, 300)
    partition = make("dual_dirichlet", labels, 30, 0, alpha1=1e-3, alpha2=alpha2)
    assert sorted(partition.indices) == list(range(300))
    assert partition.counts().min() >= 2


def test_dual_dirichlet_draws_again_before_it_repairs():
    """A draw with enough examples for all clients is used unchanged; others are repaired."""
    labels = np.repeat(np.arange(10), 100)

    def sizes(seed, fewest):
        return make("dual_dirichlet", labels, 10, seed, min_examples=fewest).counts()

    seeds = [seed for seed in range(60) if sizes(seed, 1).min() < 15]
    assert len(seeds) > 10
    redrawn = np.array([sizes(seed, 15) for seed in seeds])
    assert redrawn.min() == 15
    assert (redrawn == 15).sum(axis=1).mean() < 1
    assert set(sizes(0, 100)) == {100}


def test_slots_and_parts():
    """All are equal for the paper's 50 devices with 2 of 10, or 20 of 100 classes, as in FedLGA."""
    for num_classes, per_class, classes, size in ((10, 6000, 2, 1200), (100, 500, 20, 1000)):
        labels = np.repeat(np.arange(num_classes), per_class)
        table = histogram(labels, make("classes_per_client", labels, 50, 0, classes=classes))
        assert ((table > 0).sum(axis=1) == classes).all()
        assert ((table > 0).sum(axis=0) == 10).all()
        assert (table.sum(axis=1) == size).all()
    labels = np.repeat([0, 1, 2], [40, 50, 61])  # others differ by at most one
    table = histogram(labels, make("classes_per_client", labels, 5, 0))
    assert sorted((table > 0).sum(axis=0)) == [3, 3, 4]
    assert all(np.ptp(column[column > 0]) <= 1 for column in table.T)


def test_duplicates_are_exchanged_even_if_no_single_exchange_suffices():
    """Client 0 has class 1 twice, and client 1 has only class 0, which client 0 also has."""
    slots = np.array([[1, 2, 0], [3, 0, 0], [0, 1, 2], [0, 1, 2]])
    repaired = by_labels.exchange_duplicates(slots, np.random.default_rng(0))
    np.testing.assert_array_equal(repaired, np.ones((4, 3)))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(1, 8), st.integers(1, 8))
def test_exchanges_always_end(seed, num_clients, num_classes, classes):
    classes = min(classes, num_classes)
    rng = np.random.default_rng(seed)
    each = base.even_sizes(num_clients * classes, num_classes)
    class_of_slot = rng.permutation(np.repeat(np.arange(num_classes), each))
    slots = np.zeros((num_clients, num_classes), int)
    np.add.at(slots, (np.repeat(np.arange(num_clients), classes), class_of_slot), 1)
    repaired = by_labels.exchange_duplicates(slots, rng)
    assert repaired.max() == 1
    np.testing.assert_array_equal(repaired.sum(axis=0), slots.sum(axis=0))
    np.testing.assert_array_equal(repaired.sum(axis=1), slots.sum(axis=1))


@pytest.mark.all
def test_neither_classes_nor_clients_are_preferred():
    """Pairs of classes, a client's classes and its one remaining example are equally frequent."""
    labels = np.repeat(np.arange(4), 51)
    pairs, holds, remainders = Counter(), np.zeros((10, 4)), np.zeros(10)
    for seed in range(300):
        table = histogram(labels, make("classes_per_client", labels, 10, seed))
        pairs.update(tuple(int(c) for c in np.flatnonzero(row)) for row in table)
        holds += table > 0
        remainders += (table == 11).sum(axis=1)  # 51 examples for 5 clients
    assert set(pairs) == set(itertools.combinations(range(4), 2))
    assert all(abs(n / (300 * 10) - 1 / 6) < 0.03 for n in pairs.values())
    np.testing.assert_allclose(holds / 300, 0.5, atol=0.12)
    np.testing.assert_allclose(remainders / 300, 0.4, atol=0.14)


def test_class_partition_has_the_numbers_of_classes_of_the_code():
    labels = np.repeat(np.arange(10), 200)
    few = {1: (10, 10), 2: (7, 8), 3: (6, 8), 4: (5, 7), 5: (5, 6), 6: (4, 6), 7: (4, 5)}
    for clients, (low, high) in (few | dict.fromkeys((8, 10, 20), (3, 5))).items():
        made = (make("class_partition", labels, clients, s) for s in range(4 + 16 // clients))
        numbers = [(histogram(labels, partition) > 0).sum(axis=1) for partition in made]
        assert set(np.concatenate(numbers)) == set(range(low, high + 1))


def test_holders_are_repaired_when_no_draw_has_all_classes():
    """Five clients with at most two of ten classes: every class must have exactly one holder."""
    for seed, low in itertools.product(range(20), (1, 2)):
        holds = by_labels.draw_class_holders(5, 10, low, 2, np.random.default_rng(seed))
        assert (holds.sum(axis=0) == 1).all()
        assert (holds.sum(axis=1) == 2).all()


@pytest.mark.all
def test_parts_of_a_class_are_absolute_normals():
    labels = np.zeros(10_000, int)
    options = {"min_classes": 1, "max_classes": 1, "mean": 4.0}
    made = [make("class_partition", labels, 2, s, deviation=3.0, **options) for s in range(200)]
    parts = np.array([partition.counts()[0] for partition in made]) / 1e4
    lengths = np.abs(np.random.default_rng(0).normal(4, 3, (200_000, 2)))
    expected = lengths[:, 0] / lengths.sum(axis=1)
    assert parts.mean() == pytest.approx(0.5, abs=0.04)
    assert parts.std() == pytest.approx(expected.std(), rel=0.1)
    even = make("class_partition", labels, 8, 0, deviation=0.0, **options)
    assert set(even.counts()) == {1250}
    small = {"max_classes": 2, "min_classes": 1, "min_examples": 3}
    assert set(make("class_partition", np.arange(60) % 2, 20, 0, **small).counts()) == {3}


NAMES = "dirichlet_balanced dirichlet_classes dual_dirichlet classes_per_client class_partition"


@pytest.mark.parametrize("name", NAMES.split())
def test_a_table_that_does_not_fit_into_memory_is_refused(name, monkeypatch):
    monkeypatch.setattr("fedjax_algos.base.limits.host_memory", lambda: 1000)
    with pytest.raises(ValueError, match="a table of 20 clients and 10 classes would need"):
        make(name, np.arange(200) % 10, 20, 0)
