"""A sweep gives the numbers of separate runs, whatever the algorithm, the devices and the calls."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import CASES, Compilations

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core import weighted_by
from fedjax_algos.core.registry import NonNegative, Positive, options
from fedjax_algos.models.adapters import Outputs
from fedjax_algos.runs.batched import Run, run_together
from fedjax_algos.runs.batched_program import RATE
from fedjax_algos.runs.sweeps import sweep
from fedjax_algos.schedules.learning_rates import exponential

pytestmark = pytest.mark.usefixtures("x64")

ONE_EACH = list({case.name: case for case in CASES}.values())  # the last of each name
LOCAL = fa.Local(batch_size=2, learning_rate=0.1, steps=2)
FULL = LOCAL._replace(batches="full")  # quicker to compile
HOW = {"cohort_size": 2, "rounds": 3, "eval_every": 2}


@functools.cache
def toy():
    """A linear model, quick to compile; the data of two seeds; examples to test on."""
    rng = np.random.default_rng(0)
    examples = {"x": rng.normal(size=(17, 3)), "y": rng.normal(size=17)}

    def apply(model, batch, key, training):
        del key, training
        products = batch["x"] * model.params[None]
        return Outputs(products.sum(1), products), ()

    problem = fa.Problem(
        lambda key: fa.Model(jax.random.normal(key, (3,), float)),
        apply,
        lambda outputs, batch: (outputs.logits - batch["y"]) ** 2,
    )
    cuts = {0: [5, 6, 14], 7: [2, 9, 13]}
    store = jax.device_put(examples)  # one for both seeds
    data = {
        seed: fa.federate(store, fa.Partition.of(np.split(rng.permutation(17), cut)))
        for seed, cut in cuts.items()
    }
    return problem, data, {name: values[:6] for name, values in examples.items()}


def sweep_toy(algorithm, grid, seeds=(0, 7), local=LOCAL, **how):
    problem, data, test = toy()
    return sweep(algorithm, problem, local, data, grid=grid, seeds=seeds, test=test, **HOW | how)


@functools.cache
def evaluation():
    return fa.make_evaluate(toy()[0])


@functools.cache
def engine_of(algorithm, rate, local, **hyperparameters):
    local = local._replace(learning_rate=rate)
    return fa.make_engine(algorithm(toy()[0], local, **hyperparameters))


def separately(algorithm, seed, rate=LOCAL.learning_rate, local=LOCAL, **hyperparameters):
    """The rows of `simulate`."""
    _, data, test = toy()
    engine, evaluate = engine_of(algorithm, rate, local, **hyperparameters), evaluation()
    return fa.simulate(engine, data[seed], seed=seed, test=test, evaluate=evaluate, **HOW)[1]


def same(rows, expected, tolerance=1e-11):
    """Column by column; only the time may differ, and who ran is told besides."""
    assert len(rows) == len(expected) == 3
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() - {"method", "seed"} == other.keys()
        for name in other.keys() - {"wall_seconds"}:
            np.testing.assert_allclose(row[name], other[name], rtol=tolerance, err_msg=name)


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_every_real_option_of_every_algorithm_can_be_swept(case):
    """All at once, with the client rate and the seed, in one program."""
    factory = algorithms[case.name]
    floats = [option.name for option in options(factory).values() if option.kind is float]
    others = {name: value for name, value in case.hyperparameters.items() if name not in floats}
    grid = {name: [0.3, 0.6] for name in floats} | {"client_learning_rate": [0.05, 0.1]}
    rows, (note,) = sweep_toy(factory, grid, local=FULL, hyperparameters=others)
    runs = 2 ** (len(floats) + 2)
    assert note.startswith(f"{runs} runs in a program")
    assert len(rows) == 3 * runs
    assert rows[-1]["method"].endswith(" client_learning_rate=0.1")
    chosen = others | dict.fromkeys(floats, 0.6)
    same(rows[-3:], separately(factory, 7, local=FULL, **chosen))


FEDPROX = algorithms["fedprox"]
GRID = {"mu": [0.3, 0.6], "client_learning_rate": [0.05, 0.1]}
ALL = [
    (mu, rate, seed)
    for mu in GRID["mu"]
    for rate in GRID["client_learning_rate"]
    for seed in (0, 7)
]
# a run is a model of 3 doubles and a seed, before and after, and 4 visits of 9 numbers
RUN = 2 * (3 * 8 + 4) + 4 * (7 * 4 + 2 * 8)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({}, "8 runs in a program, 8 in a call, 1 at once on each of 1 devices"),
        ({"devices": 3}, "8 runs in a program, 9 in a call, 1 at once on each of 3 devices"),
        ({"devices": 2, "at_once": 2, "layout": "vmapped"}, "8 in a call, 2 at once on each of 2"),
        ({"devices": 2, "memory": 3 * RUN}, "2 in a call"),
        ({"memory": 3 * RUN}, "3 in a call"),
    ],
    ids=["one device", "a device too many", "mapped", "four calls", "three calls, the last filled"],
)
def test_each_setting_and_seed_on_any_devices_in_any_calls(how, told):
    rows, (note,) = sweep_toy(FEDPROX, GRID, **how)
    assert told in note
    expected = [separately(FEDPROX, seed, rate, mu=mu) for mu, rate, seed in ALL]
    assert len({history[-1]["test_loss"] for history in expected}) == len(ALL)
    for index, ((mu, rate, seed), history) in enumerate(zip(ALL, expected, strict=True)):
        own = rows[3 * index : 3 * index + 3]
        label = f"fedprox mu={mu} client_learning_rate={rate}"
        assert {(row["method"], row["seed"]) for row in own} == {(label, seed)}
        same(own, history)


def test_too_little_memory_is_refused():
    told = f"memory={2 * RUN - 1} is out of range; give at least {2 * RUN} bytes"
    with pytest.raises(ValueError, match=told):
        sweep_toy(FEDPROX, GRID, devices=2, memory=2 * RUN - 1)


def test_a_second_sweep_of_like_shape_compiles_nothing():
    how = {"devices": 2, "hyperparameters": {"weighting": "uniform"}}
    sweep_toy("fedprox", GRID, **how)
    with Compilations() as later:
        rows, _ = sweep_toy(
            "fedprox", {"mu": [0.1, 0.2], "client_learning_rate": [0.3, 0.2]}, (7, 0), **how
        )
    assert later.count == 0
    same(rows[-3:], separately(FEDPROX, 0, 0.2, mu=0.2, weighting="uniform"))


def test_what_sets_shapes_has_a_program_each():
    rows, notes = sweep_toy("ghbm", {"tau": [1, 2], "beta": [0.3, 0.6]}, devices=2)
    assert [note.split(",")[0] for note in notes] == ["4 runs in a program"] * 2
    assert [row["method"] for row in rows[::6]] == [
        f"ghbm tau={tau} beta={beta}" for tau in (1, 2) for beta in (0.3, 0.6)
    ]
    same(rows[3 * 5 : 3 * 6], separately(algorithms["ghbm"], 7, tau=2, beta=0.3))


def test_objects_have_a_program_each():
    transforms = [optax.scale_by_adam(), optax.scale_by_rms()]
    rows, notes = sweep_toy("fedavg", {"server_transform": transforms}, [0])
    assert len(notes) == 2
    assert [row["method"] for row in rows[::3]] == [
        "fedavg server_transform=#0", "fedavg server_transform=#1",
    ]  # fmt: skip
    same(rows[3:], separately(algorithms["fedavg"], 0, server_transform=transforms[1]))


def test_equal_numbers_of_other_types_are_other_values():
    def typed(problem, local, *, uniform: object = None):
        return FEDPROX(problem, local, weighting="uniform" if uniform is True else "examples")

    rows, notes = sweep_toy(typed, {"uniform": [1, True]}, [0])
    assert len(notes) == 2
    same(rows[:3], separately(FEDPROX, 0))
    same(rows[3:], separately(FEDPROX, 0, weighting="uniform"))


def always(problem, local, *, mu: NonNegative = 0.1, threshold: Positive = 0.5):
    """FedProx that reads its numbers as values, when a client has done its work."""
    algorithm = FEDPROX(problem, local, mu=mu)

    def contribute(update, visit, staleness):
        uniform = float(mu) < 0.5 < float(threshold)
        return weighted_by("uniform" if uniform else "examples")(update, visit, staleness)

    return algorithm._replace(contribute=contribute)


def sometimes(problem, local, *, mu: NonNegative = 0.1, threshold: Positive = 0.5):
    """FedProx that reads one number as a value, and the other only where this is large."""
    uniform = threshold > 0.5 and mu > 0.5
    return FEDPROX(problem, local, mu=mu, weighting="uniform" if uniform else "examples")


READ = "{}: read as a value, so a program for each"


@pytest.mark.parametrize(
    ("factory", "thresholds", "told"),
    [
        (always, [0.7], [READ.format("mu and threshold"), 2, 2]),
        (sometimes, [0.4, 0.7], [READ.format("threshold"), 4, READ.format("mu"), 2, 2]),
    ],
)
def test_a_number_that_is_read_as_a_value_has_a_program_each(factory, thresholds, told):
    rows, notes = sweep_toy(factory, {"threshold": thresholds, "mu": [0.3, 0.6]})
    told = [f"{part} runs in a program" if isinstance(part, int) else part for part in told]
    assert [note.split(", ")[0] if "runs" in note else note for note in notes] == told
    assert len(rows) == 4 * 3 * len(thresholds)
    same(rows[3 * 3 : 4 * 3], separately(factory, 7, mu=0.6, threshold=thresholds[0]))
    same(rows[-3:], separately(factory, 7, mu=0.6, threshold=thresholds[-1]))


def test_what_reads_a_value_in_vain_fails_as_it_is():
    def broken(problem, local, *, mu: NonNegative = 0.1):
        def contribute(update, visit, staleness):
            return float(visit.share)

        return FEDPROX(problem, local, mu=mu)._replace(contribute=contribute)

    with pytest.raises(jax.errors.ConcretizationTypeError):
        sweep_toy(broken, {"mu": [0.3, 0.6]})


def test_an_algorithm_sees_each_run_s_client_rate():
    """As a number in its `local`; a function that moves the rate is only asked for visits."""

    def prox(problem, local, *, mu: NonNegative = 0.1):
        return FEDPROX(problem, local, mu=mu * local.learning_rate)

    grid = {"client_learning_rate": [0.05, 0.1]}
    rows, notes = sweep_toy(prox, grid)
    assert len(notes) == 1
    same(rows[:3], separately(prox, 0, 0.05))
    same(rows[-3:], separately(prox, 7, 0.1))

    def scheduled(problem, local, *, mu: NonNegative = 0.1):
        return FEDPROX(problem, local, mu=mu * float(local.learning_rate(0)))

    problem, data, test = toy()
    moved = {rate: exponential(rate, decay=0.9) for rate in (0.05, 0.1)}
    runs = [
        Run("own", 0, data[0], LOCAL._replace(learning_rate=moved[rate]), {}, {RATE: rate})
        for rate in moved
    ]
    for factory, programs in ((FEDPROX, 1), (scheduled, 2)):
        rows, notes = run_together(factory, problem, runs, test=test, **HOW)
        assert sum("in a program" in note for note in notes) == programs
        same(rows[3:], separately(factory, 0, moved[0.1]))


def test_a_run_that_diverges_leaves_the_others_alone():
    rows, _ = sweep_toy(FEDPROX, {"client_learning_rate": [1e200, 0.1]}, devices=2, at_once=2)
    assert not np.isfinite(rows[2]["test_loss"])
    same(rows[-3:], separately(FEDPROX, 7))


def test_a_number_does_not_widen_params_of_another_precision():
    problem, data, _ = toy()
    narrow = problem._replace(
        init=lambda key: fa.Model(jax.random.normal(key, (3,), jnp.float32)),
        apply=lambda model, *rest: problem.apply(fa.Model(model.params.astype(float)), *rest),
    )
    grid = {"b1": [0.3, 0.6], "client_learning_rate": [0.1], "server_learning_rate": [0.2]}
    rows, _ = sweep("fedadam", narrow, LOCAL, data[0], grid=grid, **HOW)
    engine = fa.make_engine(algorithms["fedadam"](narrow, LOCAL, b1=0.6, server_learning_rate=0.2))
    same(rows[3:], fa.simulate(engine, data[0], **HOW)[1], 1e-6)


def test_given_params_and_each_evaluation():
    params, seen = jnp.asarray([1.0, 2.0, 3.0]), []
    rows, _ = sweep_toy(FEDPROX, {"mu": [0.3]}, params=params, on_evaluation=seen.append)
    assert rows[0]["test_loss"] == rows[3]["test_loss"]
    assert [(row["seed"], row["round"]) for row in seen] == [
        (seed, number) for number in (0, 2, 3) for seed in (0, 7)
    ]
    assert sorted(map(id, seen)) == sorted(map(id, rows))


@pytest.mark.parametrize(
    ("grid", "how", "told"),
    [
        ({"mo": [1]}, {}, r"fedprox: unknown option 'mo'; did you mean mu\?|choose"),
        ({"mu": [0.1, -1]}, {}, "fedprox: mu=-1 is out of range; give a number of at least 0"),
        ({"client_learning_rate": [0.0]}, {}, "client_learning_rate=0.0 is out of range"),
        ({"mu": []}, {}, "fedprox: mu has no values in the grid; give at least one"),
        ({"mu": [1, 0.5, 1.0]}, {}, "fedprox: mu=1 stands twice in the grid; give it once"),
        ({"mu": [1.0]}, {"hyperparameters": {"mu": 2.0}}, "mu stands in the grid too"),
        ({"weighting": ["unifrom"]}, {}, "weighting='unifrom' is unknown; choose"),
        ({"mu": [1.0]}, {"seeds": (0, 3)}, "seed 3 has no data or stands twice"),
        ({"mu": [1.0]}, {"seeds": (7, 7)}, "seed 7 has no data or stands twice"),
        ({"mu": [1.0]}, {"devices": 99}, "devices=99 is out of range"),
        ({"mu": [1.0]}, {"at_once": 0}, "at_once=0 is out of range; give at least 1"),
        ({"mu": [1.0]}, {"rounds": 0}, "rounds=0 and eval_every=2 must be at least 1"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_compiled(grid, how, told):
    toy()
    with Compilations() as compiled, pytest.raises(ValueError, match=told):
        sweep_toy("fedprox", grid, **how)
    assert compiled.count == 0


def test_ranges_are_checked_before_anything_is_traced():
    problem, data, _ = toy()
    runs = [Run("", 0, data[0], LOCAL, {"mu": mu}, {"mu": mu}) for mu in (1.0, -1.0)]
    with pytest.raises(ValueError, match=r"fedprox: mu=-1\.0 is out of range"):
        run_together(FEDPROX, problem, runs, **HOW)


def test_clients_that_keep_state_stand_once_in_a_cohort():
    def twice(seed, rounds, num_clients, cohort_size):
        return np.asarray([(1, 1)] * len(rounds), np.int32)

    with pytest.raises(ValueError, match="client 1 stands twice in the cohort of round 0"):
        sweep_toy("scaffold", {"server_learning_rate": [0.5]}, sampler=twice)
