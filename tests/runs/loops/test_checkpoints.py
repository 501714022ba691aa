"""A run that ends anywhere and goes on from its checkpoint is the same run, bit for bit."""

import collections
import types
from unittest import mock

import jax
import numpy as np
import pytest
import sweep_helpers as toys
from helpers import by_kind, small_network
from same_runs import assert_same, without_time
from sweep_helpers import clock_executor, rounds_engine, run_rounds, sweep_toy

import fedjax_algos as fa
from fedjax_algos.asynchrony import planners, traced
from fedjax_algos.base.errors import DamagedError
from fedjax_algos.runs.loops import checkpoints as saving
from fedjax_algos.runs.loops import interruption
from fedjax_algos.runs.loops.checkpoints import Checkpoints, RunSaver, load_state
from fedjax_algos.runs.loops.clock import simulate_async_seeds
from fedjax_algos.runs.loops.interruption import Interrupted
from fedjax_algos.runs.loops.run import check_identity

Server = collections.namedtuple("Server", "params")


def kept(folder):
    return [*saving.checkpoints_in(folder)]


def state_of(number, size=3):
    return fa.FederatedState(Server(np.full(size, number, np.float32)), (), (), (), np.uint32(7))


def saver(folder, identity=(), **options):
    return RunSaver(Checkpoints(folder, **{"every": 0} | options), lambda: dict(identity))


def save(own, *positions, last=False, state=None):
    for position in positions:
        arrays, facts = (state or state_of(position))._asdict, {"rows": [[{"round": position}]]}
        own.after_evaluation(position, arrays, facts, last=last)


