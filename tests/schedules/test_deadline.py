"""Local work until a deadline: steps by hand, and the distributions of times."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedjax_algos as fa
from fedjax_algos.schedules import Synchronous, deadline_of, local_works, uniform
from fedjax_algos.schedules.local_work import SpeedDistribution, relative_times

COUNTS = np.array([1, 5, 8, 20, 3, 9, 12, 7])
STEPS = fa.Local(batch_size=4, learning_rate=0.1, steps=6)
SEEDS = st.integers(0, 2**31 - 1)


def num_steps_of(work, full, clients=None, seed=0):
    """The steps of partial local updates, int[rounds, cohort_size]."""
    full = np.asarray(full, np.int32)
    if clients is None:
        clients = np.broadcast_to(np.arange(full.shape[1], dtype=np.int32), full.shape)
    return work(seed, np.arange(len(full)), np.asarray(clients), full, STEPS)


def test_steps_until_a_deadline():
    work = deadline_of(np.array([0.1, 0.2, 0.3, 1.0]), 1.0)
    assert num_steps_of(work, [[50] * 4, [4] * 4]).tolist() == [[10, 5, 3, 1], [4, 4, 3, 1]]
    again = num_steps_of(work, [[50, 50, 2]], clients=[[2, 0, 0]])
    assert again.tolist() == [[3, 10, 2]]


@pytest.mark.parametrize(("seconds", "steps"), [(0.3, 3), (0.29, 2), (0.7, 7), (0.1, 1)])
def test_homogeneous_clients_do_the_same(seconds, steps):
    """.3 / .1 is 2.9999999999999996, which means 3 steps and not 2."""
    work = local_works["deadline"](seconds=seconds, speeds="homogeneous", seconds_per_step=0.1)
    assert (num_steps_of(work, np.full((3, 5), 9)) == steps).all()


def test_an_early_deadline_makes_stragglers_and_a_late_one_none():
    def dispatches(seconds):
        work = local_works["deadline"](seconds=seconds)
        return Synchronous(COUNTS, STEPS, cohort_size=4, seed=0, work=work).dispatches(20)

    early, late = dispatches(0.4), dispatches(10)
    np.testing.assert_array_equal(early.client, late.client)
    assert (late.num_steps == 6).all()
    assert (early.full_steps == 6).all()
    assert 1 <= early.num_steps.min() < early.num_steps.max() <= 6
    for client in range(len(COUNTS)):  # its speed is the same in the whole run
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
    times = relative_times(SpeedDistribution(speeds), 0, 100_000)
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


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.floats(0, 1), st.none() | st.floats(1e-3, 4))
def test_floors_and_bins(seed, floor, width):
    """A floored draw is the same draw, raised; a binned one is the middle of its draw's bin."""
    exponential = np.random.default_rng([seed, 12, 0]).standard_exponential(4096)[:200]
    times = relative_times(SpeedDistribution("exponential", floor, width), seed, 200)
    if width is None:
        np.testing.assert_array_equal(times, np.where(exponential < floor, floor, exponential))
        return
    for drawn, time in zip(exponential, times, strict=True):
        middle = (drawn // width + 0.5) * width
        assert time == pytest.approx(max(middle, floor), rel=1e-12)
        assert time == floor or abs(time - drawn) <= width / 2 * (1 + 1e-9)


def test_without_a_floor_no_draw_is_changed():
    free = relative_times(SpeedDistribution("exponential", 0.0), 0, 100_000)
    assert 0 < free.min() < 1e-4
    assert stats.kstest(free, "expon").pvalue > 1e-3
    binned = relative_times(SpeedDistribution("exponential", 0.0, 2 / 3), 0, 100_000)
    assert binned.min() == pytest.approx(1 / 3)
    # (b / 2) coth(b / 2), and the deviation of the mean of 100,000 is about .003
    assert binned.mean() == pytest.approx(1 / 3 / np.tanh(1 / 3), abs=4 * 0.0033)


def test_a_floor_holds_for_all_speeds_and_bins_for_exponential_ones():
    for speeds in ("homogeneous", "normal", "exponential"):
        free, high = (relative_times(SpeedDistribution(speeds, f), 3, 5000) for f in (0.0, 0.9))
        np.testing.assert_array_equal(high, np.maximum(free, 0.9))
    work = local_works["deadline"]
    binned = work(seconds=9.0, speeds="exponential", seconds_per_step=1.0, time_bin=2.0)
    times = relative_times(SpeedDistribution("exponential", 0.01, 2.0), 0, 50)
    assert set(times) <= {1, 3, 5, 7, 9}
    steps = num_steps_of(binned, np.full((1, 50), 99))
    np.testing.assert_array_equal(steps[0], np.floor(9 / times))
    with pytest.raises(
        ValueError, match=r"deadline: time_bin=2.0 is for exponential speeds, but speeds=normal; le"
    ):
        work(seconds=9.0, time_bin=2.0)


@pytest.mark.parametrize("speeds", ["normal", "exponential"])
@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(0, 20_000), st.integers(1, 5000))
def test_a_time_depends_on_the_client_alone(speeds, seed, client, more):
    of = SpeedDistribution(speeds)
    alone = relative_times(of, seed, client + 1)[client]
    assert alone == relative_times(of, seed, client + more)[client]


def test_times_are_in_units_of_the_mean():
    """Doubling the mean and the deadline gives the same steps; another seed gives other steps."""
    full = np.full((1, 500), 10**6)
    one = num_steps_of(local_works["deadline"](seconds=1000.0, seconds_per_step=0.5), full)
    np.testing.assert_array_equal(
        one, num_steps_of(local_works["deadline"](seconds=2000.0, seconds_per_step=1.0), full)
    )
    times = relative_times(SpeedDistribution("normal"), 0, 500)
    np.testing.assert_array_equal(one[0], np.floor(2000 / times + 1e-9))
    other = num_steps_of(
        local_works["deadline"](seconds=1000.0, seconds_per_step=0.5), full, seed=1
    )
    assert (one != other).mean() > 0.9


def test_many_clients():
    clients = uniform(0, np.arange(3), 100_000, 50)
    work = local_works["deadline"](seconds=100, speeds="exponential")
    num_steps = num_steps_of(work, np.full((3, 50), 10**6), clients=clients)
    times = 0.1 * relative_times(SpeedDistribution("exponential"), 0, 100_000)
    np.testing.assert_array_equal(num_steps, np.floor(100 / times + 1e-9)[clients])


@pytest.mark.parametrize("speeds", ["homogeneous", "normal", "exponential"])
def test_a_client_without_a_step_is_refused_and_the_fix_works(speeds):
    full = np.full((2, 30), 9)
    times = 0.1 * relative_times(SpeedDistribution(speeds), 0, 30)
    slowest = times.argmax()
    with pytest.raises(ValueError, match=r"seconds=0.05 leaves it none; give seconds=") as caught:
        num_steps_of(local_works["deadline"](seconds=0.05, speeds=speeds), full)
    message = str(caught.value)
    assert message.startswith(f"client {slowest} takes {times[slowest]} s for a step")
    enough = float(re.search(r"give seconds=(\S+) or more", message)[1])
    num_steps = num_steps_of(local_works["deadline"](seconds=enough, speeds=speeds), full)
    assert num_steps.min() == 1
    with pytest.raises(ValueError, match=f"client {slowest} takes"):
        num_steps_of(local_works["deadline"](seconds=enough * 0.999, speeds=speeds), full)


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
        num_steps_of(work, [[5, 5, 5]])
