"""A run that ends anywhere and goes on from its checkpoint is the same run, bit for bit."""

import contextlib
import functools

import jax
import numpy as np
import pytest
from helpers import CASES, Case, small_network
from same_runs import assert_same, without_time
from sweep_helpers import sweep_toy, toy

import fedjax_algos as fa
from fedjax_algos.asynchrony import compass, immediate, planners, traced
from fedjax_algos.asynchrony.planning import check_asynchronous
from fedjax_algos.runs.clock import simulate_async_seeds
from fedjax_algos.runs.saving.arrays import state_arrays
from fedjax_algos.runs.saving.checkpoints import Checkpoints, RunSaver, load_state

TOY = small_network()
FIRST_OF_NAME = list({case.name: case for case in reversed(CASES)}.values())
ROWS_ELSEWHERE = [
    ("scaffold", {"client_state": "host"}),
    ("ifca", {"client_state": "disk"}),
    ("feddyn", {"devices": 2, "examples": "sharded"}),
]


class Ended(Exception):
    """Stands for the end of a process."""


def end_at(row_number, rows=None):
    """An `on_evaluation` that ends the run at this row, before the row's checkpoint."""
    rows = [] if rows is None else rows

    def on_evaluation(*row):
        rows.append(row[-1])
        if len(rows) == row_number:
            raise Ended

    return on_evaluation


LOCAL = fa.Local(2, lambda count: 0.1 / (1 + count), epochs=1.0, rate_by="dispatch")


def run(engine, data=TOY.data, **options):
    """Evaluated after 0, 2, 4 and 5 rounds."""
    rounds = {"cohort_size": 2, "rounds": 5, "eval_every": 2, "seed": 3}
    return fa.simulate(engine, data, **{"test": TOY.data.examples} | rounds | options)


def check_rounds(engine, folder, **options):
    expected = run(engine, **options)
    checkpoints, rows = Checkpoints(folder, every=0), []
    for row_number in (3, 4):  # the second time it goes on from a run that went on
        with pytest.raises(Ended):
            run(engine, on_evaluation=end_at(row_number), checkpoints=checkpoints, **options)
    result = run(engine, on_evaluation=rows.append, checkpoints=checkpoints, **options)
    assert_same(result, expected)
    assert rows == result[1]


@pytest.mark.sampled
@pytest.mark.parametrize("case", FIRST_OF_NAME, ids=str)
def test_every_bit_of_every_algorithms_state_is_restored(case, tmp_path):
    """A run is a function of its state and of the cohorts; here each array has random bits."""
    begin = fa.pure_round(case.build(TOY.problem, LOCAL)).init
    shapes = jax.eval_shape(lambda: begin(0, fa.Population(4, 2, 17)))
    rng = np.random.default_rng(0)

    def random_bits(leaf):
        if leaf.dtype == bool:
            return rng.random(leaf.shape) < 0.5
        bits = rng.bytes(leaf.dtype.itemsize * leaf.size)
        return np.frombuffer(bits, leaf.dtype).reshape(leaf.shape)

    state = jax.tree.map(random_bits, shapes)
    saver = RunSaver(Checkpoints(tmp_path, every=0), lambda: {})
    saver.after_evaluation(1, lambda: (state_arrays(state), {"rows": [[]]}), last=True)
    blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    restored, _ = load_state(tmp_path, blank)
    assert jax.tree.structure(restored) == jax.tree.structure(shapes)
    assert_same((restored, []), (state, []))


# with every kind of server state, client state, prelude and reduction
ONE_OF_A_KIND = ["fedadam", "fedgbo", "mime", "scaffold", "ghbm", "fedlga", "apfl", "fedbn"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", ONE_OF_A_KIND)
def test_rounds_go_on(name, tmp_path):
    (case,) = (case for case in FIRST_OF_NAME if case.name == name)
    engine = fa.make_engine(case.build(TOY.problem, LOCAL))
    check_rounds(engine, tmp_path, rounds=6)  # calls of two rounds only, so one program


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "options"), ROWS_ELSEWHERE)
def test_rounds_go_on_with_rows_and_examples_elsewhere(name, options, tmp_path):
    if options.get("client_state") == "disk":
        options = {"client_state": fa.RowsOnDisk(tmp_path / "rows")}
    engine = fa.make_engine(Case(name, {}).build(TOY.problem, LOCAL), **options)
    check_rounds(engine, tmp_path / "checkpoints")


def asynchronous_cases():
    kinds = {*ONE_OF_A_KIND, "fedasync", "fedat", "fedbuff", "fedcompass"}
    for case in FIRST_OF_NAME:
        if case.name in kinds:
            with contextlib.suppress(ValueError):
                check_asynchronous(case.build(TOY.problem, ASYNC_LOCAL))
                yield case


ASYNC_LOCAL = fa.Local(2, 0.05, steps=2)
PLANNERS = {"barrier": "barrier:steps=2", "compass": "compass:min_steps=1,max_steps=4"}


