"""A run that ends anywhere and goes on from its checkpoint is the same run, bit for bit."""

import functools
import re
import shutil
import warnings

import chex
import jax
import numpy as np
import pytest
from helpers import CASES, Case, small_network
from same_runs import assert_same, without_time
from sweep_helpers import sweep_toy, toy

import fedjax_algos as fa
from fedjax_algos.asynchrony import compass, immediate, planners, traced
from fedjax_algos.runs.clock import simulate_async_seeds
from fedjax_algos.runs.saving.checkpoints import Checkpoints, RunSaver, load_state, state_arrays

TOY = small_network()
FIRST_OF_NAME = {case.name: case for case in reversed(CASES)}


def build(spec, local):
    """An algorithm by name, with wrappers after a plus."""
    name, *wrappers = spec.split("+")
    return fa.wrappers.wrap(FIRST_OF_NAME[name].build(TOY.problem, local), wrappers)


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


@pytest.mark.all
@pytest.mark.parametrize("case", FIRST_OF_NAME.values(), ids=str)
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
    saver.after_evaluation(1, lambda: state_arrays(state), {"rows": [[]]}, last=True)
    blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    restored, _ = load_state(tmp_path, blank)
    assert jax.tree.structure(restored) == jax.tree.structure(shapes)
    assert_same((restored, []), (state, []))


# every kind of server state, client state, prelude and reduction, and where rows and examples are
KINDS = [
    ("fedgbo", {}), ("mime", {}), ("fedlga", {}), ("apfl", {}),
    ("scaffold", {"client_state": "host"}),
    ("ifca", {"client_state": "disk"}),
    ("feddyn", {"devices": 2, "examples": "sharded"}),
    ("scaffold+randk:fraction=0.3,feedback=diana", {}),
    ("feddyn+topk:fraction=0.3,feedback=ef", {"client_state": "disk"}),
]  # fmt: skip


@pytest.mark.all
@pytest.mark.parametrize(("name", "options"), KINDS)
def test_rounds_go_on(name, options, tmp_path):
    if options.get("client_state") == "disk":
        options = {"client_state": fa.RowsOnDisk(tmp_path / "rows")}
    engine = fa.make_engine(build(name, LOCAL), **options)
    # calls of two rounds only are one program
    check_rounds(engine, tmp_path / "checkpoints", rounds=5 if "devices" in options else 6)


ASYNC_LOCAL = fa.Local(2, 0.05, steps=2)
PLANNERS = {
    "fedgbo": "barrier:steps=2",
    "scaffold": "immediate:steps=2",
    "fedasync": "immediate:steps=2",
    "fedbuff": "buffered:steps=2",
    "fedat": "tiers:steps=2",
    "fedcompass": "compass:min_steps=1,max_steps=4",
    "fedbuff+randk:fraction=0.3,feedback=ef": "buffered:steps=2",  # random keys are in flight
}


def run_async(executor, planner, seeds=(3,), **options):
    system = lambda seed, **_: traced(np.array([1.0, 2.0, 2.5, 10.0]) / (5 + seed))(seed)  # noqa: E731
    return simulate_async_seeds(
        executor, dict.fromkeys(seeds, TOY.data), planner, system,
        **{"seconds": 6, "evaluations": 3, "test": TOY.data.examples} | options,
    )  # fmt: skip


@pytest.mark.all
@pytest.mark.parametrize("name", PLANNERS)
def test_the_virtual_clock_goes_on(name, tmp_path):
    algorithm = build(name, ASYNC_LOCAL)
    layout = "vmapped" if name == "scaffold" else "sequential"
    executor = fa.make_executor(algorithm, slots=2, waves_per_call=2, layout=layout)
    planner = planners.make(PLANNERS[name])
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


