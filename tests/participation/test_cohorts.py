"""The dispatches of rounds, their default sampler, their learning rates, and their checks."""

import re

import jax
import numpy as np
import pytest
from helpers import fixed, quadratics
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_algos as fa
from fedjax_algos.participation import Cohorts, failures, local_works, rate_schedules, samplers
from fedjax_algos.participation.cohorts import full_steps

COUNTS = np.array([1, 5, 8, 20, 3, 9])
uniform = samplers["uniform"]()
LOCAL = fa.Local(batch_size=4, learning_rate=0.25, steps=3)


def rounds_of(sampler=uniform, size=3, **changes):
    return Cohorts(COUNTS, LOCAL._replace(**changes), cohort_size=size, seed=0, sampler=sampler)


def test_fields_of_dispatches():
    cohorts = rounds_of()
    dispatches = cohorts.dispatches(30)
    assert all(leaf.shape == (30, 3) for leaf in jax.tree.leaves(dispatches))
    assert dispatches.arrives == ()
    assert (dispatches.server_step == np.arange(30)[:, None]).all()
    for client in range(len(COUNTS)):
        numbers = dispatches.number[dispatches.client == client]
        assert numbers.tolist() == list(range(len(numbers)))
    assert (dispatches.num_examples == COUNTS[dispatches.client]).all()
    np.testing.assert_allclose(dispatches.share, COUNTS[dispatches.client] / 46, rtol=1e-6)
    assert (dispatches.learning_rate == 0.25).all()
    assert (dispatches.num_steps == 3).all()
    assert (dispatches.full_steps == 3).all()
    known = "clients=6, cohort_size=3, full_steps=3..3, seed=0, next_round=30"
    assert repr(cohorts) == f"Cohorts({known})"


def test_rounds_since_the_previous_dispatch_are_counted():
    """Client 6 is an empty slot; 0 is twice in a cohort; windows and a restart change nothing."""
    sampler = fixed([(0, 1, 6), (6, 6, 6), (1, 2, 0), (0, 0, 5), (6, 6, 6), (2, 0, 6), (5, 1, 2)])
    sampler.may_leave_empty = True
    for windows in ([7], [1, 1, 4, 1], [2, 5]):
        drawn = rounds_of(sampler)
        for window in windows:
            drawn.dispatches(window)
            position, drawn = drawn.position(), rounds_of(sampler)
            drawn.go_to(position)
        assert position.gaps.tolist() == [4, 3, 3, 2, 1, 0, 0, 0]  # the first ones, then 1 round
        assert position.last_round.tolist() == [5, 6, 6, -1, -1, 6]
        assert position.gaps.shape == rounds_of(sampler).position().after(7).gaps.shape


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


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=4),
    st.integers(1, 2**31 - 1),
    st.integers(1, 2**33),
    st.sampled_from(
        ["short", "dropped", "wrapped", "persistent", "replacement", "poisson", "full"]
    ),
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


RATES = {
    "constant": [0.8, 0.8, 0.8, 0.8, 0.8],
    "exponential:decay=0.5": [0.8, 0.4, 0.2, 0.1, 0.05],
    "step:factor=0.1,every=2": [0.8, 0.8, 0.08, 0.08, 0.008],
    "step:factor=2,every=3": [0.8, 0.8, 0.8, 1.6, 1.6],
    "inverse": [0.8, 0.4, 0.8 / 3, 0.2, 0.16],
    "inverse:decay=0.25": [0.8, 0.64, 0.8 / 1.5, 0.8 / 1.75, 0.4],
}


def test_schedules_by_hand():
    assert {spec.partition(":")[0] for spec in RATES} == set(rate_schedules)
    for spec, expected in RATES.items():
        rate = rate_schedules.make(spec, 0.8)
        np.testing.assert_allclose(rate(np.arange(5)), expected, rtol=1e-15)
        assert np.shape(rate(4)) == ()
        assert rate(np.zeros((2, 3), np.int32)).tolist() == [[0.8] * 3] * 2


@pytest.mark.parametrize(
    ("rate_by", "expected"),
    [
        ("round", [[0.5, 0.5], [0.25, 0.25], [0.125, 0.125]]),
        ("dispatch", [[0.5, 0.5], [0.25, 0.5], [0.125, 0.25]]),
    ],
)
def test_rates_of_the_round_and_of_the_dispatch(rate_by, expected):
    """They continue over calls."""
    rate = rate_schedules["exponential"](0.5, decay=0.5)
    drawn = rounds_of(fixed([[0, 1], [0, 2], [0, 1]]), 2, learning_rate=rate, rate_by=rate_by)
    values = np.concatenate([drawn.dispatches(n).learning_rate for n in (1, 2)])
    np.testing.assert_array_equal(values, expected)
    assert values.dtype == np.float32


@pytest.mark.parametrize(
    "spec",
    [
        "inverse:decay=0.5",
        pytest.param("exponential:0.8", marks=pytest.mark.all),
        pytest.param("step:factor=0.5,every=2", marks=pytest.mark.all),
    ],
)
def test_each_local_step_of_a_run_may_have_its_rate(spec):
    """x <- (1 - eta_n) x for n = 0 to 5, in two rounds of three steps."""
    toy, rate = quadratics([[1.0]], [[0.0]]), rate_schedules.make(spec, 0.4)
    local = fa.Local(1, rate, steps=3, rate_by="step")
    engine = fa.make_engine(fa.algorithms.fedavg(toy.problem, local))
    state, _ = fa.simulate(engine, toy.data, cohort_size=1, rounds=2)
    expected = 0.5 * np.prod(1 - rate(np.arange(6)))
    np.testing.assert_allclose(state.server.params["x"], expected, rtol=1e-6)
    counts, first = toy.data.counts(), rate(np.array([[0], [3]]))
    drawn = fa.participation.Cohorts(counts, local, cohort_size=1, seed=0).dispatches(2)
    traced = fa.traced_dispatches(0, counts, local, cohort_size=1, rounds=2)
    for dispatches in (drawn, traced):
        np.testing.assert_allclose(dispatches.learning_rate, first, rtol=1e-6)


def test_rates_that_are_not_positive_are_rejected():
    with pytest.raises(ValueError, match="learning_rate=inf"):
        rounds_of(learning_rate=np.inf)
    with pytest.raises(ValueError, match="at count 2"):
        rounds_of(learning_rate=lambda t: 0.2 - 0.1 * t).dispatches(3)


@pytest.mark.parametrize(
    ("registry", "specs"),  # the last value of each is wrong
    [
        (samplers, "cyclic:num_groups=2.5 dirichlet:gamma=0 poisson:mean=0"),
        (failures, "independent:probability=1 by_client:median=1"),
        (local_works, "partial:share=1.5 partial:tau_max=0 deadline:seconds=0"),
        (local_works, "deadline:seconds=1,speeds=x deadline:seconds=1,seconds_per_step=0"),
        (rate_schedules, "exponential:decay=1.5 step:factor=0.5,every=0 inverse:decay=-1"),
        (rate_schedules, "step:every=2,factor=0"),
    ],
)
def test_values_out_of_range(registry, specs):
    for spec in specs.split():
        name, value = re.split("[:,]", spec)[-1].split("=")
        with pytest.raises(ValueError, match=f"{name}='?{value}'? is"):
            registry.make(spec, *[0.1] * (registry is rate_schedules))
