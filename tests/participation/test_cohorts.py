"""The dispatches of rounds, their default sampler, and their checks."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_algos as fa
from fedjax_algos.participation import (
    Cohorts,
    failures,
    local_works,
    rate_schedules,
    samplers,
    uniform,
)
from fedjax_algos.participation.cohorts import full_steps

COUNTS = np.array([1, 5, 8, 20, 3, 9])
LOCAL = fa.Local(batch_size=4, learning_rate=0.25, steps=3)


def rounds_of(local=LOCAL):
    return Cohorts(COUNTS, local, cohort_size=3, seed=0)


def test_fields_of_dispatches():
    dispatches = rounds_of().dispatches(30)
    assert all(leaf.shape == (30, 3) for leaf in jax.tree.leaves(dispatches))
    assert dispatches.arrives == ()
    assert (dispatches.server_step == np.arange(30)[:, None]).all()
    for client in range(len(COUNTS)):
        numbers = dispatches.number[dispatches.client == client]
        assert numbers.tolist() == list(range(len(numbers)))
    assert (dispatches.num_examples == COUNTS[dispatches.client]).all()
    np.testing.assert_allclose(dispatches.share, COUNTS[dispatches.client] / 46, rtol=1e-6)
    assert (dispatches.learning_rate == 0.25).all()


def test_rounds_since_the_previous_dispatch_are_counted():
    """Client 6 is an empty slot; 0 is twice in a cohort; windows and a restart change nothing."""
    sets = [(0, 1, 6), (6, 6, 6), (1, 2, 0), (0, 0, 5), (6, 6, 6), (2, 0, 6), (5, 1, 2)]

    def sampler(seed, rounds, num_clients, cohort_size):
        return np.array(sets, np.int32)[rounds]

    sampler.may_leave_empty = True

    def cohorts():
        return Cohorts(COUNTS, LOCAL, cohort_size=3, seed=0, sampler=sampler)

    for windows in ([7], [1, 1, 4, 1], [2, 5]):
        drawn = cohorts()
        for window in windows:
            drawn.dispatches(window)
            position, drawn = drawn.position(), cohorts()
            drawn.go_to(position)
        assert position.gaps.tolist() == [4, 3, 3, 2, 1, 0, 0, 0]  # the first ones, then 1 round
        assert position.last_round.tolist() == [5, 6, 6, -1, -1, 6]
        assert position.gaps.shape == cohorts().position().after(7).gaps.shape


def test_cohorts_are_uniform_without_replacement():
    cohorts = uniform(1, np.arange(6000), 10, 4)
    assert all(len(set(cohort)) == 4 for cohort in cohorts.tolist())
    counts = np.bincount(cohorts.ravel(), minlength=10)
    # each client is in 40% of 6,000 cohorts; the deviation is sqrt(6000 * .4 * .6) = 38
    assert np.abs(counts - 2400).max() < 4 * 38
    assert (uniform(2, np.arange(6), 10, 4) != cohorts[:6]).any()
    of_many = uniform(0, np.arange(2), 1_000_000, 100)
    assert len(np.unique(of_many)) > 190
    assert of_many.max() > 900_000


def test_it_is_shown_in_one_line():
    planned = rounds_of(LOCAL._replace(steps=None, epochs=2))
    planned.dispatches(5)
    expected = "clients=6, cohort_size=3, full_steps=2..10, seed=0, next_round=5"
    assert repr(planned) == f"Cohorts({expected})"


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=4),
    st.integers(1, 2**31 - 1),
    st.integers(1, 2**33),
    st.sampled_from(["short", "dropped", "wrapped", "persistent", "replacement", "full"]),
)
def test_the_steps_of_epochs_are_exact_or_refused(counts, batch_size, epochs, batches):
    local = fa.Local(batch_size, 0.1, epochs=float(epochs), batches=batches)
    per_epoch = {
        "full": lambda n: 1,
        "dropped": lambda n: n // batch_size,
        "persistent": lambda n: n // batch_size + 1,
    }.get(batches, lambda n: -(-n // batch_size))
    expected = [epochs * per_epoch(n) for n in counts]
    if min(expected) > 0 and max(expected) < 2**31:
        assert full_steps(np.array(counts, np.int32), local).tolist() == expected
    else:
        with pytest.raises(ValueError, match=r"give fewer epochs|give smaller batches"):
            full_steps(np.array(counts, np.int32), local)


def test_the_steps_of_a_run_are_counted_to_the_last_of_32_bits():
    """A client with 2**30 - 1 steps in a round has room for two rounds, and not for a third."""
    planned = Cohorts(COUNTS[:1], LOCAL._replace(steps=2**30 - 1), cohort_size=1, seed=0)
    assert planned.dispatches(2).first_step.tolist() == [[0], [2**30 - 1]]
    with pytest.raises(ValueError, match=r"of client 0 .* would be 3221225469"):
        planned.dispatches(1)
    assert planned.next_round == 2


@pytest.mark.parametrize(
    ("registry", "spec", "message"),
    [
        (samplers, "cyclic", "cyclic needs num_groups"),
        (samplers, "cyclic:2.5", "num_groups=2.5 is no whole number"),
        (samplers, "on_off:leave=0.9,join=0.6", r"leave \+ join = 1.5 is above 1"),
        (samplers, "dirichlet:0", "gamma=0 is out of range"),
        (failures, "independent:1", "probability=1 is out of range"),
        (local_works, "partial:1.5", "share=1.5 is out of range"),
        (local_works, "partial:tau_max=0", "tau_max=0 is out of range"),
        (local_works, "deadline", "deadline needs seconds"),
        (local_works, "deadline:0", "seconds=0 is out of range"),
        (local_works, "deadline:1,speeds=fast", "speeds='fast' is unknown"),
        (local_works, "deadline:1,seconds_per_step=0", "seconds_per_step=0 is out of range"),
        (rate_schedules, "exponential", "exponential needs decay"),
        (rate_schedules, "exponential:1.5", "decay=1.5 is out of range"),
        (rate_schedules, "step:factor=0,every=2", "factor=0 is out of range"),
        (rate_schedules, "step:factor=0.5,every=0", "every=0 is out of range"),
        (rate_schedules, "inverse:-1", "decay=-1 is out of range"),
    ],
)
def test_wrong_specs(registry, spec, message):
    with pytest.raises(ValueError, match=message):
        registry.make(spec, *[0.1] * (registry is rate_schedules))
