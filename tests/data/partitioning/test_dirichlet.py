"""Dirichlet partitions: each rule by hand, and each distribution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_helpers import histogram, make, rows, second_moment

from fedjax_algos.data import partitions
from fedjax_algos.data.partitioning.dirichlet import draw_balanced_table


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.floats(1e-4, 1e3), st.integers(1, 20), st.integers(0, 99))
def test_dirichlet_repairs_small_clients(label_seed, alpha, min_examples, seed):
    labels = np.random.default_rng(label_seed).integers(0, 7, 400)
    partition = partitions["dirichlet"](labels, 20, seed, alpha=alpha, min_examples=min_examples)
    assert partition.counts().min() >= min_examples
    assert sorted(partition.indices) == list(range(len(labels)))


def test_dirichlet_shares_are_dirichlet():
    """A client's share of a class has mean 1/N and variance (N - 1) / (N^2 (N alpha + 1))."""
    num_clients, alpha, labels = 5, 0.5, np.zeros(1000, int)
    counts = [
        partitions["dirichlet"](labels, num_clients, seed, alpha=alpha, min_examples=1).counts()
        for seed in range(600)
    ]
    shares = np.array(counts) / 1000
    variance = (num_clients - 1) / (num_clients**2 * (num_clients * alpha + 1))
    assert shares.mean() == pytest.approx(1 / num_clients, abs=1e-12)
    assert shares.var() == pytest.approx(variance, rel=0.05)


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


# GHBM's two splits


def test_balanced_gives_nothing_to_full_clients():
    per_class = np.array([90, 10, 50, 50])
    for seed in range(20):
        table = draw_balanced_table(per_class, 5, 0.3, np.random.default_rng(seed))
        np.testing.assert_array_equal(table.sum(axis=0), per_class)
        sizes = np.cumsum(table, axis=1)
        assert not table[:, 1:][sizes[:, :-1] >= 40].any()


def test_balanced_first_class_has_dirichlet_shares():
    shares = [
        draw_balanced_table(np.array([1000, 9000]), 5, 0.5, np.random.default_rng(seed))[:, 0]
        / 1000
        for seed in range(800)
    ]
    assert np.var(shares) == pytest.approx(4 / (25 * 3.5), rel=0.05)


def test_balanced_uses_the_most_even_table_and_moves_the_surplus():
    labels = np.repeat(np.arange(6), 100)
    rng = np.random.default_rng(4)
    tries = [draw_balanced_table(np.full(6, 100), 10, 0.5, rng) for _ in range(30)]
    surplus = [np.maximum(table.sum(axis=1) - 60, 0).sum() for table in tries]
    best = int(np.argmin([table.sum(axis=1).std() for table in tries]))
    result = histogram(labels, make("dirichlet_balanced", labels, 10, 4, alpha=0.5, tries=30))
    distances = [np.abs(result - table).sum() for table in tries]
    assert distances[best] <= 2 * surplus[best]
    assert np.argmin(distances) == best


def test_large_alpha_is_iid():
    """alpha = 10,000: the form in the code is nearly even; the form in the paper's text has
    multinomial noise, and its last clients take what remains."""
    labels = np.repeat(np.arange(10), 1000)
    even = histogram(labels, make("dirichlet_balanced", labels, 20, 0, alpha=1e4))
    assert np.abs(even - 50).max() <= 4
    noisy = histogram(labels, make("dirichlet_classes", labels, 20, 0, alpha=1e4))[:-3]
    assert np.abs(noisy - 50).max() < 30
    assert noisy[:10].std() == pytest.approx(np.sqrt(500 * 0.1 * 0.9), rel=0.25)


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_balanced", "dirichlet_classes"])
def test_small_alpha_is_heterogeneous(name):
    """The share of a client's most frequent class."""
    labels = np.repeat(np.arange(10), 500)

    def purity(alpha):
        table = histogram(labels, make(name, labels, 20, 0, alpha=alpha))
        return (table.max(axis=1) / table.sum(axis=1)).mean()

    low, middle, high = purity(0.1), purity(1.0), purity(100.0)
    assert low > 0.5
    assert low > middle + 0.1
    assert middle > high + 0.1


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


@pytest.mark.parametrize(("alpha1", "concentration"), [(None, 1.0), (10.0, 2.0)])
def test_sizes_follow_the_first_dirichlet(alpha1, concentration):
    """With equal label distributions the sizes are w ~ Dir(alpha1 / m), by default of ones."""
    m, labels = 5, np.repeat([0, 1], [800, 1200])
    made = [
        make("dual_dirichlet", labels, m, s, alpha1=alpha1, alpha2=1e7, min_examples=1)
        for s in range(600)
    ]
    shares = np.array([p.counts() for p in made]) / 2000
    assert shares.var() == pytest.approx((m - 1) / (m**2 * (m * concentration + 1)), rel=0.06)
    table = histogram(labels, made[0])
    np.testing.assert_allclose(table[:, 0] / table.sum(axis=1), 0.4, atol=0.02)


def test_label_shares_follow_the_formula_of_both_draws():
    """Mean squares of shares agree with the formula and NumPy's Dirichlet, for an unequal prior."""
    labels, m = np.repeat([0, 1], [1000, 3000]), 4
    tables = [
        histogram(labels, make("dual_dirichlet", labels, m, s, alpha2=3.0, min_examples=1))
        for s in range(400)
    ]
    actual = ((np.array(tables) / [1000, 3000]) ** 2).mean(axis=(0, 1))
    rng = np.random.default_rng(1)
    w = rng.dirichlet(np.ones(m), 40_000)
    k = rng.dirichlet([0.75, 2.25], (40_000, m))
    shares = w[:, :, None] * k
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
    seeds = [s for s in range(60) if make("dual_dirichlet", labels, 10, s, min_examples=1)
             .counts().min() < 15]  # fmt: skip
    assert len(seeds) > 10
    redrawn = [make("dual_dirichlet", labels, 10, s, min_examples=15).counts() for s in seeds]
    assert np.min(redrawn) == 15
    assert np.mean([np.count_nonzero(counts == 15) for counts in redrawn]) < 1
    assert set(make("dual_dirichlet", labels, 10, 0, min_examples=100).counts()) == {100}
