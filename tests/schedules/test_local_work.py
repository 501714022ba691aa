"""Local work: how much of its local update each client finishes, by hand and in distribution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedjax_algos as fa
from fedjax_algos.schedules import Synchronous, local_works, samplers

COUNTS = np.array([1, 5, 8, 20, 3, 9, 12, 7])
EPOCHS = fa.Local(batch_size=4, learning_rate=0.1, epochs=5)
STEPS = EPOCHS._replace(epochs=None, steps=6)
SPECS = ["full", "partial:share=0.4", "deadline:seconds=2"]
SEEDS = st.integers(0, 2**31 - 1)


def test_every_work_is_tested():
    assert {spec.partition(":")[0] for spec in SPECS} == set(local_works)


def num_steps_of(work, full, local=EPOCHS, clients=None, seed=0):
    """The steps of partial local updates, int[rounds, cohort_size]."""
    full = np.asarray(full, np.int32)
    if clients is None:
        clients = np.broadcast_to(np.arange(full.shape[1], dtype=np.int32), full.shape)
    return work(seed, np.arange(len(full)), np.asarray(clients), full, local)


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=25)
@given(SEEDS, st.integers(1, 8), st.sampled_from([EPOCHS, STEPS]))
def test_work_does_not_depend_on_how_rounds_are_split(spec, seed, cut, local):
    def schedule():
        sampler, work = samplers["with_replacement"](), local_works.make(spec)
        return Synchronous(COUNTS, local, cohort_size=5, seed=seed, sampler=sampler, work=work)

    together, apart = schedule().dispatches(9), schedule()
    parts = [apart.dispatches(cut), apart.dispatches(9 - cut)]
    for name in ("client", "num_steps", "full_steps", "first_step"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(together, name), joined)
    assert together.num_steps.dtype == np.int32
    assert (together.num_steps >= 1).all()
    assert (together.num_steps <= together.full_steps).all()


def test_full_work_is_all_of_it():
    full = [[10, 3], [4, 1]]
    assert num_steps_of(local_works["full"](), full).tolist() == full


# partial


@pytest.mark.parametrize(
    ("share", "cohort_size", "partial"),
    [(0.5, 4, 2), (0.5, 5, 3), (0.25, 10, 3), (0.24, 10, 2), (0.04, 10, 0), (1, 7, 7), (0, 7, 0)],
)
def test_the_number_of_partial_clients_is_fixed(share, cohort_size, partial):
    """floor(share M + 1/2), so halves are rounded up; each straggler misses one of five epochs."""
    work = local_works["partial"](share=share, tau_max=1)
    num_steps = np.sort(num_steps_of(work, np.full((40, cohort_size), 10)), axis=1)
    assert (num_steps == [8] * partial + [10] * (cohort_size - partial)).all()


def test_missed_epochs_are_exact_for_ragged_clients():
    full = 5 * np.array([[1, 2, 3, 7]] * 50)
    num_steps = num_steps_of(local_works["partial"](share=1, tau_max=2), full)
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
    work = local_works["partial"](share=share, tau_max=tau_max)
    num_steps = num_steps_of(work, full, EPOCHS._replace(epochs=float(units)), seed=seed)
    assert ((num_steps < full).sum(axis=1) == int(share * cohort_size + 0.5)).all()
    missed = (full - num_steps) / (full // units)
    assert (missed == np.rint(missed)).all()
    assert missed.min() >= 0
    assert missed.max() <= (units - 1 if tau_max is None else tau_max)
    assert num_steps.min() >= 1


def test_the_unit_is_a_step_where_work_is_given_in_steps():
    num_steps = num_steps_of(local_works["partial"](share=1), np.full((200, 4), 6), STEPS)
    assert set(num_steps.ravel()) == {1, 2, 3, 4, 5}


def test_draws_of_partial_work_are_uniform():
    """All members are equally often partial, and all of 1..tau_max equally often missed."""
    rounds, cohort_size = 6000, 5
    full = np.full((rounds, cohort_size), 5)
    num_steps = num_steps_of(local_works["partial"](share=0.4, tau_max=3), full)
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
    """Therefore methods with different batches have the same stragglers."""
    work = local_works["partial"]()
    few, many = (num_steps_of(work, np.full((20, 6), 5 * n), seed=3) for n in (1, 7))
    np.testing.assert_array_equal(7 * few, many)
    assert (num_steps_of(work, np.full((20, 6), 5), seed=4) != few).any()


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
        (
            {},
            EPOCHS._replace(epochs=1),
            "epochs=1 allows no partial work; give at least 2, or share=0",
        ),
        (
            {},
            STEPS._replace(steps=1),
            "steps=1 allows no partial work; give at least 2, or share=0",
        ),
    ],
)
def test_impossible_partial_work_is_rejected(keywords, local, message):
    schedule = Synchronous(
        COUNTS, local, cohort_size=3, seed=0, work=local_works["partial"](**keywords)
    )
    with pytest.raises(ValueError, match=message):
        schedule.dispatches(1)


@pytest.mark.parametrize("epochs", [1, 2.5])
def test_no_client_is_partial_with_share_zero(epochs):
    local, work = EPOCHS._replace(epochs=epochs), local_works["partial"](share=0)
    dispatches = Synchronous(COUNTS, local, cohort_size=3, seed=0, work=work).dispatches(4)
    np.testing.assert_array_equal(dispatches.num_steps, dispatches.full_steps)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("partial:1.5", "share=1.5 is out of range; give a number of at least 0 and at most 1"),
        ("partial:tau_max=0", "tau_max=0 is out of range; give a whole number of at least 1"),
        ("deadline", "deadline needs seconds"),
        ("deadline:0", "seconds=0 is out of range; give a number above 0"),
        ("deadline:1,speeds=fast", "speeds='fast' is unknown; choose homogeneous, normal or expon"),
        ("deadline:1,seconds_per_step=0", "seconds_per_step=0 is out of range; give a number abo"),
        ("half", "unknown local work 'half'; choose deadline, full or partial"),
    ],
)
def test_wrong_specs(spec, message):
    with pytest.raises(ValueError, match=message):
        local_works.make(spec)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([1, 2], r"the local work is int64\[2\]; give .* \[rounds, cohort_size\], here \[4, 3\]"),
        (np.full((4, 3), 1.5), r"the local work is float64\[4, 3\]; .* integers"),
        (None, r"the local work is object\[\]; give"),
        (np.zeros((4, 3), int), r"the local work of client \d is 0 steps; give 1 to \d"),
        (np.full((4, 3), 99), r"the local work of client \d is 99 steps; give 1 to \d"),
    ],
)
def test_own_work_is_checked(steps, message):
    schedule = Synchronous(COUNTS, EPOCHS, cohort_size=3, seed=0, work=lambda *given: steps)
    with pytest.raises(ValueError, match=message):
        schedule.dispatches(4)
