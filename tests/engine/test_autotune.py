"""How a layout is chosen: in what order, within what budget, and from what it remembers.

Candidates move a clock of their own, so nothing here depends on how fast this machine is.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from helpers import Case, one_round, small_network

import fedjax_algos as fa
from fedjax_algos.engine import autotune
from fedjax_algos.engine.autotune import Choice, Timing, choose_layout
from fedjax_algos.schedules import Synchronous

LOCAL = fa.Local(batch_size=2, learning_rate=0.1, steps=2)
FULL = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")


def task(cohort_size=8, local=LOCAL, width=3, examples=4, inputs=np.float32):
    """Eight clients of a model of `width` inputs, and the visits of a round."""
    data = fa.federate(
        {"x": np.ones((8, examples, width), inputs).reshape(-1, width)},
        fa.Partition.of(np.split(np.arange(8 * examples), 8)),
    )
    problem = fa.Problem(
        init=lambda key: fa.Model({"w": jax.numpy.zeros(width)}),
        apply=lambda model, batch, key, training: (batch["x"] @ model.params["w"], ()),
        loss=lambda outputs, batch: outputs**2,
    )
    visits = Synchronous(data.counts(), local, cohort_size=cohort_size, seed=0).visits(1)
    return Case("fedavg", {}).build(problem, local), data, one_round(visits, 0)


class World:
    """Devices, a clock that only candidates move, and what a round of each takes: `costs`.

    A cost is a number of seconds, a list of them, or an error; seconds are binary fractions.
    """

    def __init__(self, monkeypatch, costs, *, devices=1, backend="cpu", compilation=0.0):
        self.costs, self.compilation = costs, compilation
        self.now, self.tried, self.rounds, self.started_by = 128.0, [], 0, set()
        monkeypatch.setattr(autotune, "make_engine", self.make_engine)
        monkeypatch.setattr(autotune, "client_mesh", lambda devices: None)
        monkeypatch.setattr(autotune, "usual_devices", lambda: devices)
        monkeypatch.setattr(jax, "default_backend", lambda: backend)

    def make_engine(self, algorithm, layout, client_state, devices, examples):
        self.tried.append((layout, devices))
        cost = self.costs.get((layout, devices), self.costs.get(layout))

        def init(seed, population):
            self.started_by.add((layout, devices))
            return 0

        def round(state, data, visits):
            self.now += self.compilation * (state == 0)
            if isinstance(cost, Exception):
                raise cost
            self.rounds += 1
            self.now += cost[state] if isinstance(cost, list) else cost
            return state + 1, {}

        return fa.Engine(algorithm, init, round, None, None, None, lambda data: data)

    def choose(self, of=None, **options):
        options = {"remembered": None, "seconds": 1000.0} | options
        return choose_layout(*(of or task()), clock=lambda: self.now, **options)


def test_on_a_cpu_from_sequential_on_all_devices_to_chunks_on_the_better_number(monkeypatch):
    costs = {("sequential", 4): 3.0, ("sequential", 1): 2.0, 2: 1.5, 4: 1.0, "vmapped": 1.125}
    world = World(monkeypatch, costs, devices=4)
    choice = world.choose()
    assert world.tried == [("sequential", 4), ("sequential", 1), (2, 1), (4, 1), ("vmapped", 1)]
    assert world.started_by == {("sequential", 4), ("sequential", 1)}  # to compile no more
    assert choice[:2] == (4, 1)
    assert choice.source == "measured"
    assert [timing[:3] for timing in choice.timings] == [
        ("sequential", 4, 3.0), ("sequential", 1, 2.0), (2, 1, 1.5), (4, 1, 1.0),
        ("vmapped", 1, 1.125),
    ]  # fmt: skip


def test_a_device_s_part_is_what_is_cut_into_chunks(monkeypatch):
    world = World(monkeypatch, {("sequential", 1): 2.0, "sequential": 1.0, 2: 1.0}, devices=3)
    world.costs |= {"vmapped": 0.5}
    assert world.choose()[:2] == ("vmapped", 3)
    assert world.tried == [("sequential", 3), ("sequential", 1), (2, 3), ("vmapped", 3)]  # of 3


def test_on_an_accelerator_from_vmapped_downwards(monkeypatch):
    costs = {"vmapped": 2.0, 4: 1.8, 2: 1.6, "sequential": 1.0}
    world = World(monkeypatch, costs, backend="gpu")
    assert world.choose()[:2] == ("sequential", 1)
    assert [layout for layout, _ in world.tried] == ["vmapped", 4, 2, "sequential"]


def test_sharded_examples_stay_on_all_devices(monkeypatch):
    world = World(monkeypatch, {"sequential": 1.0, 2: 2.0, "vmapped": 2.0}, devices=4)
    assert world.choose(examples="sharded")[:2] == ("sequential", 4)
    assert {devices for _, devices in world.tried} == {4}


def test_a_given_number_of_devices_is_kept(monkeypatch):
    world = World(monkeypatch, {"sequential": 1.0, 2: 2.0, "vmapped": 2.0}, devices=4)
    assert world.choose(devices=2)[:2] == ("sequential", 2)
    assert {devices for _, devices in world.tried} == {2}


def test_the_median_round_decides(monkeypatch):
    costs = {"sequential": [90, 1, 1, 90, 1, 90], 2: 1.125, 4: 1.125, "vmapped": 1.125}
    world = World(monkeypatch, costs)
    choice = world.choose()
    assert choice.layout == "sequential"
    assert choice.timings[0].seconds == 1
    assert world.rounds == 4 * (1 + 5)


def test_short_rounds_are_repeated_for_longer(monkeypatch):
    world = World(monkeypatch, {"sequential": 1 / 32, 2: 1.0, 4: 1.0})
    world.choose()
    assert world.rounds == 1 + 10 + 2 * (1 + 5)


def test_two_clearly_slower_chunks_in_a_row_end_it(monkeypatch):
    costs = {"sequential": 1.0, 2: 1.25, 4: 1.125, 8: 1.25, 16: 1.25, "vmapped": 0.1}
    world = World(monkeypatch, costs)
    cohort = task()[2]
    visits = jax.tree.map(lambda leaf: np.tile(leaf, 8), cohort)  # 64 clients
    assert world.choose((*task()[:2], visits)).layout == "sequential"
    assert [layout for layout, _ in world.tried] == ["sequential", 2, 4, 8, 16]


@pytest.mark.parametrize(("seconds", "tried"), [(11.0, 1), (11.5, 2), (19.0, 2), (19.5, 3)])
def test_nothing_is_started_that_would_compile_beyond_the_budget(monkeypatch, seconds, tried):
    # until a candidate's first round is done 3 s, and 5 s for five more
    world = World(monkeypatch, dict.fromkeys(["sequential", 2, 4, "vmapped"], 1.0), compilation=2.0)
    choice = world.choose(seconds=seconds)
    assert [timing.compile_seconds for timing in choice.timings] == [3.0] * tried
    assert world.tried == [("sequential", 1), (2, 1), (4, 1)][:tried]


def test_a_started_candidate_is_finished_with_fewer_rounds(monkeypatch):
    world = World(monkeypatch, {"sequential": 4.0}, compilation=3.0)
    choice = world.choose(seconds=10.0)
    assert choice == ("sequential", 1, (Timing("sequential", 1, 4.0, 7.0),), "measured")
    assert world.rounds == 2
    late = World(monkeypatch, {"sequential": 4.0}, compilation=30.0)
    assert late.choose(seconds=10.0).timings == (Timing("sequential", 1, 4.0, 34.0),)
    assert late.rounds == 2


def test_what_does_not_fit_is_left_out_and_told(monkeypatch):
    costs = {"vmapped": FULL, 4: FULL, 2: 1.0, "sequential": 2.0}
    world = World(monkeypatch, costs, backend="gpu", compilation=40.0)
    choice = world.choose(seconds=1.0)  # the budget begins to count when something fits
    assert choice[:2] == (2, 1)
    assert choice.timings[0] == Timing("vmapped", 1, None, 40.0)
    assert [timing.layout for timing in choice.timings] == ["vmapped", 4, 2]
    assert Choice.of(json.loads(json.dumps(choice.record(), allow_nan=False))) == choice._replace(
        source="remembered"
    )


def test_where_nothing_fits_the_error_says_so(monkeypatch, tmp_path):
    world = World(monkeypatch, dict.fromkeys(["vmapped", 4, 2, "sequential"], FULL), backend="gpu")
    with pytest.raises(MemoryError, match=r"cohort_size=8 fits .* in no layout; give"):
        world.choose(remembered=tmp_path / "layouts.json")
    assert len(world.tried) == 4
    assert not list(tmp_path.iterdir())


def test_other_errors_are_the_caller_s(monkeypatch):
    error = jax.errors.JaxRuntimeError("INTERNAL: broken")
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        World(monkeypatch, {"sequential": error}).choose()


def test_where_there_is_no_choice_nothing_is_timed(monkeypatch):
    world = World(monkeypatch, {}, devices=2)
    assert world.choose(task(cohort_size=1), devices=1) == ("sequential", 1, (), "rule")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert world.choose() == ("sequential", 2, (), "rule")
    gpus = World(monkeypatch, {}, devices=2, backend="gpu")
    assert gpus.choose() == ("vmapped", 2, (), "rule")
    assert world.tried == gpus.tried == []


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_budget_is_positive(seconds):
    with pytest.raises(ValueError, match=f"seconds={seconds} is out of range; give more than 0"):
        choose_layout(*task(), seconds=seconds, remembered=None)


def test_more_devices_than_there_are():
    with pytest.raises(ValueError, match="devices=99 is out of range"):
        choose_layout(*task(), devices=99, remembered=None)


COSTS = {"sequential": 2.0, 2: 1.0, 4: 2.0, "vmapped": 2.0}


def test_a_choice_is_remembered_until_the_file_is_removed(monkeypatch, tmp_path):
    file = tmp_path / "new" / "layouts.json"
    first = World(monkeypatch, COSTS).choose(remembered=file)
    again = World(monkeypatch, {})
    assert again.choose(remembered=file) == first._replace(source="remembered")
    assert again.tried == []
    assert [path.name for path in file.parent.iterdir()] == [file.name]  # no half-written one
    file.unlink()
    assert World(monkeypatch, COSTS | {4: 0.5}).choose(remembered=file)[0] == 4


def test_the_file_is_in_the_user_s_cache_and_can_be_read(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    World(monkeypatch, COSTS).choose(remembered="user")
    ((key, record),) = json.loads(
        (tmp_path / "fedjax_algos" / "layouts.json").read_text()
    ).items()  # fmt: skip
    assert "3 params" in key
    assert f"8 clients, 2 steps of 2; jax {jax.__version__}" in key
    assert (record["layout"], record["devices"]) == (2, 1)
    assert record["timings"][1]["seconds"] == 1.0
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert autotune.user_file() == tmp_path / "home" / ".cache" / "fedjax_algos" / "layouts.json"


CHANGES = {
    "cohort": {"of": task(cohort_size=7)},
    "params": {"of": task(width=4)},
    "steps": {"of": task(local=LOCAL._replace(steps=3))},
    "batch_size": {"of": task(local=LOCAL._replace(batch_size=3))},
    "examples": {"of": task(inputs=np.float16)},
    "devices": {"devices": 2},
    "sharded": {"examples": "sharded"},
}


@pytest.mark.parametrize("change", [*CHANGES, "jax", "cores", "backend", "more_devices"])
def test_a_choice_holds_for_what_it_was_measured_on(monkeypatch, tmp_path, change):
    file = tmp_path / "layouts.json"
    World(monkeypatch, COSTS, devices=2).choose(remembered=file)
    same = World(monkeypatch, COSTS, devices=2)
    other_data = task(examples=5)  # as many shapes, and another method: nothing that matters
    of = (Case("fedprox", {"mu": 0.1}).build(other_data[0].problem, LOCAL), *other_data[1:])
    assert same.choose(of, remembered=file).source == "remembered"
    assert same.tried == []
    backend = "gpu" if change == "backend" else "cpu"
    other = World(monkeypatch, COSTS, devices=3 if change == "more_devices" else 2, backend=backend)
    if change == "jax":
        monkeypatch.setattr(jax, "__version__", "9.9")
    if change == "cores":
        monkeypatch.setattr(os, "cpu_count", lambda: 999)
    assert other.choose(remembered=file, **CHANGES.get(change, {})).source == "measured"
    assert other.tried
    assert len(json.loads(file.read_text())) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"key": 3}',
        '{"key": {"layout": "sequential", "devices": 1}}',
        '{"key": {"layout": "swift", "devices": 1, "timings": []}}',
        '{"key": {"layout": 2, "devices": 1, "timings": [{"layout": 2}]}}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_named_and_replaced(monkeypatch, tmp_path, text):
    file = tmp_path / "layouts.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.warns(UserWarning, match=f"{file} holds no choices .*; it is replaced"):
        assert World(monkeypatch, COSTS).choose(remembered=file).source == "measured"
    assert World(monkeypatch, {}).choose(remembered=file)[0] == 2


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("a file where a folder should be")
    file = tmp_path / "taken" / "layouts.json"
    with pytest.warns(UserWarning, match=f"{file} cannot be written") as told:
        assert World(monkeypatch, COSTS).choose(remembered=file)[:2] == (2, 1)
    assert len(told) == 1


def test_none_remembers_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        world = World(monkeypatch, COSTS)
        assert world.choose(remembered=None).source == "measured"
        assert len(world.tried) == 4
    assert not list(tmp_path.iterdir())


def test_a_choice_says_what_it_is(monkeypatch):
    assert str(World(monkeypatch, COSTS).choose()) == (
        "chunks of 2 on 1 device (measured), 1 s a round"
    )
    assert str(Choice("vmapped", 2, (), "rule")) == "vmapped on 2 devices (rule)"
    assert str(Choice("4", 1, (), "given")) == "chunks of 4 on 1 device (given)"


@pytest.mark.parametrize("client_state", ["device", "host"])
def test_real_rounds_leave_data_and_states_as_they_were(client_state):
    toy = small_network()
    algorithm = Case("scaffold", {}).build(toy.problem, LOCAL)
    visits = one_round(Synchronous(toy.data.counts(), LOCAL, cohort_size=3, seed=0).visits(1), 0)
    state = fa.make_engine(algorithm).init(5, fa.Population(4, 3, 17))
    before = jax.tree.map(np.array, (state, toy.data, visits))
    choice = choose_layout(
        algorithm,
        toy.data,
        visits,
        devices=1,
        client_state=client_state,
        seconds=0.5,
        remembered=None,
        clock=itertools.count().__next__,
    )
    assert choice == ("sequential", 1, (Timing("sequential", 1, 1, 1),), "measured")
    chex.assert_trees_all_equal(before, jax.tree.map(np.array, (state, toy.data, visits)))


PROGRAM = """
import itertools, sys
sys.path[:0] = sys.argv[1:]
from test_autotune import task
from fedjax_algos.engine.autotune import choose_layout
algorithm, data, visits = task(cohort_size=4)
clock = itertools.count().__next__
choice = choose_layout(algorithm, data, visits, seconds=1000, remembered=None, clock=clock)
assert choice[:2] == ("sequential", 2), choice
assert [t[:2] for t in choice.timings] == [("sequential", 2), ("sequential", 1), ("vmapped", 2)]
"""


def test_real_rounds_on_two_devices():
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, Path(__file__).parents[:2])],
        check=True,
        env=environment,
    )