def damage(folder, position):
    path = folder / f"{position}.npz"
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def test_when_a_run_is_saved(tmp_path, monkeypatch):
    """After so many seconds, at its end, at a signal; and a position only once."""
    now = [100.0]
    monkeypatch.setattr(saving, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    own = saver(tmp_path, every=10, keep=9)
    for position, seconds in ((1, 9.0), (2, 1.0), (3, 9.0), (4, 1.5), (5, 1.0)):
        now[0] += seconds
        save(own, position)
    assert kept(tmp_path) == [2, 4]
    save(own, 6, last=True)
    (tmp_path / "6.npz").unlink()
    save(own, 6, last=True)
    assert kept(tmp_path) == [2, 4]
    monkeypatch.setattr(interruption, "interruption", lambda: 15)
    with pytest.raises(Interrupted):
        save(own, 7)
    assert kept(tmp_path) == [2, 4, 7]


def test_a_short_run_is_not_saved_at_its_end_unless_it_was_saved_before(tmp_path):
    options = {"every": 1e9, "last": False}
    save(saver(tmp_path, **options), 1, last=True)
    assert kept(tmp_path) == []
    save(saver(tmp_path), 1, 2, 3)
    save(saver(tmp_path, **options), 4, last=True)
    assert kept(tmp_path) == [3, 4]


def test_the_last_whole_checkpoint_is_taken(tmp_path):
    save(saver(tmp_path, keep=3), 1, 3, 5)
    saved = (own := saver(tmp_path)).restore()
    assert (saved.position, own.position, saved.facts["rows"]) == (5, 5, [[{"round": 5}]])
    np.testing.assert_array_equal(saved.arrays["server/params"], np.float32([5, 5, 5]))

    def check(saved):
        if saved.position == 5:
            raise DamagedError("its rows")

    with pytest.warns(UserWarning, match="its rows; the checkpoint before is used, 3.npz"):
        assert saver(tmp_path).restore(check).position == 3
    damage(tmp_path, 5)
    with pytest.warns(UserWarning, match=r"5.npz' is damaged .* used, 3.npz"):
        state, rows = load_state(tmp_path, state_of(0))
    assert (state.server.params.tolist(), rows) == ([3, 3, 3], [{"round": 3}])
    with pytest.warns(UserWarning, match="5.npz' is damaged"):
        (own := saver(tmp_path)).restore()
    assert kept(tmp_path) == [1, 3, 5]  # nothing is removed before it is replaced
    save(own, 4)
    assert kept(tmp_path) == [3, 4]
    damage(tmp_path, 3)
    damage(tmp_path, 4)
    for call in (saver(tmp_path).restore, lambda: load_state(tmp_path, state_of(0))):
        with pytest.raises(ValueError, match=r"no checkpoint .*4.npz.*3.npz"):
            call()
    assert kept(tmp_path) == [3, 4]


def test_what_a_folder_cannot_give(tmp_path, monkeypatch):
    assert saver(tmp_path).restore() is None
    with pytest.raises(ValueError, match=r"no checkpoint .* there is none"):
        load_state(tmp_path, state_of(0))
    save(saver(tmp_path, {"rounds": 1}), 1)
    with pytest.raises(ValueError, match=r"server/params is float32\[2\] .* float32\[3\] in"):
        load_state(tmp_path, state_of(0, size=2))
    for wrong in ({"every": -1}, {"every": float("nan")}, {"keep": 0}):
        with pytest.raises(ValueError, match=r"every=.* and keep=.* are out of range"):
            saver(tmp_path, **wrong)
    monkeypatch.setattr(saving, "_versions", lambda: {"jax": "0"})
    with pytest.warns(UserWarning, match="may round differently"):
        saver(tmp_path, {"rounds": 1}).restore()
    (tmp_path / "1.npz").unlink()
    (tmp_path / "4.checkpoint").touch()  # of an earlier version
    (tmp_path / "5").mkdir()
    for call in (saver(tmp_path).restore, lambda: load_state(tmp_path, state_of(0))):
        with pytest.raises(ValueError, match=r"5' is damaged .Is a directory.*4.checkpoint' is"):
            call()


SAVED = {"rounds": 5, "eval_every": 2, "devices": 1, "slots": 2, "first_cohorts": [*"abcde"]}
KNOWN_BY = [
    ({"rounds": 7, "first_cohorts": [*"abcdefg"]}, 4, None),
    ({"rounds": 3, "first_cohorts": [*"abc"]}, 2, None),
    ({"rounds": 7}, 5, "rounds: 5 in the checkpoint, 7 here; the run ended"),
    ({"rounds": 4}, 5, "rounds: 5 in the checkpoint, 4 here; it was made after 5"),
    ({"rounds": 7, "start_round": 2}, 6, "start_round: none in the checkpoint, 2 here"),
    ({"slots": 3}, 4, "slots: 2 in the checkpoint, 3 here"),
]


@pytest.mark.parametrize(("changes", "position", "line"), KNOWN_BY)
def test_by_what_a_run_is_known(changes, position, line):
    if line is None:
        check_identity(SAVED, SAVED | changes, position, "there")
    else:
        with pytest.raises(ValueError, match=f"there is of another run:\n  {line}"):
            check_identity(SAVED, SAVED | changes, position, "there")
    with pytest.warns(UserWarning, match="is of 1 device.s., and the run goes on with 4"):
        check_identity(SAVED, SAVED | {"devices": 4, "slots": 8}, 4, "there")


@pytest.mark.parametrize("case", by_kind())
def test_every_bit_of_every_algorithms_state_is_restored(case, tmp_path):
    """A run is a function of its state and of the cohorts; here each array has random bits."""
    begin = fa.pure_round(case.build(small_network().problem, toys.DECAYING)).init
    shapes = jax.eval_shape(lambda: begin(0, toys.POPULATION))
    rng = np.random.default_rng(0)

    def random_bits(leaf):
        if leaf.dtype == bool:
            return rng.random(leaf.shape) < 0.5
        bits = rng.bytes(leaf.dtype.itemsize * leaf.size)
        return np.frombuffer(bits, leaf.dtype).reshape(leaf.shape)

    state = jax.tree.map(random_bits, shapes)
    save(saver(tmp_path), 1, state=state)
    blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    restored, _ = load_state(tmp_path, blank)
    assert_same((restored, []), (state, []))


class Ended(Exception):
    """Stands for the end of a process."""


def stop(run, checkpoints, *row_numbers, **options):
    """Ends a run at a row, before its checkpoint; and, when it has gone on, at the next of them."""
    for row_number in row_numbers:
        end = mock.Mock(side_effect=[None] * (row_number - 1) + [Ended])
        with pytest.raises(Ended):
            run(on_evaluation=end, checkpoints=checkpoints, **options)


def check_goes_on(run, folder):
    expected, checkpoints, rows = run(), Checkpoints(folder, every=0), []
    stop(run, checkpoints, 3, 4)
    for _ in range(2):  # the second time it has reached its end before
        rows.clear()
        result = run(on_evaluation=lambda *row: rows.append(row[-1]), checkpoints=checkpoints)
        assert_same(result, expected)
        assert rows == result[1]


HOST, DISK, SHARDED = {"place": "host"}, {"place": "disk"}, {"devices": 2, "examples": "sharded"}
# wherever rows and examples are, and with keys and rows of a wrapper
DIANA = "randk:fraction=0.3,feedback=diana"
LATER = ("scaffold", HOST), ("ifca", DISK), ("feddyn", SHARDED), (f"scaffold+{DIANA}", {})
KINDS = [("scaffold", {}), *(pytest.param(*each, marks=pytest.mark.all) for each in LATER)]


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_rounds_go_on(name, options, tmp_path):
    if options == DISK:
        options = {"place": fa.RowsOnDisk(tmp_path / "rows")}
    engine = rounds_engine(name, **options)
    check_goes_on(lambda **more: run_rounds(engine, rounds=6, **more), tmp_path / "checkpoints")


def run_clock(executor, planner, seeds=(3,), **options):
    """What a seed returned, or by seed what several of them did."""
    system = lambda seed, **_: traced(np.array([1.0, 2.0, 2.5, 10.0]) / (5 + seed))(seed)  # noqa: E731
    options = {"seconds": 6, "evaluations": 3, "test": toys.QUADRATICS.data.examples} | options
    data = dict.fromkeys(seeds, toys.QUADRATICS.data)
    results = simulate_async_seeds(executor, data, planners.make(planner), system, **options)
    return results[3][:2] if len(seeds) == 1 else results


COMPASS = ("fedcompass", "compass:min_steps=1,max_steps=4")
RANDOM = ("fedbuff+randk:fraction=0.3,feedback=ef", "buffered:steps=2")  # keys are in flight


@pytest.mark.all
@pytest.mark.parametrize(("name", "planner"), [("fedasync", "immediate:steps=2"), COMPASS, RANDOM])
def test_the_virtual_clock_goes_on(name, planner, tmp_path):
    executor = clock_executor(name)
    check_goes_on(lambda **more: run_clock(executor, planner, **more), tmp_path)


OTHER_TEST = jax.tree.map(lambda leaf: leaf + 1, toys.QUADRATICS.data.examples)


@pytest.mark.all
def test_merged_seeds_on_the_virtual_clock_go_on_with_another_number_of_devices(tmp_path):
    """And back again. On a CPU no bit changes."""
    four, two = (clock_executor("fedcompass", slots="auto", devices=number) for number in (4, 2))

    def run(executor=four, seeds=(3, 0), **options):
        return run_clock(executor, COMPASS[1], seeds, seconds=24, evaluations=6, **options)

    expected, checkpoints = run(), Checkpoints(tmp_path, every=0)
    stop(run, checkpoints, 6)
    with pytest.warns(UserWarning, match="is of 4 device.s., and the run goes on with 2, which"):
        stop(run, checkpoints, 11, executor=two)
    with pytest.warns(UserWarning, match="is of 2 device.s., and the run goes on with 4, which"):
        result = run(checkpoints=checkpoints)
    for seed in (3, 0):
        assert_same(result[seed][:2], expected[seed][:2])
    with pytest.raises(ValueError, match=r"seeds: \[3, 0\] in the checkpoint, \[3\] here"):
        run(seeds=(3,), checkpoints=checkpoints)
    with pytest.raises(ValueError, match="the test examples: different in the checkpoint"):
        run(test=OTHER_TEST, checkpoints=checkpoints)


@pytest.mark.all
def test_a_sweep_goes_on_with_another_number_of_devices(tmp_path):
    """Two programs, of a grid of constants; each run is computed by one device, with its bits."""
    checkpoints, models = Checkpoints(tmp_path, every=0), {}

    def run(**more):
        grid = {"mu": [0.1, 0.5], "weighting": ["uniform", "examples"]}
        keep = lambda *run: models.update({run[:2]: run[2].params.tolist()})  # noqa: E731
        return without_time(sweep_toy("fedprox", grid, on_end=keep, **more).rows)

    expected, whole = run(), dict(models)
    stop(run, checkpoints, 9, 14, devices=4)
    models.clear()
    with pytest.warns(UserWarning, match="is of 4 device.s., and the run goes on with 1, which"):
        assert run(checkpoints=checkpoints) == expected
    assert models == whole


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run that has ended."""
    folder = tmp_path_factory.mktemp("ended")
    run_rounds(rounds_engine(), checkpoints=folder)
    return folder


def test_a_run_that_has_ended_computes_nothing_again(ended, monkeypatch):
    expected = run_rounds(rounds_engine())
    monkeypatch.setattr(type(rounds_engine()), "rounds", None)
    assert_same(run_rounds(rounds_engine(), checkpoints=ended), expected)
    assert_same(load_state(ended, rounds_engine().init(9, toys.POPULATION)), expected)


RATES = toys.DECAYING._replace(learning_rate=lambda count: 0.1 * (1 - count / 6))
OTHERS = [
    ({"eval_every": 3}, "eval_every: 2 in the checkpoint, 3 here"),
    ({"seed": 4}, "the initial model|the cohorts of the first rounds"),
    ({"sampler": fa.participation.cyclic(num_groups=2)}, "the cohorts of the first rounds"),
    ({"test": OTHER_TEST}, "the test examples"),
    ({"test": None}, "the test examples"),
    ({"data": toys.QUADRATICS.data._replace(examples=OTHER_TEST)}, "the clients' examples"),
    ({"work": fa.participation.deadline(seconds=0.2)}, "the local work in the first rounds"),
    ({"failures": fa.participation.independent(probability=0.5)}, "which clients answer in the"),
    ({"algorithm": ("feddyn", toys.DECAYING)}, "the algorithm, its options or the model"),
    ({"algorithm": ("scaffold", RATES)}, "the learning rates of the first rounds: different"),
]


@pytest.mark.parametrize(("options", "line"), OTHERS)
def test_a_checkpoint_of_another_run_is_refused(options, line, ended):
    engine, options = rounds_engine(), dict(options)
    if "algorithm" in options:
        engine = fa.make_engine(toys.algorithm_of(*options.pop("algorithm")))
    with pytest.raises(ValueError, match=rf"of another run:\n(  .*\n)*  ({line})"):
        run_rounds(engine, checkpoints=ended, **options)
