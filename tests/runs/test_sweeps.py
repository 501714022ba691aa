"""A sweep gives the numbers of separate runs, for every algorithm, on any devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, Compilations, small_network
from sweep_helpers import (
    FULL,
    LOCAL,
    ROUNDS,
    assert_same_rows,
    engine_of,
    evaluation,
    separately,
    sweep_toy,
    toy,
)

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core.options import options
from fedjax_algos.runs.batched import Run, run_batched
from fedjax_algos.runs.batched import program as programs
from fedjax_algos.runs.batched.sweeps import sweep
from fedjax_algos.runs.recorder import DivergenceWarning

pytestmark = pytest.mark.usefixtures("x64")

ONE_EACH = list({case.name: case for case in CASES}.values())  # the last of each name
DIVIDING = ("fedrep", "fedbn")  # the params, which are one array in `toy`
ONE_OF_A_KIND = ("fedadam", "fedgbo", "mimelite", "scaffold", "ghbm", "fedlga", "apfl")


@pytest.mark.all
def test_runs_may_be_tested_on_examples_of_the_clients():
    problem, data, test = toy()
    rows = {0: np.array([3, 1, 8, 3], np.int32), 7: np.array([16, 2, 0, 5], np.int32)}
    chosen = [
        Run("fedavg", seed, data[seed], FULL, {}, {}, test_rows=rows[seed]) for seed in (0, 7)
    ]
    measured = run_batched(algorithms["fedavg"], problem, chosen, test=test, **ROUNDS).rows
    for seed in (0, 7):
        own = {name: leaf[rows[seed]] for name, leaf in data[seed].examples.items()}
        _, expected = fa.simulate(
            engine_of(algorithms["fedavg"], FULL.learning_rate, FULL),
            data[seed], seed=seed, test=own, evaluate=evaluation(), **ROUNDS,
        )  # fmt: skip
        assert_same_rows([row for row in measured if row["seed"] == seed], expected)
    for wrong, message in (
        (np.array([17]), "at least one whole number from 0 to 16, of the examples"),
        (np.array([-1, 3]), "at least one whole number from 0 to 16"),
        (np.array([], int), "give a list of at least one whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            run_batched(
                algorithms["fedavg"], problem, [chosen[0]._replace(test_rows=wrong)], **ROUNDS
            )


class Traced(Exception):
    """Stands for the compilation of a program; has the number of its runs."""


@pytest.fixture
def traced(monkeypatch):
    """Programs are traced, and neither compiled nor run."""
    begin, advance = programs.begin_each, programs.advance_each

    def trace_begin(program, *inputs):
        return jax.eval_shape(functools.partial(begin, program), *inputs)

    def trace_advance(program, states, shared, entries, *rest):
        jax.eval_shape(functools.partial(advance, program), states, shared, entries, *rest)
        raise Traced(len(entries.seed))

    monkeypatch.setattr(programs, "begin_each", trace_begin)
    monkeypatch.setattr(programs, "advance_each", trace_advance)


def every_real_option(case):
    """The factory, its other options, and a grid of all real ones and the client rate."""
    factory = algorithms[case.name]
    floats = [option.name for option in options(factory).values() if option.kind is float]
    others = {name: value for name, value in case.hyperparameters.items() if name not in floats}
    grid = {name: [0.3, 0.6] for name in floats} | {"client_learning_rate": [0.05, 0.1]}
    return factory, others, floats, grid


@pytest.mark.all
@pytest.mark.parametrize("case", [c for c in ONE_EACH if c.name not in DIVIDING], ids=str)
def test_every_real_option_of_every_algorithm_is_an_argument(case, traced):
    """All at once, with the client rate and the seed, in one program."""
    factory, others, floats, grid = every_real_option(case)
    with pytest.raises(Traced) as told:
        sweep_toy(factory, grid, local=FULL, hyperparameters=others)
    assert told.value.args == (2 ** (len(floats) + 2),)


@pytest.mark.all
@pytest.mark.parametrize("case", [c for c in ONE_EACH if c.name in ONE_OF_A_KIND], ids=str)
def test_every_real_option_can_be_swept(case):
    factory, others, floats, grid = every_real_option(case)
    # two calls of two rounds are one program
    rows, (note,) = sweep_toy(factory, grid, local=FULL, hyperparameters=others, rounds=4)
    runs = 2 ** (len(floats) + 2)
    assert note.startswith(f"{runs} runs in a program")
    assert len(rows) == 3 * runs
    assert rows[-1]["method"].endswith(" client_learning_rate=0.1")
    chosen = others | dict.fromkeys(floats, 0.6)
    assert_same_rows(rows[-3:], separately(factory, 7, local=FULL, rounds=4, **chosen))


@pytest.mark.parametrize("name", DIVIDING)
def test_every_real_option_of_an_algorithm_that_divides_the_params(name, traced):
    toy, part = small_network(), {"fedrep": {"head": "out"}, "fedbn": {"norm": "hidden/b"}}[name]
    floats = [option.name for option in options(algorithms[name]).values() if option.kind is float]
    grid = {option: [0.3, 0.6] for option in floats}
    settings = {"hyperparameters": part, "cohort_size": 2, "rounds": 2}
    with pytest.raises(Traced) as told:
        sweep(name, toy.problem, FULL, toy.data, grid=grid, **settings)
    assert told.value.args == (2 ** len(floats),)


FEDPROX = algorithms["fedprox"]
GRID = {"mu": [0.3, 0.6], "client_learning_rate": [0.05, 0.1]}
ALL = [
    (mu, rate, seed)
    for mu in GRID["mu"]
    for rate in GRID["client_learning_rate"]
    for seed in (0, 7)
]
# a run is a model of 3 doubles, a seed and three counts of excluded updates, before and after, and
# 4 dispatches of 9 numbers
RUN = 2 * (3 * 8 + 4 + 3 * 4) + 4 * (7 * 4 + 2 * 8)


@pytest.mark.all
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "8 runs in a program, 8 in a call, 1 at once on each of 1 devices"),
        ({"devices": 3}, "8 runs in a program, 9 in a call, 1 at once on each of 3 devices"),
        (
            {"devices": 2, "runs_per_device": 2, "layout": "vmapped"},
            "8 in a call, 2 at once on each of 2",
        ),
        ({"memory": 3 * RUN}, "3 in a call"),
    ],
    ids=["one device", "a device too many", "mapped", "three calls, the last filled"],
)
def test_each_setting_and_seed_on_any_devices_in_any_calls(changes, message):
    rows, (note,) = sweep_toy(FEDPROX, GRID, **changes)
    assert message in note
    expected = [separately(FEDPROX, seed, rate, mu=mu) for mu, rate, seed in ALL]
    assert len({history[-1]["test_loss"] for history in expected}) == len(ALL)
    for index, ((mu, rate, seed), history) in enumerate(zip(ALL, expected, strict=True)):
        own = rows[3 * index : 3 * index + 3]
        label = f"fedprox mu={mu} client_learning_rate={rate}"
        assert {(row["method"], row["seed"]) for row in own} == {(label, seed)}
        assert_same_rows(own, history)


def test_runs_that_do_not_fit_into_memory(monkeypatch):
    """Those larger than the default are computed one after another."""
    message = f"memory={2 * RUN - 1} is out of range; give at least {2 * RUN} bytes"
    with pytest.raises(ValueError, match=message):
        sweep_toy(FEDPROX, GRID, devices=2, memory=2 * RUN - 1)
    monkeypatch.setattr("fedjax_algos.runs.batched.program._MEMORY", RUN - 1)
    rows, (note,) = sweep_toy(FEDPROX, GRID)
    assert "8 runs in a program, 1 in a call" in note
    assert_same_rows(rows[-3:], separately(FEDPROX, 7, 0.1, mu=0.6))
    monkeypatch.setattr("fedjax_algos.core.limits.device_memory", lambda: RUN - 1)
    with pytest.raises(ValueError, match="the states of 1 runs at once would need"):
        sweep_toy(FEDPROX, GRID)


@pytest.mark.all
def test_a_second_sweep_of_like_shape_compiles_nothing():
    options = {"devices": 2, "hyperparameters": {"weighting": "uniform"}}
    sweep_toy("fedprox", GRID, **options)
    with Compilations() as later:
        rows, _ = sweep_toy(
            "fedprox", {"mu": [0.1, 0.2], "client_learning_rate": [0.3, 0.2]}, (7, 0), **options
        )
    assert later.count == 0
    assert_same_rows(rows[-3:], separately(FEDPROX, 0, 0.2, mu=0.2, weighting="uniform"))


@pytest.mark.all
def test_a_run_that_diverges_leaves_the_others_alone():
    grid, two = {"server_learning_rate": [1e200, 1.0]}, {"devices": 2, "runs_per_device": 2}
    with pytest.warns(DivergenceWarning, match="1e\\+200, seed 0: not finite at round 2") as told:
        rows, _ = sweep_toy(FEDPROX, grid, **two)
    assert len(told) == 1
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


def test_given_params_and_each_evaluation():
    params, seen = jnp.asarray([1.0, 2.0, 3.0]), []
    rows, _ = sweep_toy(FEDPROX, {"mu": [0.3]}, params=params, on_evaluation=seen.append)
    assert rows[0]["test_loss"] == rows[3]["test_loss"]
    assert [(row["seed"], row["round"]) for row in seen] == [
        (seed, number) for number in (0, 2, 3) for seed in (0, 7)
    ]
    assert sorted(map(id, seen)) == sorted(map(id, rows))


@pytest.mark.parametrize(
    ("grid", "changes", "message"),
    [
        ({"mo": [1]}, {}, r"fedprox: unknown option 'mo'; did you mean mu\?|choose"),
        ({"mu": [0.1, -1]}, {}, "fedprox: mu=-1 is out of range; give a number of at least 0"),
        ({"client_learning_rate": [0.0]}, {}, "client_learning_rate=0.0 is out of range"),
        ({"mu": []}, {}, "fedprox: mu has no values in the grid; give at least one"),
        ({"mu": [1, 0.5, 1.0]}, {}, "fedprox: mu=1 is twice in the grid; give it once"),
        ({"mu": [1.0]}, {"hyperparameters": {"mu": 2.0}}, "mu is in the grid too"),
        ({"weighting": ["unifrom"]}, {}, "weighting='unifrom' is unknown; choose"),
        ({"mu": [1.0]}, {"seeds": (0, 3)}, "seed 3 has no data or is given twice"),
        ({"mu": [1.0]}, {"devices": 99}, "devices=99 is out of range"),
        ({"mu": [1.0]}, {"runs_per_device": 0}, "runs_per_device=0 is out of range; give a whole"),
        ({"mu": [1.0]}, {"rounds": 0}, "rounds=0 is out of range; give a whole number of at least"),
    ],
)
def test_mistakes_are_found_before_anything_is_compiled(grid, changes, message):
    toy()
    with Compilations() as compiled, pytest.raises(ValueError, match=message):
        sweep_toy("fedprox", grid, **changes)
    assert compiled.count == 0


def test_clients_that_keep_state_are_once_in_a_cohort():
    def twice(seed, rounds, num_clients, cohort_size):
        return np.asarray([(1, 1)] * len(rounds), np.int32)

    with pytest.raises(ValueError, match="client 1 is twice in the cohort of round 0"):
        sweep_toy("scaffold", {"server_learning_rate": [0.5]}, sampler=twice)