def planned(case):
    """A planner with which the algorithm runs, with updates of many versions in flight."""
    allowed = case.build(TOY.problem, ASYNC_LOCAL).traits.asynchrony
    name = allowed.default
    if name == "barrier" and (allowed.allowed is None or "immediate" in allowed.allowed):
        name = "immediate"
    return planners.make(PLANNERS.get(name, f"{name}:steps=2"))


def run_async(executor, planner, seeds=(3,), **options):
    system = lambda seed, **_: traced(np.array([1.0, 2.0, 2.5, 10.0]) / (5 + seed))(seed)  # noqa: E731
    return simulate_async_seeds(
        executor, dict.fromkeys(seeds, TOY.data), planner, system,
        **{"seconds": 6, "evaluations": 3, "test": TOY.data.examples} | options,
    )  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("case", list(asynchronous_cases()), ids=str)
def test_the_virtual_clock_goes_on(case, tmp_path):
    executor = fa.make_executor(case.build(TOY.problem, ASYNC_LOCAL), slots=2, waves_per_call=2)
    planner = planned(case)
    expected = run_async(executor, planner)
    checkpoints, rows = Checkpoints(tmp_path, every=0), []
    for row_number in (3, 4):
        with pytest.raises(Ended):
            run_async(executor, planner, on_evaluation=end_at(row_number), checkpoints=checkpoints)
    options = {"on_evaluation": lambda seed, row: rows.append(row), "checkpoints": checkpoints}
    for _ in range(2):  # the second time it has reached its end before
        rows.clear()
        result = run_async(executor, planner, **options)
        assert_same(result[3][:2], expected[3][:2])
        assert rows == result[3].rows


@pytest.mark.slow
@pytest.mark.parametrize("merged_bytes", [2**30, 0], ids=["merged", "one after another"])
def test_several_seeds_on_the_virtual_clock_go_on(merged_bytes, tmp_path):
    algorithm = Case("fedcompass", {"variant": "momentum"}).build(TOY.problem, ASYNC_LOCAL)
    executor = fa.make_executor(algorithm, slots=2, waves_per_call=2)
    planner = compass(min_steps=1, max_steps=4)
    options = {"seeds": (3, 0), "merged_bytes": merged_bytes}
    expected = run_async(executor, planner, **options)
    options["checkpoints"] = Checkpoints(tmp_path, every=0)
    for row_number in (4, 6, 7):
        with pytest.raises(Ended):
            run_async(executor, planner, on_evaluation=end_at(row_number), **options)
    result = run_async(executor, planner, **options)
    for seed in (3, 0):
        assert_same(result[seed][:2], expected[seed][:2])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"memory": 4000, "devices": 2}], ids=["one call", "calls"])
def test_a_sweep_goes_on(options, tmp_path):
    """Also with a grid of values that are constants of programs, which are tried as arguments."""
    grid = {"mu": [0.1, 0.5], "weighting": ["uniform", "examples"]}
    models, expected_models = {}, {}

    def keep(models):
        return lambda label, seed, model: models.update({(label, seed): model})

    expected = sweep_toy("fedprox", grid, on_end=keep(expected_models), **options)
    options = options | {"checkpoints": Checkpoints(tmp_path, every=0)}
    for row_number in (9, 14):
        with pytest.raises(Ended):
            sweep_toy("fedprox", grid, on_evaluation=end_at(row_number), **options)
    result = sweep_toy("fedprox", grid, on_end=keep(models), **options)
    assert without_time(result.rows) == without_time(expected.rows)
    assert models.keys() == expected_models.keys()
    for name, model in models.items():
        np.testing.assert_array_equal(model.params, expected_models[name].params)


@functools.cache
def fedavg():
    return fa.make_engine(Case("fedavg", {}).build(TOY.problem, LOCAL))


def test_a_run_that_has_ended_computes_nothing_again(ended, monkeypatch):
    expected = run(fedavg())
    monkeypatch.setattr(type(fedavg()), "rounds", None)
    assert_same(run(fedavg(), checkpoints=ended), expected)


