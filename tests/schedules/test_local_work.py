"""Work: who finishes how much of a turn, by hand and in distribution."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedjax_algos as fa
from fedjax_algos.schedules import Synchronous, deadline_of, samplers, uniform, works
from fedjax_algos.schedules.local_work import _relative_times

COUNTS = np.array([1, 5, 8, 20, 3, 9, 12, 7])
EPOCHS = fa.Local(batch_size=4, learning_rate=0.1, epochs=5)
STEPS = EPOCHS._replace(epochs=None, steps=6)
SPECS = ["full", "partial:share=0.4", "deadline:seconds=2"]
SEEDS = st.integers(0, 2**31 - 1)


def test_every_work_is_tested():
    assert {spec.partition(":")[0] for spec in SPECS} == set(works)


def asked(work, full, local=EPOCHS, clients=None, seed=0):
    """What the work makes of these full turns, int[rounds, cohort_size]."""
    full = np.asarray(full, np.int32)
    if clients is None:
        clients = np.broadcast_to(np.arange(full.shape[1], dtype=np.int32), full.shape)
    return work(seed, np.arange(len(full)), np.asarray(clients), full, local)


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=25)
@given(SEEDS, st.integers(1, 8), st.sampled_from([EPOCHS, STEPS]))
def test_work_does_not_depend_on_how_rounds_are_split(spec, seed, cut, local):
    def schedule():
        sampler, work = samplers["with_replacement"](), works.make(spec)
        return Synchronous(COUNTS, local, cohort_size=5, seed=seed, sampler=sampler, work=work)

    together, apart = schedule().visits(9), schedule()
    parts = [apart.visits(cut), apart.visits(9 - cut)]
    for name in ("client", "num_steps", "full_steps", "first_step"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(together, name), joined)
    assert together.num_steps.dtype == np.int32
    assert (together.num_steps >= 1).all()
    assert (together.num_steps <= together.full_steps).all()


def test_full_work_is_all_of_it():
    full = [[10, 3], [4, 1]]
    assert asked(works["full"](), full).tolist() == full


# partial


@pytest.mark.parametrize(
    ("share", "cohort_size", "partial"),
    [(0.5, 4, 2), (0.5, 5, 3), (0.25, 10, 3), (0.24, 10, 2), (0.04, 10, 0), (1, 7, 7), (0, 7, 0)],
)
def test_the_number_of_partial_clients_is_fixed(share, cohort_size, partial):
    """floor(share M + 1/2), so halves are rounded up; each misses one of five epochs."""
    work = works["partial"](share=share, tau_max=1)
    num_steps = np.sort(asked(work, np.full((40, cohort_size), 10)), axis=1)
    assert (num_steps == [8] * partial + [10] * (cohort_size - partial)).all()


def test_missed_epochs_are_exact_for_ragged_clients():
    full = 5 * np.array([[1, 2, 3, 7]] * 50)
    num_steps = asked(works["partial"](share=1, tau_max=2), full)
    missed = 5 * (full - num_steps) / full
    assert np.isin(missed, [1, 2]).all()
    assert set(num_steps[:, 3]) == {28, 21}
    assert set(num_steps[:, 0]) == {4, 3}


@settings(deadline=None, max_examples=50)
@given(SEEDS, st.integers(2, 12), st.integers(1, 9), st.data())
def test_partial_work_of_any_size(seed, units, cohort_size, data):
    tau_max = data.draw(st.none() | st.integers(1, units - 1))
    share = data.draw(st.floats(0, 1))
    per_epoch = np.asarray(data.draw(st.lists(st.integers(1, 500), min_size=cohort_size)))
    full = np.tile(units * per_epoch[:cohort_size], (6, 1))
    work = works["partial"](share=share, tau_max=tau_max)
    num_steps = asked(work, full, EPOCHS._replace(epochs=float(units)), seed=seed)
    assert ((num_steps < full).sum(axis=1) == int(share * cohort_size + 0.5)).all()
    missed = (full - num_steps) / (full // units)
    assert (missed == np.rint(missed)).all()
    assert missed.min() >= 0
    assert missed.max() <= (units - 1 if tau_max is None else tau_max)
    assert num_steps.min() >= 1


def test_the_unit_is_a_step_where_work_is_given_in_steps():
    num_steps = asked(works["partial"](share=1), np.full((200, 4), 6), STEPS)
    assert set(num_steps.ravel()) == {1, 2, 3, 4, 5}


def test_draws_of_partial_work_are_uniform():
    """Each member is partial in share of the rounds, and misses 1..tau_max equally often."""
    rounds, cohort_size = 6000, 5
    full = np.full((rounds, cohort_size), 5)
    num_steps = asked(works["partial"](share=0.4, tau_max=3), full)
    assert stats.chisquare(np.bincount(num_steps[num_steps < 5] - 2)).pvalue > 1e-3
    times = (num_steps < 5).sum(axis=0)
    # 40% of 6,000; the deviation is sqrt(6000 * .4 * .6) = 38
    assert np.abs(times - 2400).max() < 4 * 38
    members = np.argwhere(num_steps < 5)[:, 1].reshape(rounds, 2)
    pairs = np.bincount(members @ [5, 1], minlength=25)
    assert stats.chisquare(pairs[pairs > 0]).pvalue > 1e-3
    assert (pairs > 0).sum() == 10  # of five
    both = num_steps[np.arange(rounds)[:, None], members] - 2
    assert stats.chisquare(np.bincount(both @ [3, 1])).pvalue > 1e-3  # misses are independent


def test_the_same_epochs_are_missed_whatever_an_epoch_is():
    """So that methods with other batches, and so other turns, meet the same stragglers."""
    work = works["partial"]()
    few, many = (asked(work, np.full((20, 6), 5 * n), seed=3) for n in (1, 7))
    np.testing.assert_array_equal(7 * few, many)
    assert (asked(work, np.full((20, 6), 5), seed=4) != few).any()


@pytest.mark.parametrize(
    ("keywords", "local", "message"),
    [
        (
            {"tau_max": 5},
            EPOCHS,
            "tau_max=5 is out of range; give 1 to 4, so that some of epochs=5",
        ),
        ({"tau_max": 6}, STEPS, "tau_max=6 is out of range; give 1 to 5, so that some of steps=6"),
        ({}, EPOCHS._replace(epochs=2.5), "whole epochs, but epochs=2.5; give a whole number of"),
        ({}, EPOCHS._replace(epochs=1), "epochs=1 leaves nothing .* give at least 2 .* or share=0"),
        ({}, STEPS._replace(steps=1), "steps=1 leaves nothing between no work and all of it"),
    ],
)
def test_partial_work_that_cannot_be(keywords, local, message):
    schedule = Synchronous(COUNTS, local, cohort_size=3, seed=0, work=works["partial"](**keywords))
    with pytest.raises(ValueError, match=message):
        schedule.visits(1)


@pytest.mark.parametrize("epochs", [1, 2.5])
def test_nobody_is_partial_with_share_zero(epochs):
    local, work = EPOCHS._replace(epochs=epochs), works["partial"](share=0)
    visits = Synchronous(COUNTS, local, cohort_size=3, seed=0, work=work).visits(4)
    np.testing.assert_array_equal(visits.num_steps, visits.full_steps)


# deadline


def test_steps_until_a_deadline():
    work = deadline_of(np.array([0.1, 0.2, 0.3, 1.0]), 1.0)
    assert asked(work, [[50] * 4, [4] * 4]).tolist() == [[10, 5, 3, 1], [4, 4, 3, 1]]
    again = asked(work, [[50, 50, 2]], clients=[[2, 0, 0]])
    assert again.tolist() == [[3, 10, 2]]


@pytest.mark.parametrize(("seconds", "steps"), [(0.3, 3), (0.29, 2), (0.7, 7), (0.1, 1)])
def test_homogeneous_clients_do_the_same(seconds, steps):
    """.3 / .1 is 2.9999999999999996, which is 3 steps and not 2."""
    work = works["deadline"](seconds=seconds, speeds="homogeneous", seconds_per_step=0.1)
    assert (asked(work, np.full((3, 5), 9)) == steps).all()


def test_an_early_deadline_leaves_partial_turns_and_a_late_one_none():
    def visits(seconds):
        work = works["deadline"](seconds=seconds)
        return Synchronous(COUNTS, STEPS, cohort_size=4, seed=0, work=work).visits(20)

    early, late = visits(0.4), visits(10)
    np.testing.assert_array_equal(early.client, late.client)
    assert (late.num_steps == 6).all()
    assert (early.full_steps == 6).all()
    assert 1 <= early.num_steps.min() < early.num_steps.max() <= 6
    for client in range(len(COUNTS)):  # its speed is its own for the whole run
        steps = early.num_steps[early.client == client]
        assert len(set(steps)) == 1
        firsts = early.first_step[early.client == client]
        np.testing.assert_array_equal(firsts, np.arange(len(steps)) * steps)


@pytest.mark.parametrize(
    ("speeds", "distribution", "least"),
    [
        ("normal", stats.truncnorm(-0.95 / 0.3, np.inf, loc=1, scale=0.3), 0.05),
        ("exponential", stats.expon(), 0.01),
    ],
)
def test_times_have_their_distribution(speeds, distribution, least):
    times = _relative_times(speeds, 0, 100_000)
    assert times.min() >= least
    floored = times == 0.01
    # exponential draws below the floor: 1 - e^-.01, 995 of 100,000 with a deviation of 31
    assert floored.sum() == 0 if speeds == "normal" else abs(floored.sum() - 995) < 4 * 31
    given_above = times[~floored]
    below = distribution.cdf(least)
    cdf = lambda x: (distribution.cdf(x) - below) / (1 - below)  # noqa: E731
    assert stats.kstest(given_above, cdf).pvalue > 1e-3
    # blocks are not copies of each other
    assert len(np.unique(given_above)) == len(given_above)


@pytest.mark.parametrize("speeds", ["normal", "exponential"])
@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(0, 20_000), st.integers(1, 5000))
def test_a_time_depends_on_the_client_alone(speeds, seed, client, more):
    alone = _relative_times(speeds, seed, client + 1)[client]
    assert alone == _relative_times(speeds, seed, client + more)[client]


def test_times_are_in_units_of_the_mean():
    """Twice the mean and twice the deadline: the same steps. Other seeds: other steps."""
    full = np.full((1, 500), 10**6)
    one = asked(works["deadline"](seconds=1000.0, seconds_per_step=0.5), full)
    np.testing.assert_array_equal(
        one, asked(works["deadline"](seconds=2000.0, seconds_per_step=1.0), full)
    )
    np.testing.assert_array_equal(one[0], np.floor(2000 / _relative_times("normal", 0, 500) + 1e-9))
    other = asked(works["deadline"](seconds=1000.0, seconds_per_step=0.5), full, seed=1)
    assert (one != other).mean() > 0.9


def test_many_clients():
    clients = uniform(0, np.arange(3), 100_000, 50)
    work = works["deadline"](seconds=100, speeds="exponential")
    num_steps = asked(work, np.full((3, 50), 10**6), clients=clients)
    times = 0.1 * _relative_times("exponential", 0, 100_000)
    np.testing.assert_array_equal(num_steps, np.floor(100 / times + 1e-9)[clients])


@pytest.mark.parametrize("speeds", ["homogeneous", "normal", "exponential"])
def test_a_client_without_a_step_is_refused_and_the_fix_works(speeds):
    full = np.full((2, 30), 9)
    times = 0.1 * _relative_times(speeds, 0, 30)
    slowest = times.argmax()
    with pytest.raises(ValueError, match=r"seconds=0.05 leaves it none; give seconds=") as caught:
        asked(works["deadline"](seconds=0.05, speeds=speeds), full)
    told = str(caught.value)
    assert told.startswith(f"client {slowest} takes {times[slowest]} s for a step")
    enough = float(re.search(r"give seconds=(\S+) or more", told)[1])
    num_steps = asked(works["deadline"](seconds=enough, speeds=speeds), full)
    assert num_steps.min() == 1
    with pytest.raises(ValueError, match=f"client {slowest} takes"):
        asked(works["deadline"](seconds=enough * 0.999, speeds=speeds), full)


@pytest.mark.parametrize(
    ("times", "seconds", "message"),
    [
        ([0.1, 0.5, 0.2], 0.4, "client 1 takes 0.5 s for a step, so seconds=0.4 .* seconds=0.5 or"),
        ([0.1, 0.5], np.nan, "seconds=nan leaves it none; give seconds=0.5 or more"),
        ([0.1, 0.0], 1.0, "seconds_per_step=0.0 of client 1 is out of range; give a number above"),
        ([np.inf, 0.1], 1.0, "seconds_per_step=inf of client 0"),
        ([0.1, 0.1, np.nan], 1.0, "seconds_per_step=nan of client 2"),
        (0.1, 1.0, r"has shape \(\); give a time for each client"),
        ([], 1.0, r"has shape \(0,\); give a time for each client"),
    ],
)
def test_wrong_times(times, seconds, message):
    with pytest.raises(ValueError, match=message):
        deadline_of(np.array(times), seconds)


def test_a_client_without_a_time_is_refused():
    work = deadline_of(np.array([0.1, 0.2]), 1.0)
    with pytest.raises(ValueError, match=r"client 2 has no time in .* has 2; give one for each"):
        asked(work, [[5, 5, 5]])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("partial:1.5", "share=1.5 is out of range; give a number of at least 0 and at most 1"),
        ("partial:tau_max=0", "tau_max=0 is out of range; give a whole number of at least 1"),
        ("deadline", "deadline needs seconds"),
        ("deadline:0", "seconds=0 is out of range; give a number above 0"),
        ("deadline:1,speeds=fast", "speeds='fast' is unknown; choose homogeneous, normal or expon"),
        ("deadline:1,seconds_per_step=0", "seconds_per_step=0 is out of range; give a number abo"),
        ("half", "unknown work 'half'; choose deadline, full or partial"),
    ],
)
def test_wrong_specs(spec, message):
    with pytest.raises(ValueError, match=message):
        works.make(spec)
