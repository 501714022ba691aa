"""Which runs of a sweep share a program, and what an algorithm sees of their differences."""

import functools

import jax
import optax
import pytest
import sweep_helpers
from sweep_helpers import FULL, ROUNDS, assert_same_rows, toy

from fedjax_algos.algorithms import algorithms
from fedjax_algos.core import weighted_by
from fedjax_algos.core.options import NonNegative, Positive
from fedjax_algos.participation.rate_schedules import exponential
from fedjax_algos.runs.batched import Run, run_batched
from fedjax_algos.runs.method import CLIENT_LEARNING_RATE

pytestmark = pytest.mark.usefixtures("x64")

FEDPROX = algorithms["fedprox"]
sweep_toy = functools.partial(sweep_helpers.sweep_toy, local=FULL)
separately = functools.partial(sweep_helpers.separately, local=FULL)


@pytest.mark.all
def test_objects_have_a_program_each():
    """And so have equal numbers of other types."""

    def typed(problem, local, *, uniform: object = None):
        return FEDPROX(problem, local, weighting="uniform" if uniform is True else "examples")

    rows, notes = sweep_toy(typed, {"uniform": [1, True]}, [0])
    assert len(notes) == 2
    assert_same_rows(rows[3:], separately(FEDPROX, 0, weighting="uniform"))
    transforms = [optax.scale_by_adam(), optax.scale_by_rms()]
    rows, notes = sweep_toy("fedavg", {"server_transform": transforms}, [0])
    assert len(notes) == 2
    assert [row["method"] for row in rows[::3]] == [
        "fedavg server_transform=#0", "fedavg server_transform=#1",
    ]  # fmt: skip
    assert_same_rows(rows[3:], separately(algorithms["fedavg"], 0, server_transform=transforms[1]))


def always(problem, local, *, mu: NonNegative = 0.1, threshold: Positive = 0.5):
    """FedProx that reads both numbers in Python, in `contribute`."""
    algorithm = FEDPROX(problem, local, mu=mu)

    def contribute(update, dispatch, staleness):
        uniform = float(mu) < 0.5 < float(threshold)
        return weighted_by("uniform" if uniform else "examples")(update, dispatch, staleness)

    return algorithm._replace(contribute=contribute)


def sometimes(problem, local, *, mu: NonNegative = 0.1, threshold: Positive = 0.5):
    """FedProx that reads one number in Python, and the other only if the first one is large."""
    uniform = threshold > 0.5 and mu > 0.5
    return FEDPROX(problem, local, mu=mu, weighting="uniform" if uniform else "examples")


READ = "{}: read as a value, so a program for each"


@pytest.mark.all
@pytest.mark.parametrize(
    ("factory", "thresholds", "expected"),
    [
        (always, [0.7], [READ.format("mu and threshold"), 2, 2]),
        (sometimes, [0.4, 0.7], [READ.format("threshold"), 4, READ.format("mu"), 2, 2]),
    ],
)
def test_a_number_that_is_read_as_a_value_has_a_program_each(factory, thresholds, expected):
    rows, notes = sweep_toy(factory, {"threshold": thresholds, "mu": [0.3, 0.6]})
    expected = [f"{n} runs in a program" if isinstance(n, int) else n for n in expected]
    assert [note.split(", ")[0] if "runs" in note else note for note in notes] == expected
    assert len(rows) == 4 * 3 * len(thresholds)
    assert_same_rows(rows[3 * 3 : 4 * 3], separately(factory, 7, mu=0.6, threshold=thresholds[0]))
    assert_same_rows(rows[-3:], separately(factory, 7, mu=0.6, threshold=thresholds[-1]))


def test_a_traced_value_that_is_no_option_is_an_error_of_jax():
    def broken(problem, local, *, mu: NonNegative = 0.1):
        def contribute(update, dispatch, staleness):
            return float(dispatch.share)

        return FEDPROX(problem, local, mu=mu)._replace(contribute=contribute)

    with pytest.raises(jax.errors.ConcretizationTypeError):
        sweep_toy(broken, {"mu": [0.3, 0.6]})


@pytest.mark.all
def test_an_algorithm_sees_each_run_s_client_rate():
    """As a number in its `local`; a function of the rate can be called on the host only."""

    def prox(problem, local, *, mu: NonNegative = 0.1):
        return FEDPROX(problem, local, mu=mu * local.learning_rate)

    grid = {"client_learning_rate": [0.05, 0.1]}
    rows, notes = sweep_toy(prox, grid)
    assert len(notes) == 1
    assert_same_rows(rows[:3], separately(prox, 0, 0.05))
    assert_same_rows(rows[-3:], separately(prox, 7, 0.1))

    def scheduled(problem, local, *, mu: NonNegative = 0.1):
        return FEDPROX(problem, local, mu=mu * float(local.learning_rate(0)))

    problem, data, test = toy()
    moved = {rate: exponential(rate, decay=0.9) for rate in (0.05, 0.1)}
    locals_ = {rate: FULL._replace(learning_rate=schedule) for rate, schedule in moved.items()}
    runs = [
        Run("own", 0, data[0], local, {}, {CLIENT_LEARNING_RATE: rate})
        for rate, local in locals_.items()
    ]
    for factory, programs in ((FEDPROX, 1), (scheduled, 2)):
        rows, notes = run_batched(factory, problem, runs, test=test, **ROUNDS)
        assert sum("in a program" in note for note in notes) == programs
        assert_same_rows(rows[3:], separately(factory, 0, moved[0.1]))