def test_the_last_checkpoints_are_kept_and_load(tmp_path):
    state, rows = run(fedavg(), checkpoints=Checkpoints(tmp_path, every=0, keep=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4.checkpoint", "5.checkpoint"]
    loaded, saved = load_state(tmp_path, fedavg().init(9, fa.Population(4, 2, 17)))
    assert_same((loaded, saved), (state, rows))
    other = fa.make_engine(Case("fedadam", {}).build(TOY.problem, LOCAL))
    with pytest.raises(ValueError, match=r"server/\w+.* is float32.* in this run and missing"):
        load_state(tmp_path, other.init(9, fa.Population(4, 2, 17)))
    with pytest.raises(ValueError, match=r"nothing' holds no checkpoint; name the folder"):
        load_state(tmp_path / "nothing", state)


def test_no_checkpoint_is_written_before_its_time(tmp_path):
    run(fedavg(), checkpoints=Checkpoints(tmp_path, last=False))
    assert not list(tmp_path.iterdir())


OTHER_TEST = jax.tree.map(lambda leaf: leaf + 1, TOY.data.examples)
FEWER_TEST = jax.tree.map(lambda leaf: leaf[:-1], TOY.data.examples)
OTHER_RATES = LOCAL._replace(learning_rate=lambda t: 0.1 * (1 - t / 6))


def other_engine(case, local=LOCAL):
    return fa.make_engine(case.build(TOY.problem, local))


OTHERS = [
    ({"rounds": 7}, "rounds: 5 in the checkpoint, 7 here; the run ended with an "),
    ({"rounds": 4}, "rounds: 5 in the checkpoint, 4 here; it was made after 5"),
    ({"eval_every": 3}, "eval_every: 2 in the checkpoint, 3 here\n"),
    ({"seed": 4}, "the initial model, which the seed draws: others in the checkpoint\n"),
    ({"cohort_size": 3}, "the cohorts of the first rounds, .*: others in the checkp"),
    ({"sampler": fa.participation.cyclic(num_groups=2)}, "the cohorts of the first rou"),
    ({"test": OTHER_TEST}, "the test examples: others in the checkpoint\n"),
    ({"test": FEWER_TEST}, "the test examples: others in the checkpoint\n"),
    ({"test": None}, "the test examples: others in the checkpoint\n"),
    ({"data": TOY.data._replace(examples=OTHER_TEST)}, "the clients' examples: others in the"),
    ({"engine": Case("fedprox", {"mu": 0.1})}, "the algorithm, its options or the model: others"),
    ({"engine": Case("fedavg", {}), "local": OTHER_RATES}, "the learning rates of the first rou"),
]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run that has ended."""
    folder = tmp_path_factory.mktemp("ended")
    run(fedavg(), checkpoints=folder)
    return folder


@pytest.mark.parametrize(("options", "message"), OTHERS)
def test_a_checkpoint_of_another_run_is_refused(options, message, ended):
    engine, given = fedavg(), dict(options)
    if "engine" in given:
        engine = other_engine(given.pop("engine"), given.pop("local", LOCAL))
    wanted = rf"of another run:\n(  .*\n)*  {message}(.*\n)*.*Give the same run, or another"
    with pytest.raises(ValueError, match=wanted):
        run(engine, checkpoints=ended, **given)


@pytest.mark.slow
def test_a_checkpoint_of_other_test_examples_is_refused_on_the_clock_and_in_a_sweep(tmp_path):
    executor = fa.make_executor(Case("fedasync", {}).build(TOY.problem, ASYNC_LOCAL), slots=2)
    clock = {"checkpoints": tmp_path / "clock"}
    run_async(executor, immediate(steps=2), **clock)
    sweep = {"checkpoints": tmp_path / "sweep"}
    sweep_toy("fedprox", {"mu": [0.1]}, **sweep)
    message = r"of another run:\n  the test examples: others in the checkpoint\n"
    with pytest.raises(ValueError, match=message):
        run_async(executor, immediate(steps=2), test=OTHER_TEST, **clock)
    with pytest.raises(ValueError, match=message):
        sweep_toy("fedprox", {"mu": [0.1]}, test=jax.tree.map(lambda x: x + 1, toy()[2]), **sweep)


@pytest.mark.slow
def test_a_run_goes_on_to_more_rounds(tmp_path):
    """Its first rounds do not depend on their number; nor do those of one that had not ended."""
    engine = fa.make_engine(Case("scaffold", {}).build(TOY.problem, LOCAL), client_state="host")
    expected = run(engine, rounds=9)
    for rounds, ended in ((2, None), (6, None), (8, 4), (9, 4)):
        folder = Checkpoints(tmp_path, every=0)
        if ended is None:
            run(engine, rounds=rounds, checkpoints=folder)
        else:
            with pytest.raises(Ended):
                run(engine, rounds=rounds, checkpoints=folder, on_evaluation=end_at(ended))
    seen = []
    result = run(engine, rounds=9, checkpoints=tmp_path, on_evaluation=seen.append)
    assert_same(result, expected)
    assert [row["round"] for row in seen] == [0, 2, 4, 6, 8, 9]
    assert load_state(tmp_path, result[0])[1] == result[1]


def test_other_versions_are_told(ended, monkeypatch):
    monkeypatch.setattr(
        "fedjax_algos.runs.saving.checkpoints._versions", lambda: {"fedjax_algos": "0", "jax": "0"}
    )
    with pytest.warns(UserWarning, match=r"saved with .*jax.* and goes on with .*may round"):
        run(fedavg(), checkpoints=ended)


def test_numbers_out_of_range_are_refused(tmp_path):
    for wrong in ({"every": -1}, {"every": float("nan")}, {"keep": 0}):
        with pytest.raises(ValueError, match=r"every=.* and keep=.* are out of range; give at"):
            run(fedavg(), checkpoints=Checkpoints(tmp_path, **wrong))
