"""Samplers: cohorts by hand if nothing is random, and otherwise their distributions."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedjax_algos as fa
from fedjax_algos.engine.checks import check_no_repeats
from fedjax_algos.participation import Cohorts, cohort_count, samplers, uniform
from fedjax_algos.participation.sampling import log_shares

SPECS = ["uniform", "cyclic:num_groups=4", "dirichlet:gamma=0.3", "with_replacement"]
SEEDS = st.integers(0, 2**31 - 1)


def test_the_default_sampler_has_a_name():
    assert samplers.make("uniform") is uniform


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=25)
@given(SEEDS, st.integers(0, 9), st.integers(1, 8))
def test_cohorts_do_not_depend_on_how_rounds_are_split(spec, seed, first, cut):
    rounds = np.arange(first, first + 9)
    together, other = samplers.make(spec)(seed, rounds, 17, 4), samplers.make(spec)
    parts = [other(seed, part, 17, 4) for part in np.split(rounds, [cut])]
    assert (together.dtype, together.shape) == (np.int32, (9, 4))
    np.testing.assert_array_equal(together, np.concatenate(parts))


@pytest.mark.parametrize("spec", SPECS[1:])
@settings(deadline=None, max_examples=50)
@given(SEEDS, st.integers(4, 60), st.data())
def test_clients_exist_and_are_distinct_in_a_cohort(spec, seed, num_clients, data):
    cyclic = spec.startswith("cyclic")
    cohort_size = data.draw(st.integers(1, num_clients // 4 if cyclic else num_clients))
    cohorts = samplers.make(spec)(seed, np.arange(6), num_clients, cohort_size)
    assert cohorts.min() >= 0
    assert cohorts.max() < num_clients
    if spec != "with_replacement":
        assert all(len(set(cohort)) == cohort_size for cohort in cohorts.tolist())


@pytest.mark.parametrize("spec", SPECS)
def test_rounds_and_seeds_differ(spec):
    sampler = samplers.make(spec)
    cohorts = sampler(0, np.arange(200), 40, 5)
    distinct = len(np.unique(np.sort(cohorts, axis=1), axis=0))
    assert distinct > 150  # in groups of ten, 50 of 252 cohorts for each: 181 are to be expected
    assert (sampler(1, np.arange(200), 40, 5) != cohorts).any()


@settings(deadline=None, max_examples=50)
@given(SEEDS, st.integers(1, 6), st.integers(1, 6))
def test_whole_groups_contain_every_client_once_a_period(seed, num_groups, size):
    num_clients = num_groups * size
    sampler = samplers["cyclic"](num_groups=num_groups)
    cohorts = sampler(seed, np.arange(3 * num_groups), num_clients, size)
    groups = np.sort(cohorts, axis=1)
    assert sorted(groups[:num_groups].ravel()) == list(range(num_clients))
    np.testing.assert_array_equal(groups[:num_groups], groups[num_groups : 2 * num_groups])
    np.testing.assert_array_equal(groups[:num_groups], groups[2 * num_groups :])


def test_pairs_of_a_group_are_equally_likely():
    cohorts = np.sort(samplers["cyclic"](num_groups=2)(3, np.arange(0, 8000, 2), 10, 2), axis=1)
    _, counts = np.unique(cohorts, axis=0, return_counts=True)
    assert len(counts) == 10  # pairs of five
    assert stats.chisquare(counts).pvalue > 1e-3


def test_all_groupings_are_equally_likely():
    """Four clients in two groups: six choices of the first one."""
    first = [samplers["cyclic"](num_groups=2)(seed, [0], 4, 2)[0] for seed in range(3000)]
    _, counts = np.unique(np.sort(first, axis=1), axis=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_cohort_larger_than_a_group_is_refused():
    with pytest.raises(ValueError, match="num_groups=3 groups; give num_groups of at most 2, or a"):
        samplers["cyclic"](num_groups=3)(0, np.arange(2), 10, 4)


def test_single_draws_follow_the_shares():
    """Cohorts of one: p itself. Counts below 5 are pooled, as the chi-square test requires."""
    seed, rounds = 11, 20_000
    cohorts = samplers["dirichlet"](gamma=0.5)(seed, np.arange(rounds), 12, 1)
    p = np.exp(log_shares(seed, 12, 0.5))
    assert p.sum() == pytest.approx(1)
    expected, seen = p * rounds, np.bincount(cohorts.ravel(), minlength=12)
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum() + 1e-9)
    seen = np.append(seen[~rare], seen[rare].sum())
    assert stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-3


def test_cohorts_are_successive_draws():
    """P(first i, then j) = p_i p_j / (1 - p_i)."""
    seed, rounds = 2, 20_000
    cohorts = samplers["dirichlet"](gamma=2.0)(seed, np.arange(rounds), 4, 2)
    p = np.exp(log_shares(seed, 4, 2.0))
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
    """Its dispatches are numbered in the order of the cohort, and all their steps are counted."""
    counts = np.array([4, 8, 12])
    local = fa.Local(batch_size=4, learning_rate=0.1, epochs=1)  # 1, 2 and 3 steps
    sampler = samplers["with_replacement"]()
    dispatches = Cohorts(counts, local, cohort_size=3, seed=0, sampler=sampler).dispatches(12)
    dispatched, done = np.zeros(3, int), np.zeros(3, int)
    columns = dispatches.client, dispatches.number, dispatches.first_step
    for cohort, dispatch, first_step in zip(*columns, strict=True):
        drawn = np.bincount(cohort, minlength=3)
        for client in np.flatnonzero(drawn):
            numbers = dispatch[cohort == client] - dispatched[client]
            assert numbers.tolist() == list(range(drawn[client]))
            earlier = np.arange(drawn[client]) * (client + 1)  # steps of its earlier dispatches
            assert first_step[cohort == client].tolist() == (done[client] + earlier).tolist()
        dispatched += drawn
        done += drawn * [1, 2, 3]
    np.testing.assert_array_equal(dispatches.num_steps, dispatches.client + 1)
    repeated = [len(set(cohort)) < 3 for cohort in dispatches.client.tolist()]
    assert 0 < sum(repeated) < 12
    first = repeated.index(True)
    with pytest.raises(ValueError, match=f"is twice in the cohort of round {first}, but this"):
        check_no_repeats(dispatches, 3)


@pytest.mark.parametrize(
    ("cohort", "num_clients", "expected"),
    [
        (0.29, 100, 29),  # .29 * 100 is 28.999999999999996
        (0.155, 100, 15),
        (0.001, 100, 1),
        (1, 100, 1),
        (5.0, 100, 5),
        (np.int64(7), 7, 7),
    ],
)
def test_cohort_counts(cohort, num_clients, expected):
    count = cohort_count(cohort, num_clients)
    assert count == expected
    assert type(count) is int


@pytest.mark.parametrize("cohort", [2.5, 0, -0.5, np.nan, np.inf, 11])
def test_wrong_cohorts_are_refused(cohort):
    message = rf"a cohort of {cohort} is out of range; give a whole number from 1 to 10, .* fractio"
    with pytest.raises(ValueError, match=message):
        cohort_count(cohort, 10)