@pytest.mark.all
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
    options["seeds"] = (3,)
    if merged_bytes:
        with pytest.raises(ValueError, match=r"seeds: \[3, 0\] in the checkpoint, \[3\] here"):
            run_async(executor, planner, **options)
    else:
        assert_same(run_async(executor, planner, **options)[3][:2], expected[3][:2])


OTHER_DEVICES = {
    "fedbuff": (1, 2),
    "fedasync": (2, 1),
    "fedcompass": (4, 2),
    "fedbuff+randk:fraction=0.3,feedback=ef": (2, 4),
}


@pytest.mark.all
@pytest.mark.parametrize(("name", "devices"), OTHER_DEVICES.items())
def test_the_virtual_clock_goes_on_with_another_number_of_devices(name, devices, tmp_path):
    """And back again; the seeds stay merged, or apart, as they began. On a CPU no bit changes."""
    algorithm, planner, seeds = build(name, ASYNC_LOCAL), planners.make(PLANNERS[name]), (3, 0)
    one, other = (fa.make_executor(algorithm, devices=number) for number in devices)
    options = {"seconds": 24, "evaluations": 6}
    expected = run_async(one, planner, seeds, **options)
    options["checkpoints"] = Checkpoints(tmp_path, every=0)
    with pytest.raises(Ended):
        run_async(one, planner, seeds, on_evaluation=end_at(6), **options)
    told = "is of {} device.s., and the run goes on with {}, which may round"
    with pytest.warns(UserWarning, match=told.format(*devices)), pytest.raises(Ended):
        run_async(other, planner, seeds, on_evaluation=end_at(11), **options)
    with pytest.warns(UserWarning, match=told.format(*reversed(devices))):
        result = run_async(one, planner, seeds, **options)
    for seed in seeds:
        assert_same(result[seed][:2], expected[seed][:2])
    assert len([*tmp_path.glob("seeds-from-*")]) == (2 if devices[0] == 1 else 0)


@pytest.mark.all
def test_a_sweep_goes_on(tmp_path):
    """Several calls, also of a grid of constants of programs, which are tried as arguments."""
    grid, options = {"mu": [0.1, 0.5], "weighting": ["uniform", "examples"]}, {"memory": 2000}
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


@pytest.mark.all
def test_a_run_goes_on_with_another_number_of_devices(tmp_path):
    """A sweep, whose runs are computed by one device each, with the same bits."""
    grid, saved = {"mu": [0.1, 0.5, 0.9]}, {"checkpoints": Checkpoints(tmp_path / "sweep", every=0)}
    expected = sweep_toy("fedprox", grid)
    with pytest.raises(Ended):
        sweep_toy("fedprox", grid, devices=4, on_evaluation=end_at(13), **saved)
    with pytest.warns(UserWarning, match="is of 4 device.s., and the run goes on with 2, which"):
        result = sweep_toy("fedprox", grid, devices=2, **saved)
    assert without_time(result.rows) == without_time(expected.rows)
    saved = {"checkpoints": Checkpoints(tmp_path / "rounds", every=0)}
    two = fa.make_engine(fedavg().algorithm, devices=2)
    with pytest.raises(Ended):
        run(two, on_evaluation=end_at(3), **saved)
    with pytest.warns(UserWarning, match="is of 2 device.s., and the run goes on with 1, which"):
        state, _ = run(fedavg(), **saved)
    params = run(fedavg())[0].server.params
    chex.assert_trees_all_close(state.server.params, params, rtol=1e-5, atol=1e-7)


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
    run(fedavg(), checkpoints=Checkpoints(tmp_path / "never", last=False))
    assert not list((tmp_path / "never").glob("*"))


OTHER_TEST = jax.tree.map(lambda leaf: leaf + 1, TOY.data.examples)
OTHER_RATES = LOCAL._replace(learning_rate=lambda t: 0.1 * (1 - t / 6))


