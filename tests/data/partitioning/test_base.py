"""The parts that partitions are made of, by hand and in distribution."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_algos as fa
from fedjax_algos.data.partitioning.base import (
    divide_by_weights,
    draw_class_counts,
    hold_out,
    log_dirichlet,
    raise_to_minimum,
    renormalise,
)


def test_digest_is_the_same_everywhere():
    partition = fa.Partition.of([np.array([2, 0]), np.array([1])])
    assert partition.digest() == "e7a8e1959a064df49a55385d4c2b921f2bc9661b5431d6b6071b243948b35230"
    assert partition.digest() != fa.Partition.of([np.array([2]), np.array([0, 1])]).digest()


def test_partitions_are_shown_in_one_line():
    partition = fa.Partition.of([np.array([2, 0]), np.array([1])])
    assert repr(partition) == "Partition(clients=2, examples=3, per_client=1..2)"
    assert repr(fa.Partition.of([])) == "Partition(clients=0, examples=0)"


@given(st.lists(st.integers(0, 12), min_size=1, max_size=9), st.integers(1, 4))
def test_raise_to_minimum_takes_from_the_largest_one_by_one(sizes, minimum):
    if sum(sizes) < len(sizes) * minimum:
        return
    expected = list(sizes)
    while min(expected) < minimum:
        expected[expected.index(max(expected))] -= 1
        expected[expected.index(min(expected))] += 1
    result = raise_to_minimum(np.array(sizes), minimum)
    assert sorted(result) == sorted(expected)
    assert all(new <= old for new, old in zip(result, sizes, strict=True) if old >= minimum)


def test_divide_by_weights_rounds_the_cumulative_sums():
    weights = np.array([[1, 0.1, 0], [1, 0.2, 5], [1, 0.7, 0]])
    table = divide_by_weights(weights, np.array([10, 7, 4]))  # cuts 3.3 6.7, 0.7 2.1, 0 4
    np.testing.assert_array_equal(table, [[3, 1, 0], [4, 1, 4], [3, 5, 0]])


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.integers(1, 300))
def test_divide_by_weights_gives_no_client_the_remainders(seed, num_clients):
    """Flooring each part would give the last client up to N - 1 more than its share."""
    weights = np.random.default_rng(seed).dirichlet(np.ones(num_clients), 3).T
    sizes = np.array([50, 500, 1])
    table = divide_by_weights(weights, sizes)
    np.testing.assert_array_equal(table.sum(axis=0), sizes)
    assert np.abs(table - weights * sizes).max() < 1 + 1e-9


@pytest.mark.parametrize("concentration", [[0.2, 0.2, 0.2], [0.05, 1.0, 3.0]])
def test_log_dirichlet_has_the_moments_of_dirichlet(concentration):
    a = np.array(concentration)
    draws = np.exp(log_dirichlet(np.random.default_rng(0), np.tile(a, (40_000, 1))))
    np.testing.assert_allclose(draws.sum(axis=1), 1)
    np.testing.assert_allclose(draws.mean(axis=0), a / a.sum(), atol=0.008)
    square = a * (a + 1) / (a.sum() * (a.sum() + 1))
    np.testing.assert_allclose((draws**2).mean(axis=0), square, atol=0.008)


@pytest.mark.parametrize("alpha", [1e-300, 1e-9, 1e-3])
def test_shares_can_be_renormalised_when_only_the_smallest_is_allowed(alpha):
    logs = log_dirichlet(np.random.default_rng(0), np.full(50, alpha))
    shares = renormalise(logs, np.arange(50) == np.argmin(logs))
    assert shares.max() == shares.sum() == 1


def successive_draws(number, q, available):
    """{counts: probability} of successive draws without replacement, by enumeration."""
    if not number:
        return {(0,) * len(q): 1.0}
    result = Counter()
    shares = [p * (n > 0) for p, n in zip(q, available, strict=True)]
    for c in np.flatnonzero(shares):
        rest = [n - (i == c) for i, n in enumerate(available)]
        for counts, probability in successive_draws(number - 1, q, rest).items():
            more = tuple(n + (i == c) for i, n in enumerate(counts))
            result[more] += probability * shares[c] / sum(shares)
    return result


@pytest.mark.parametrize(("number", "available"), [(3, (1, 2, 3)), (4, (2, 0, 5)), (6, (1, 2, 3))])
def test_draws_at_once_are_distributed_as_successive_draws(number, available):
    q, times, rng = (0.7, 0.2, 0.1), 10_000, np.random.default_rng(0)
    drawn = Counter(
        tuple(int(n) for n in draw_class_counts(rng, number, np.log(q), np.array(available)))
        for _ in range(times)
    )
    expected = successive_draws(number, q, available)
    assert sum(expected.values()) == pytest.approx(1)
    assert set(drawn) <= set(expected)
    for counts, probability in expected.items():
        assert drawn[counts] / times == pytest.approx(probability, abs=0.015)


def test_what_is_held_out():
    """A share of each client and of the total; each example is on one side; the seed draws them."""
    whole = fa.Partition.of([np.arange(10), np.arange(10, 13), [13], np.arange(14, 20)])
    kept, held = hold_out(whole, 0.35, 0)
    assert (0.35 * whole.counts()).tolist() == pytest.approx([3.5, 1.05, 0.35, 2.1])
    assert held.counts().tolist() == [4, 1, 0, 2]  # 7 of 20
    assert kept.counts().tolist() == [6, 2, 1, 4]
    for client in range(4):
        parts = [np.split(each.indices, each.offsets[1:-1])[client] for each in (kept, held)]
        own = np.split(whole.indices, whole.offsets[1:-1])[client]
        assert sorted(np.concatenate(parts)) == own.tolist()
    assert hold_out(whole, 0.35, 0)[1].digest() == held.digest()
    assert hold_out(whole, 0.35, 1)[1].digest() != held.digest()
