"""Samplers: cohorts by hand if nothing is random, and otherwise their distributions."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedjax_algos as fa
from fedjax_algos.engine.checks import check_no_repeats
from fedjax_algos.participation import Cohorts, cohort_count, samplers
from fedjax_algos.participation.sampling import log_shares

SPECS = ["uniform", "cyclic:num_groups=4", "dirichlet:gamma=0.3", "with_replacement"]
SEEDS = st.integers(0, 2**31 - 1)


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(4, 60), st.integers(0, 9), st.integers(1, 8), st.data())
def test_cohorts_of_any_size(spec, seed, num_clients, first, cut, data):
    """They do not depend on how rounds are split; clients exist and are distinct in a cohort."""
    cyclic, rounds = spec.startswith("cyclic"), np.arange(first, first + 9)
    size = data.draw(st.integers(1, num_clients // 4 if cyclic else num_clients))
    if spec == "uniform":  # which is compiled
        num_clients, size = 17, 4
    cohorts, other = samplers.make(spec)(seed, rounds, num_clients, size), samplers.make(spec)
    parts = [other(seed, part, num_clients, size) for part in np.split(rounds, [cut])]
    assert (cohorts.dtype, cohorts.shape) == (np.int32, (9, size))
    np.testing.assert_array_equal(cohorts, np.concatenate(parts))
    assert 0 <= cohorts.min() <= cohorts.max() < num_clients
    if spec != "with_replacement":
        assert all(len(set(cohort)) == size for cohort in cohorts.tolist())


@pytest.mark.parametrize("spec", SPECS)
def test_rounds_and_seeds_differ(spec):
    sampler = samplers.make(spec)
    cohorts = sampler(0, np.arange(200), 40, 5)
    # in groups of ten, 50 of 252 cohorts for each: 181 different ones are to be expected
    assert len(np.unique(np.sort(cohorts, axis=1), axis=0)) > 150
    assert (sampler(1, np.arange(200), 40, 5) != cohorts).any()


@settings(deadline=None, max_examples=50)
@given(SEEDS, st.integers(1, 6), st.integers(1, 6))
def test_whole_groups_contain_every_client_once_a_period(seed, num_groups, size):
    num_clients = num_groups * size
    sampler = samplers["cyclic"](num_groups=num_groups)
    cohorts = sampler(seed, np.arange(3 * num_groups), num_clients, size)
    groups = np.sort(cohorts, axis=1)
    assert sorted(groups[:num_groups].ravel()) == list(range(num_clients))
    np.testing.assert_array_equal(groups, np.tile(groups[:num_groups], (3, 1)))


def test_pairs_and_groupings_are_equally_likely():
    """Pairs of five clients; and four clients in two groups: six choices of the first one."""
    pairs = samplers["cyclic"](num_groups=2)(3, np.arange(0, 8000, 2), 10, 2)
    first = [samplers["cyclic"](num_groups=2)(seed, [0], 4, 2)[0] for seed in range(3000)]
    for cohorts, number in ((pairs, 10), (first, 6)):
        _, counts = np.unique(np.sort(cohorts, axis=1), axis=0, return_counts=True)
        assert len(counts) == number
        assert stats.chisquare(counts).pvalue > 1e-3


def test_a_cohort_larger_than_a_group_is_refused():
    with pytest.raises(ValueError, match="give num_groups of at most 2, not 3"):
        samplers["cyclic"](num_groups=3)(0, np.arange(2), 10, 4)


def test_cohorts_are_successive_draws():
    """P(first i, then j) = p_i p_j / (1 - p_i), with the shares p."""
    seed, rounds = 2, 20_000
    cohorts = samplers["dirichlet"](gamma=2.0)(seed, np.arange(rounds), 4, 2)
    p = np.exp(log_shares(seed, 4, 2.0))
    assert p.sum() == pytest.approx(1)
    pairs = list(itertools.permutations(range(4), 2))
    expected = [rounds * p[i] * p[j] / (1 - p[i]) for i, j in pairs]
    seen = [(cohorts == pair).all(axis=1).sum() for pair in pairs]
    assert min(expected) > 5
    assert stats.chisquare(seen, expected).pvalue > 1e-3


def test_a_tiny_gamma_always_draws_the_same_clients():
    """All shares but one underflow, but their order is used."""
    cohorts = samplers["dirichlet"](gamma=1e-300)(4, np.arange(200), 30, 5)
    logs = log_shares(4, 30, 1e-300)
    assert np.isfinite(logs).all()
    assert (cohorts == np.argsort(-logs)[:5]).all()


def test_members_are_independent():
    cohorts = samplers["with_replacement"]()(1, np.arange(8000), 4, 2)
    seen = np.bincount(cohorts @ [4, 1], minlength=16)  # all ordered pairs, doubles included
    assert stats.chisquare(seen).pvalue > 1e-3


def test_a_client_drawn_twice_makes_two_dispatches():
    """Its dispatches are numbered in the order of the cohort, and the steps it does are counted."""

    def work(seed, rounds, clients, full_steps, local):
        return np.minimum(full_steps, 2)

    options = {"sampler": samplers["with_replacement"](), "work": work}
    local = fa.Local(batch_size=4, learning_rate=0.1, epochs=1)  # 1, 2 and 3 steps
    cohorts = Cohorts(np.array([4, 8, 12]), local, cohort_size=3, seed=0, **options)
    dispatches = cohorts.dispatches(12)
    dispatched, done = np.zeros(3, int), np.zeros(3, int)
    columns = dispatches.client, dispatches.number, dispatches.first_step
    for cohort, dispatch, first_step in zip(*columns, strict=True):
        drawn = np.bincount(cohort, minlength=3)
        for client in np.flatnonzero(drawn):
            numbers = dispatch[cohort == client] - dispatched[client]
            assert numbers.tolist() == list(range(drawn[client]))
            earlier = np.arange(drawn[client]) * (1, 2, 2)[client]  # steps of earlier dispatches
            assert first_step[cohort == client].tolist() == (done[client] + earlier).tolist()
        dispatched += drawn
        done += drawn * [1, 2, 2]
    np.testing.assert_array_equal(dispatches.full_steps, dispatches.client + 1)
    np.testing.assert_array_equal(dispatches.num_steps, np.minimum(dispatches.client + 1, 2))
    repeated = [len(set(cohort)) < 3 for cohort in dispatches.client.tolist()]
    assert 0 < sum(repeated) < 12
    first = repeated.index(True)
    with pytest.raises(ValueError, match=f"is twice in the cohort of round {first}, but this"):
        check_no_repeats(dispatches, 3)


def test_cohort_counts():
    """.29 * 100 is 28.999999999999996; a fraction is rounded down, to at least 1."""
    counts = {0.29: 29, 0.155: 15, 0.001: 1, 1: 1, 5.0: 5, np.int64(100): 100}
    for cohort, expected in counts.items():
        count = cohort_count(cohort, 100)
        assert (count, type(count)) == (expected, int)
    for cohort in (2.5, 0, -0.5, np.nan, np.inf, 11):
        with pytest.raises(ValueError, match=f"cohort={cohort} is out of range"):
            cohort_count(cohort, 10)
    with pytest.raises(ValueError, match=r"cohort=1.0 may mean one client or all; give a whole"):
        cohort_count(1.0, 10)