OTHERS = [
    ({"rounds": 7}, "rounds: 5 in the checkpoint, 7 here; the run ended with an "),
    ({"rounds": 4}, "rounds: 5 in the checkpoint, 4 here; it was made after 5"),
    ({"eval_every": 3}, "eval_every: 2 in the checkpoint, 3 here\n"),
    ({"seed": 4}, "the initial model, which the seed draws: others in the checkpoint\n"),
    ({"cohort_size": 3}, "the cohorts of the first rounds, .*: others in the checkp"),
    ({"sampler": fa.participation.cyclic(num_groups=2)}, "the cohorts of the first rou"),
    ({"test": OTHER_TEST}, "the test examples: others in the checkpoint\n"),
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
        case, local = given.pop("engine"), given.pop("local", LOCAL)
        engine = fa.make_engine(case.build(TOY.problem, local))
    wanted = rf"of another run:\n(  .*\n)*  {message}(.*\n)*.*Give the same run, or another"
    with pytest.raises(ValueError, match=wanted):
        run(engine, checkpoints=ended, **given)


@pytest.mark.all
def test_a_checkpoint_of_other_test_examples_is_refused_on_the_clock_and_in_a_sweep(tmp_path):
    executor, clock = fedasync(), {"checkpoints": tmp_path / "clock"}
    run_async(executor, immediate(steps=2), **clock)
    sweep = {"checkpoints": tmp_path / "sweep"}
    sweep_toy("fedprox", {"mu": [0.1]}, **sweep)
    message = r"of another run:\n  the test examples: others in the checkpoint\n"
    with pytest.raises(ValueError, match=message):
        run_async(executor, immediate(steps=2), test=OTHER_TEST, **clock)
    with pytest.raises(ValueError, match=message):
        sweep_toy("fedprox", {"mu": [0.1]}, test=jax.tree.map(lambda x: x + 1, toy()[2]), **sweep)


@pytest.mark.all
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


# Damaged checkpoints: the newest whole one is used, which is said; without one the run is refused.


@functools.cache
def scaffold(place="host"):
    return fa.make_engine(Case("scaffold", {}).build(TOY.problem, LOCAL), client_state=place)


@functools.cache
def fedasync():
    return fa.make_executor(Case("fedasync", {}).build(TOY.problem, ASYNC_LOCAL), slots=2)


def rows_on_disk(folder, on_evaluation, checkpoints):
    options = {"on_evaluation": on_evaluation, "checkpoints": checkpoints}
    return run(scaffold(fa.RowsOnDisk(folder / "rows")), rounds=6, eval_every=1, **options)


def clock(folder, on_evaluation, checkpoints):
    options = {"on_evaluation": lambda seed, row: on_evaluation(row), "checkpoints": checkpoints}
    return run_async(fedasync(), immediate(steps=2), evaluations=6, **options)[3][:2]


def batched(folder, on_evaluation, checkpoints):
    models = []
    result = sweep_toy(
        "fedprox", {"mu": [0.1, 0.5]}, seeds=(0,), rounds=12, on_evaluation=on_evaluation,
        checkpoints=checkpoints, on_end=lambda *ended: models.append(ended[-1].params),
    )  # fmt: skip
    return models, result.rows


RUNS = {"rows on disk": rows_on_disk, "clock": clock, "batched": batched}
AT = dict.fromkeys(RUNS, 5) | {"batched": 10}  # the row after which there are two checkpoints


def stopped(run, folder, number):
    """Runs until a row of this number, with a checkpoint at each evaluation; two are kept."""
    with pytest.raises(Ended):
        run(folder, end_at(number), Checkpoints(folder / "checkpoints", every=0))


def kept(folder):
    """The checkpoints, the newest first."""
    paths = (folder / "checkpoints").rglob("*.checkpoint")
    return sorted(paths, key=lambda path: -int(path.stem))


def damage(path, share=0.75):
    """Flips a bit at a share of a file's length."""
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 4
    path.write_bytes(content)


def check_same(result, expected):
    if isinstance(result[0], list):  # of a sweep
        assert without_time(result[1]) == without_time(expected[1])
        np.testing.assert_array_equal(result[0], expected[0])
    else:
        assert_same(result, expected)


@pytest.mark.parametrize("name", RUNS)
def test_the_checkpoint_before_a_damaged_one_is_used(name, tmp_path):
    """It is said until a whole one takes its place; a run without a whole one is refused."""
    run = RUNS[name]
    checkpoints = Checkpoints(tmp_path / "checkpoints", every=0)
    expected = run(tmp_path, lambda row: None, None)
    stopped(run, tmp_path, AT[name])
    newest, older = kept(tmp_path)
    damage(newest)
    message = (
        re.escape(f"{str(newest)!r} is damaged (its checksum is wrong); the checkpoint before ")
        + rf"is used, {older.name}, which was saved after {older.stem} rounds or server steps"
    )
    with pytest.warns(UserWarning, match=message):
        stopped(run, tmp_path, 1)
    assert kept(tmp_path) == [newest, older]  # nothing is removed before it is replaced
    with pytest.warns(UserWarning, match=message):
        result = run(tmp_path, lambda row: None, checkpoints)
    check_same(result, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_same(run(tmp_path, lambda row: None, checkpoints), expected)
    paths = kept(tmp_path)
    assert len(paths) == 2
    for path in paths:
        damage(path, 0.4)
    message = f"no checkpoint in {str(paths[0].parent)!r} can be used: " + "; ".join(
        f"{str(path)!r} is damaged (its checksum is wrong)" for path in paths
    )
    message += ". Remove this folder, and the run starts again from its beginning"
    with pytest.raises(ValueError, match=re.escape(message)):
        run(tmp_path, lambda row: None, checkpoints)
    assert kept(tmp_path) == paths


def test_load_state_reads_the_checkpoint_before_a_damaged_one(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", every=0, keep=3)
    run(scaffold(), eval_every=1, checkpoints=checkpoints)
    folder, like = checkpoints.folder, scaffold().init(0, fa.Population(4, 2, 17))
    newest, older, oldest = kept(tmp_path)
    newest.unlink()
    expected = load_state(folder, like)
    newest.write_bytes(b"half")
    with pytest.warns(UserWarning, match=re.escape(f"{newest.name}' is damaged")):
        assert_same(load_state(folder, like), expected)
    damage(older)
    damage(oldest)
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be used: .*4.checkpoint"):
        load_state(folder, like)


def test_a_row_on_disk_is_checked_before_the_run_goes_on(tmp_path):
    """A row of the newest checkpoint only: the one before is used; of both: the run is refused."""
    expected = rows_on_disk(tmp_path / "whole", lambda row: None, None)
    stopped(rows_on_disk, tmp_path, 5)
    checkpoints = Checkpoints(tmp_path / "checkpoints", every=0)
    (file,) = (tmp_path / "rows").glob("*.rows")
    whole, outcomes = file.read_bytes(), set()
    for place in range(5, len(whole), len(whole) // 6):
        content = bytearray(whole)
        content[place] ^= 1
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "checkpoints", tmp_path / "copy")
        file.write_bytes(content)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                result = rows_on_disk(
                    tmp_path, lambda row: None, checkpoints._replace(folder=tmp_path / "copy")
                )
                check_same(result, expected)
                outcomes.add("said" if told else "not needed")
            except ValueError as error:
                assert "no checkpoint in" in str(error)  # noqa: PT017
                outcomes.add("refused")
        file.write_bytes(whole)
    assert {"said", "refused"} <= outcomes


def test_checkpoints_of_an_earlier_version_are_refused(tmp_path):
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    for call in (
        lambda: run(scaffold(), checkpoints=tmp_path / "checkpoints"),
        lambda: load_state(tmp_path / "checkpoints", scaffold().init(0, fa.Population(4, 2, 17))),
    ):
        with pytest.raises(ValueError, match=r"an earlier version .* cannot be read: remove this"):
            call()
