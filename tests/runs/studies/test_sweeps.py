"""A sweep gives the numbers of separate runs, on any devices, in as few programs as possible."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import CASES, Compilations, by_kind, fixed, small_network
from sweep_helpers import FULL, LOCAL, ROUNDS, assert_same_rows, separately, sweep_toy, toy, traced

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core import weighted_by
from fedjax_algos.core.options import NonNegative, Positive, options
from fedjax_algos.engine.placed.devices import client_mesh
from fedjax_algos.participation.rate_schedules import exponential
from fedjax_algos.runs import Run, run_batched
from fedjax_algos.runs.loops.program import constants_of
from fedjax_algos.runs.loops.recorder import DivergenceWarning
from fedjax_algos.runs.loops.run import CLIENT_LEARNING_RATE, check_test_rows
from fedjax_algos.runs.loops.run_batched import call_size
from fedjax_algos.runs.studies.search_space import text_of
from fedjax_algos.runs.studies.sweeps import sweep

pytestmark = pytest.mark.usefixtures("x64")

FEDPROX = algorithms["fedprox"]
GRID = {"mu": [0.3, 0.6], "client_learning_rate": [0.05, 0.1]}
# a run is a model of 3 doubles, a seed and three counts of excluded updates, before and after, and
# 4 dispatches of 9 numbers
RUN_BYTES = 2 * (3 * 8 + 4 + 3 * 4) + 4 * (7 * 4 + 2 * 8)
full_sweep = functools.partial(sweep_toy, local=FULL)
alone = functools.partial(separately, local=FULL)


@pytest.mark.all
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "8 runs in a program, 8 in a call, 1 at once on each of 1 devices"),
        ({"devices": 3, "memory": 3 * RUN_BYTES}, "3 in a call"),
        ({"devices": 2, "runs_per_device": 2, "layout": "vmapped"}, "2 at once on each of 2"),
    ],
)
def test_each_setting_and_seed_on_any_devices_in_any_calls(changes, message):
    rows, (note,) = sweep_toy(FEDPROX, GRID, **changes)
    assert message in note
    assert len({row["test_loss"] for row in rows[2::3]}) == 8
    expected = [(mu, rate, seed) for mu in (0.3, 0.6) for rate in (0.05, 0.1) for seed in (0, 7)]
    for index, (mu, rate, seed) in enumerate(expected):
        own = rows[3 * index : 3 * index + 3]
        label = f"fedprox mu={mu} client_learning_rate={rate}"
        assert {(row["method"], row["seed"]) for row in own} == {(label, seed)}
        assert_same_rows(own, separately(FEDPROX, seed, rate, mu=mu))


def test_rows_that_are_not_there_are_refused():
    _, data, _ = toy()
    check_test_rows(np.array([16, 0]), data[0])
    for wrong in (np.array([17]), np.array([-1, 3]), np.array([], int), np.array([1.0])):
        with pytest.raises(ValueError, match="at least one whole number from 0 to 16"):
            check_test_rows(wrong, data[0])


def real_options(case):
    """The names of the real options, a grid of them and the client rate, and the other options."""
    known = options(algorithms[case.name]).values()
    floats = [option.name for option in known if option.kind is float]
    others = {name: value for name, value in case.hyperparameters.items() if name not in floats}
    grid = {name: [0.3, 0.6] for name in floats} | {"client_learning_rate": [0.05, 0.1]}
    return floats, grid, others


@pytest.mark.parametrize("case", by_kind(quick=False))
def test_every_real_option_of_every_algorithm_is_an_argument(case, monkeypatch):
    """All at once, with the client rate and the seed, in one program."""
    traced(monkeypatch)
    (problem, data, _), (floats, grid, others) = small_network(), real_options(case)
    how = {"seeds": (0, 7), "hyperparameters": others, "cohort_size": 2, "rounds": 2}
    _, (note,) = sweep(case.name, problem, FULL, dict.fromkeys((0, 7), data), grid=grid, **how)
    assert note.startswith(f"{2 ** (len(floats) + 2)} runs in a program")


@pytest.mark.all
@pytest.mark.parametrize("name", ["scaffold", "fedlga", "apfl"])
def test_every_real_option_can_be_swept(name):
    floats, grid, others = real_options(next(case for case in CASES if case.name == name))
    how = {"local": FULL, "rounds": 4}  # two calls of two rounds are one program
    rows, _ = sweep_toy(name, grid, hyperparameters=others, **how)
    chosen = others | dict.fromkeys(floats, 0.6)
    assert_same_rows(rows[-3:], separately(algorithms[name], 7, **how, **chosen))


@pytest.mark.all
def test_a_second_sweep_of_like_shape_compiles_nothing():
    how = {"devices": 2, "hyperparameters": {"weighting": "uniform"}}
    sweep_toy("fedprox", GRID, **how)
    other = {"mu": [0.1, 0.2], "client_learning_rate": [0.3, 0.2]}
    with Compilations() as later:
        rows, _ = sweep_toy("fedprox", other, (7, 0), **how)
    assert later.count == 0
    assert_same_rows(rows[-3:], separately(FEDPROX, 0, 0.2, mu=0.2, weighting="uniform"))


@pytest.mark.all
def test_a_run_that_diverges_leaves_the_others_alone():
    grid, two = {"server_learning_rate": [1e200, 1.0]}, {"devices": 2, "runs_per_device": 2}
    with pytest.warns(DivergenceWarning, match="1e\\+200, seed 0: not finite at round 2"):
        rows, _ = sweep_toy(FEDPROX, grid, **two)
    assert [row["round"] for row in rows] == [0, 2, 0, 2, 0, 2, 3, 0, 2, 3]
    assert not np.isfinite([rows[1]["test_loss"], rows[3]["test_loss"]]).any()
    assert_same_rows(rows[-3:], separately(FEDPROX, 7))
    rows, _ = sweep_toy(FEDPROX, {"client_learning_rate": [1e200, 0.1]}, **two)
    first, *_, last = rows[:3]  # of a run whose clients all diverge
    assert (last["test_loss"], last["excluded_updates"]) == (first["test_loss"], 6)
    assert np.isnan(last["train_loss"])
    assert_same_rows(rows[-3:], separately(FEDPROX, 7))


@pytest.mark.all
def test_a_number_does_not_widen_params_of_another_precision():
    problem, data, _ = toy()
    narrow = problem._replace(
        init=lambda key: fa.Model(jax.random.normal(key, (3,), jnp.float32)),
        apply=lambda model, *rest: problem.apply(fa.Model(model.params.astype(float)), *rest),
    )
    grid = {"b1": [0.3, 0.6], "client_learning_rate": [0.1], "server_learning_rate": [0.2]}
    rows, _ = sweep("fedadam", narrow, LOCAL, data[0], grid=grid, **ROUNDS)
    engine = fa.make_engine(algorithms["fedadam"](narrow, LOCAL, b1=0.6, server_learning_rate=0.2))
    assert_same_rows(rows[3:], fa.simulate(engine, data[0], **ROUNDS)[1], 1e-6)


@pytest.mark.all
def test_given_params_and_each_evaluation():
    params, seen = jnp.asarray([1.0, 2.0, 3.0]), []
    rows, _ = sweep_toy(FEDPROX, {"mu": [0.3]}, params=params, on_evaluation=seen.append)
    assert rows[0]["test_loss"] == rows[3]["test_loss"]
    expected = [(seed, number) for number in (0, 2, 3) for seed in (0, 7)]
    assert [(row["seed"], row["round"]) for row in seen] == expected
    assert sorted(map(id, seen)) == sorted(map(id, rows))


@pytest.mark.parametrize(
    ("grid", "changes", "message"),
    [
        ({"mu": [0.1, -1]}, {}, "fedprox: mu=-1 is out of range"),
        ({"client_learning_rate": [0.0]}, {}, "client_learning_rate=0.0 is out of range"),
        ({"mu": []}, {}, r"fedprox: the grid has mu=\[\]; give a list"),
        (
            {"mu": [1.0]},
            {"hyperparameters": {"mu": 2.0}},
            "mu=2.0 is given beside the grid",
        ),
        ({"weighting": ["unifrom"]}, {}, "weighting='unifrom' is unknown"),
        ({"mu": [1.0]}, {"seeds": (0, 3)}, r"seeds=\(0, 3\): give at least one seed, each once"),
        ({"mu": [1.0]}, {"devices": 99}, "devices=99 is out of range"),
        ({"mu": [1.0]}, {"memory": RUN_BYTES - 1}, f"of at least {RUN_BYTES}"),
        ({"mu": [1.0]}, {"runs_per_device": 0}, "runs_per_device=0 is out of range"),
    ],
)
def test_mistakes_are_found_before_anything_is_compiled(grid, changes, message):
    counts = toy()[1][0].counts()
    fa.participation.Cohorts(counts, LOCAL, cohort_size=2, seed=0).dispatches(1)  # the draws
    with Compilations() as compiled, pytest.raises(ValueError, match=message):
        sweep_toy("fedprox", grid, **changes)
    assert compiled.count == 0


def test_clients_that_keep_state_are_once_in_a_cohort():
    with pytest.raises(ValueError, match="client 1 is twice in the cohort of round 0"):
        sweep_toy("scaffold", {"server_learning_rate": [0.5]}, sampler=fixed([(1, 1)] * 3))


@pytest.mark.parametrize(
    ("devices", "at_once", "memory", "expected"),
    [
        (1, None, None, (1, 8)),  # those at once on a device, and those of a call
        (3, None, None, (1, 9)),
        (2, 3, None, (3, 12)),
        (2, 99, None, (4, 8)),
        (1, None, 399, (1, 3)),  # three calls, the last of them filled
        (2, None, 500, (1, 4)),
        (99, None, None, (1, 8)),  # not more devices than runs
        (2, None, 199, "memory=199 is out of range; give a whole number of at least 200"),
    ],
)
def test_the_runs_of_a_call(devices, at_once, memory, expected):
    """Eight runs of 100 bytes each."""
    how = client_mesh(min(devices, 8)), at_once, memory, 8, 100
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            call_size(*how)
    else:
        _, at_once, runs, note = call_size(*how)
        assert (at_once, runs) == expected
        assert note.startswith(f"8 runs in a program, {runs} in a call, {at_once} at once on each")


def test_runs_that_do_not_fit_into_memory(monkeypatch):
    """Those larger than the default are computed one after another."""
    monkeypatch.setattr("fedjax_algos.runs.loops.run_batched._MEMORY", 99)
    assert call_size(None, None, None, 8, 100)[1:3] == (1, 1)
    monkeypatch.setattr("fedjax_algos.base.limits.device_memory", lambda: 99)
    with pytest.raises(ValueError, match="the states of 1 runs at once would need"):
        call_size(None, None, None, 8, 100)


def test_constants_are_equal_with_their_types_and_objects_are_known_by_their_place():
    values = {"0.1": 0.1, "1e-07": 1e-7, "0.123456789": 0.123456789, "3": 3, "#1": optax.sgd(1.0)}
    assert [text_of(value, 1) for value in values.values()] == [*values]
    assert len({constants_of({"mu": value}, ()) for value in (1, True, 1.0, 1)}) == 3
    assert constants_of({"mu": 1, "nu": 2}, ["nu"]) == constants_of({"mu": 1}, [])


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


@pytest.mark.all
@pytest.mark.parametrize(
    ("factory", "thresholds", "expected"),
    [
        (always, [0.7], ["mu and threshold", "2", "2"]),
        (sometimes, [0.4, 0.7], ["threshold", "4", "mu", "2", "2"]),
    ],
)
def test_a_number_that_is_read_as_a_value_has_a_program_each(factory, thresholds, expected):
    rows, notes = full_sweep(factory, {"threshold": thresholds, "mu": [0.3, 0.6]})
    assert [note.split(": " if ": read as" in note else " runs")[0] for note in notes] == expected
    assert len(rows) == 4 * 3 * len(thresholds)
    assert_same_rows(rows[3 * 3 : 4 * 3], alone(factory, 7, mu=0.6, threshold=thresholds[0]))
    assert_same_rows(rows[-3:], alone(factory, 7, mu=0.6, threshold=thresholds[-1]))


@pytest.mark.all
def test_a_traced_value_that_is_no_option_is_an_error_of_jax():
    def broken(problem, local, *, mu: NonNegative = 0.1):
        algorithm = FEDPROX(problem, local, mu=mu)
        return algorithm._replace(contribute=lambda update, dispatch, _: float(dispatch.share))

    with pytest.raises(jax.errors.ConcretizationTypeError):
        full_sweep(broken, {"mu": [0.3, 0.6]})


@pytest.mark.all
def test_an_algorithm_sees_each_run_s_client_rate():
    """As a number in its `local`; a function of the rate can be called on the host only."""

    def prox(problem, local, *, mu: NonNegative = 0.1):
        return FEDPROX(problem, local, mu=mu * local.learning_rate)

    rows, notes = full_sweep(prox, {"client_learning_rate": [0.05, 0.1]})
    assert len(notes) == 1
    assert_same_rows(rows[:3], alone(prox, 0, 0.05))
    assert_same_rows(rows[-3:], alone(prox, 7, 0.1))

    def scheduled(problem, local, *, mu: NonNegative = 0.1):
        return FEDPROX(problem, local, mu=mu * float(local.learning_rate(0)))

    problem, data, test = toy()
    moved = {rate: exponential(rate, decay=0.9) for rate in (0.05, 0.1)}
    runs = [
        Run(
            "own",
            0,
            data[0],
            FULL._replace(learning_rate=schedule),
            {},
            {CLIENT_LEARNING_RATE: rate},
        )
        for rate, schedule in moved.items()
    ]
    for factory, number in ((FEDPROX, 1), (scheduled, 2)):
        rows, notes = run_batched(factory, problem, runs, test=test, **ROUNDS)
        assert sum("in a program" in note for note in notes) == number
        assert_same_rows(rows[3:], alone(factory, 0, moved[0.1]))
