"""Local work: how much of its local update each client finishes, by hand and in distribution."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedjax_algos as fa
from fedjax_algos.participation import Cohorts, deadline_of, local_works, samplers
from fedjax_algos.participation.local_work import SpeedDistribution, relative_times

COUNTS = np.array([1, 5, 8, 20, 3, 9, 12, 7])
EPOCHS = fa.Local(batch_size=4, learning_rate=0.1, epochs=5)
STEPS = EPOCHS._replace(epochs=None, steps=6)
SPECS = ["full", "partial:share=0.4", "deadline:seconds=2"]
SEEDS = st.integers(0, 2**31 - 1)
partial, deadline = local_works["partial"], local_works["deadline"]


def num_steps_of(work, full, local=EPOCHS, seed=0):
    """The steps of partial local updates of the clients 0, 1, ..., int[rounds, cohort_size]."""
    full = np.asarray(full, np.int32)
    clients = np.broadcast_to(np.arange(full.shape[1], dtype=np.int32), full.shape)
    return work(seed, np.arange(len(full)), clients, full, local)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(SPECS), SEEDS, st.integers(1, 8), st.sampled_from([EPOCHS, STEPS]))
def test_work_does_not_depend_on_how_rounds_are_split(spec, seed, cut, local):
    assert {spec.partition(":")[0] for spec in SPECS} == set(local_works)  # all are tested

    def cohorts():
        sampler, work = samplers["with_replacement"](), local_works.make(spec)
        return Cohorts(COUNTS, local, cohort_size=5, seed=seed, sampler=sampler, work=work)

    together, apart = cohorts().dispatches(9), cohorts()
    parts = [apart.dispatches(cut), apart.dispatches(9 - cut)]
    for name in ("client", "num_steps", "full_steps", "first_step"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(together, name), joined)
    assert together.num_steps.dtype == np.int32
    assert ((together.num_steps >= 1) & (together.num_steps <= together.full_steps)).all()


@settings(deadline=None, max_examples=50)
@given(SEEDS, st.integers(2, 12), st.integers(1, 9), st.data())
def test_partial_work_of_any_size(seed, units, cohort_size, data):
    tau_max = data.draw(st.none() | st.integers(1, units - 1))
    share = data.draw(st.floats(0, 1))
    per_epoch = np.asarray(data.draw(st.lists(st.integers(1, 500), min_size=cohort_size)))
    full = np.tile(units * per_epoch[:cohort_size], (6, 1))
    work = partial(share=share, tau_max=tau_max)
    num_steps = num_steps_of(work, full, EPOCHS._replace(epochs=float(units)), seed=seed)
    assert ((num_steps < full).sum(axis=1) == int(share * cohort_size + 0.5)).all()
    missed = (full - num_steps) / (full // units)
    assert (missed == np.rint(missed)).all()
    assert 0 <= missed.min() <= missed.max() <= (units - 1 if tau_max is None else tau_max)
    assert num_steps.min() >= 1


def test_draws_of_partial_work_are_uniform():
    """All members are equally often partial, and all of 1..tau_max equally often missed."""
    rounds, cohort_size = 6000, 5
    num_steps = num_steps_of(partial(share=0.4, tau_max=3), np.full((rounds, cohort_size), 5))
    assert stats.chisquare(np.bincount(num_steps[num_steps < 5] - 2)).pvalue > 1e-3
    # 40% of 6,000; the deviation is sqrt(6000 * .4 * .6) = 38
    assert np.abs((num_steps < 5).sum(axis=0) - 2400).max() < 4 * 38
    members = np.argwhere(num_steps < 5)[:, 1].reshape(rounds, 2)
    pairs = np.bincount(members @ [5, 1], minlength=25)
    assert stats.chisquare(pairs[pairs > 0]).pvalue > 1e-3
    assert (pairs > 0).sum() == 10  # of five
    both = num_steps[np.arange(rounds)[:, None], members] - 2
    assert stats.chisquare(np.bincount(both @ [3, 1])).pvalue > 1e-3  # misses are independent


def test_partial_work_misses_steps_where_work_is_given_in_steps():
    one, other = (num_steps_of(partial(share=1), [[6] * 99] * 2, STEPS, seed=s) for s in (0, 1))
    assert {*one.ravel()} == {1, 2, 3, 4, 5}
    assert (one != other).any()


@pytest.mark.parametrize(
    ("work", "local", "message"),
    [
        ("partial:tau_max=5", EPOCHS, "tau_max=5 allows no partial work of epochs=5"),
        ("partial:tau_max=6", STEPS, "tau_max=6 allows no partial work of steps=6"),
        (
            "partial",
            EPOCHS._replace(epochs=2.5),
            "no partial work of epochs=2.5; give epochs as a whole",
        ),
        ("partial", STEPS._replace(steps=1), "no partial work of steps=1"),
        ([1, 2], EPOCHS, r"int64\[2\]; .* \[rounds, cohort_size\], here .*\[4, 3\]"),
        (np.full((4, 3), 1.5), EPOCHS, r"float64\[4, 3\]; .* integers"),
        (None, EPOCHS, r"the local work is object\[\]"),
        (np.zeros((4, 3), int), EPOCHS, r"of client \d is 0 steps; give 1 to \d"),
        (np.full((4, 3), 99), EPOCHS, r"of client \d is 99 steps; give 1 to \d"),
    ],
)
def test_impossible_work_is_refused(work, local, message):
    work = local_works.make(work) if isinstance(work, str) else lambda *_, steps=work: steps
    cohorts = Cohorts(COUNTS, local, cohort_size=3, seed=0, work=work)
    with pytest.raises(ValueError, match=message):
        cohorts.dispatches(4)


def test_steps_until_a_deadline():
    """.3 / .1 is 2.9999999999999996, which means 3 steps and not 2."""
    work = deadline_of(np.array([0.1, 0.2, 0.3, 1.0]), 1.0)
    assert num_steps_of(work, [[50] * 4, [4] * 4]).tolist() == [[10, 5, 3, 1], [4, 4, 3, 1]]
    again = work(0, np.arange(1), np.array([[2, 0, 0]]), np.array([[50, 50, 2]]), EPOCHS)
    assert again.tolist() == [[3, 10, 2]]
    for seconds, steps in ((0.3, 3), (0.29, 2), (0.7, 7)):
        work = deadline(seconds=seconds, speeds="homogeneous", seconds_per_step=0.1)
        assert (num_steps_of(work, np.full((3, 5), 9)) == steps).all()


@pytest.mark.parametrize("speeds", ["normal", "exponential"])
def test_times_have_their_distribution_and_depend_on_the_client_alone(speeds):
    times = relative_times(SpeedDistribution(speeds, 0.0), 0, 100_000)
    own = stats.truncnorm(-0.95 / 0.3, np.inf, 1, 0.3) if speeds == "normal" else stats.expon()
    assert stats.kstest(times, own.cdf).pvalue > 1e-3
    assert len(np.unique(times)) == len(times)  # blocks are not copies of each other
    for client in (0, 4095, 4096, 20_000):
        alone = relative_times(SpeedDistribution(speeds, 0.0), 0, client + 1)
        assert alone[client] == times[client]


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.floats(0, 1), st.none() | st.floats(1e-3, 4))
def test_floors_and_bins(seed, floor, width):
    """A floored draw is the same draw, raised; a binned one is the middle of its draw's bin."""
    exponential = np.random.default_rng([seed, 12, 0]).standard_exponential(4096)[:200]
    times = relative_times(SpeedDistribution("exponential", floor, width), seed, 200)
    if width is None:
        np.testing.assert_array_equal(times, np.where(exponential < floor, floor, exponential))
        return
    middle = (exponential // width + 0.5) * width
    np.testing.assert_allclose(times, np.maximum(middle, floor), rtol=1e-12)


def test_a_floor_holds_for_all_speeds_and_bins_for_exponential_ones():
    for speeds in ("homogeneous", "normal"):
        free, high = (relative_times(SpeedDistribution(speeds, f), 3, 5000) for f in (0.0, 0.9))
        np.testing.assert_array_equal(high, np.maximum(free, 0.9))
    binned = deadline(seconds=9.0, speeds="exponential", seconds_per_step=1.0, time_bin=2.0)
    times = relative_times(SpeedDistribution("exponential", 0.01, 2.0), 0, 50)
    steps = num_steps_of(binned, np.full((1, 50), 99))
    np.testing.assert_array_equal(steps[0], np.floor(9 / times))
    with pytest.raises(ValueError, match=r"time_bin=2.0 is for exponential speeds"):
        deadline(seconds=9.0, time_bin=2.0)


@pytest.mark.parametrize("speeds", ["homogeneous", "exponential"])
def test_a_client_without_a_step_is_refused_and_the_fix_works(speeds):
    full = np.full((2, 30), 9)
    slowest = relative_times(SpeedDistribution(speeds), 0, 30).argmax()
    text = rf"client {slowest} takes .*seconds=0.05 leaves it none; give seconds="
    with pytest.raises(ValueError, match=text) as caught:
        num_steps_of(deadline(seconds=0.05, speeds=speeds), full)
    enough = float(re.search(r"give seconds=(\S+) or more", str(caught.value))[1])
    assert num_steps_of(deadline(seconds=enough, speeds=speeds), full).min() == 1
    with pytest.raises(ValueError, match="leaves it none"):
        num_steps_of(deadline(seconds=enough * 0.999, speeds=speeds), full)


@pytest.mark.parametrize(
    ("times", "seconds", "message"),
    [
        ([0.1, 0.5], np.nan, "seconds=nan leaves it none; give seconds=0.5 or more"),
        ([0.1, 0.0], 1.0, "client 1 takes 0.0 s"),
        ([0.1, 0.1, np.nan], 1.0, "client 2 takes nan s"),
        ([], 1.0, r"has shape \(0,\)"),
        ([0.1, 0.2], 1.0, "client 2 is in a cohort, but .* 2 clients"),
    ],
)
def test_wrong_times(times, seconds, message):
    with pytest.raises(ValueError, match=message):
        num_steps_of(deadline_of(np.array(times), seconds), [[5, 5, 5]])
