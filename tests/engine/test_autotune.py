"""Autotuning: the best choice, within the budget, and where memory is too small.

The candidates advance a simulated clock, so that no result depends on the speed of the machine.
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
from fedjax_algos.engine.autotune import LayoutChoice, LayoutTiming, autotune_layout
from fedjax_algos.schedules import Synchronous

LOCAL = fa.Local(batch_size=2, learning_rate=0.1, steps=2)
FULL = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")


def task(cohort_size=8, local=LOCAL, width=3, examples=4, inputs=np.float32):
    """An algorithm on eight clients with `width` inputs, their data, and one round's dispatches."""
    data = fa.federate(
        {"x": np.ones((8, examples, width), inputs).reshape(-1, width)},
        fa.Partition.of(np.split(np.arange(8 * examples), 8)),
    )
    problem = fa.Problem(
        init=lambda key: fa.Model({"w": jax.numpy.zeros(width)}),
        apply=lambda model, batch, key, training: (batch["x"] @ model.params["w"], ()),
        loss=lambda outputs, batch: outputs**2,
    )
    dispatches = Synchronous(data.counts(), local, cohort_size=cohort_size, seed=0).dispatches(1)
    return Case("fedavg", {}).build(problem, local), data, one_round(dispatches, 0)


class World:
    """Simulated devices and a clock that only the candidates advance.

    `costs` maps a layout, or a pair (layout, devices), to the seconds of a round: a number, a list
    with one entry for each round, or an error. Seconds are binary fractions.
    """

    def __init__(self, monkeypatch, costs, *, devices=1, backend="cpu", compilation=0.0):
        self.costs, self.compilation = costs, compilation
        self.now, self.measured, self.rounds, self.initialised_by = 128.0, [], 0, set()
        monkeypatch.setattr(autotune, "make_engine", self.make_engine)
        monkeypatch.setattr(autotune, "client_mesh", lambda devices: None)
        monkeypatch.setattr(autotune, "default_num_devices", lambda: devices)
        monkeypatch.setattr(jax, "default_backend", lambda: backend)

    def make_engine(self, algorithm, layout, client_state, devices, examples):
        self.measured.append((layout, devices))
        cost = self.costs.get((layout, devices), self.costs.get(layout))

        def init(seed, population):
            self.initialised_by.add((layout, devices))
            return 0

        def round(state, data, dispatches):
            self.now += self.compilation * (state == 0)
            if isinstance(cost, Exception):
                raise cost
            self.rounds += 1
            self.now += cost[state] if isinstance(cost, list) else cost
            return state + 1, {}

        placement = fa.engine.Placement(layout)
        return fa.Engine(
            algorithm, init, round, None, None, None, lambda data: data, placement, "exclude"
        )

    def choose(self, given=None, **options):
        options = {"seconds": 1000.0} | options
        return autotune_layout(*(given or task()), clock=lambda: self.now, **options)


def test_the_fastest_layout_and_number_of_devices_are_chosen(monkeypatch):
    costs = {("sequential", 4): 3.0, ("sequential", 1): 2.0, 2: 1.5, 4: 1.0, "vmapped": 1.125}
    world = World(monkeypatch, costs, devices=4)
    choice = world.choose()
    assert (choice.layout, choice.devices, choice.source) == (4, 1, "measured")
    measured = {timing[:2]: timing.seconds for timing in choice.timings}
    assert measured == {
        ("sequential", 4): 3.0, ("sequential", 1): 2.0, (2, 1): 1.5, (4, 1): 1.0,
        ("vmapped", 1): 1.125,
    }  # fmt: skip
    assert world.initialised_by == {("sequential", 4), ("sequential", 1)}  # one compilation each


def test_chunks_are_parts_of_what_one_device_computes(monkeypatch):
    world = World(monkeypatch, {("sequential", 1): 2.0, "sequential": 1.0, 2: 1.0}, devices=3)
    world.costs |= {"vmapped": 0.5}
    assert world.choose()[:2] == ("vmapped", 3)
    assert set(world.measured) == {("sequential", 3), ("sequential", 1), (2, 3), ("vmapped", 3)}


def test_an_accelerator_may_be_fastest_one_client_at_a_time(monkeypatch):
    costs = {"vmapped": 2.0, 4: 1.8, 2: 1.6, "sequential": 1.0}
    world = World(monkeypatch, costs, backend="gpu")
    assert world.choose()[:2] == ("sequential", 1)


def test_sharded_examples_use_all_devices(monkeypatch):
    world = World(monkeypatch, {"sequential": 1.0, 2: 2.0, "vmapped": 2.0}, devices=4)
    assert world.choose(examples="sharded")[:2] == ("sequential", 4)
    assert {devices for _, devices in world.measured} == {4}


def test_a_given_number_of_devices_is_used(monkeypatch):
    world = World(monkeypatch, {"sequential": 1.0, 2: 2.0, "vmapped": 2.0}, devices=4)
    assert world.choose(devices=2)[:2] == ("sequential", 2)
    assert {devices for _, devices in world.measured} == {2}


def test_the_median_of_the_rounds_decides(monkeypatch):
    costs = {"sequential": [90, 1, 1, 90, 1, 90], 2: 1.125, 4: 1.125, "vmapped": 1.125}
    world = World(monkeypatch, costs)
    choice = world.choose()
    assert choice.layout == "sequential"
    assert choice.timings[0].seconds == 1
    assert world.rounds == 4 * (1 + 5)


def test_short_rounds_are_repeated_more_often(monkeypatch):
    world = World(monkeypatch, {"sequential": 1 / 32, 2: 1.0, 4: 1.0})
    world.choose()
    assert world.rounds == 1 + 10 + 2 * (1 + 5)


def test_the_search_stops_after_two_slow_candidates(monkeypatch):
    costs = {"sequential": 1.0, 2: 1.25, 4: 1.125, 8: 1.25, 16: 1.25, "vmapped": 0.1}
    world = World(monkeypatch, costs)
    cohort = task()[2]
    dispatches = jax.tree.map(lambda leaf: np.tile(leaf, 8), cohort)  # 64 clients
    assert world.choose((*task()[:2], dispatches)).layout == "sequential"
    assert len(world.measured) == 5


@pytest.mark.parametrize(("seconds", "candidates"), [(11.0, 1), (11.5, 2), (19.0, 2), (19.5, 3)])
def test_no_candidate_starts_that_would_compile_beyond_the_budget(monkeypatch, seconds, candidates):
    # 3 s until a candidate's first round is done, and 5 s for five more rounds
    world = World(monkeypatch, dict.fromkeys(["sequential", 2, 4, "vmapped"], 1.0), compilation=2.0)
    choice = world.choose(seconds=seconds)
    assert [timing.compile_seconds for timing in choice.timings] == [3.0] * candidates
    assert len(world.measured) == candidates


def test_a_started_candidate_is_finished_with_fewer_rounds(monkeypatch):
    world = World(monkeypatch, {"sequential": 4.0}, compilation=3.0)
    choice = world.choose(seconds=10.0)
    assert choice == ("sequential", 1, (LayoutTiming("sequential", 1, 4.0, 7.0),), "measured")
    assert world.rounds == 2
    late = World(monkeypatch, {"sequential": 4.0}, compilation=30.0)
    assert late.choose(seconds=10.0).timings == (LayoutTiming("sequential", 1, 4.0, 34.0),)
    assert late.rounds == 2


def test_candidates_that_do_not_fit_are_recorded_and_not_chosen(monkeypatch):
    costs = {"vmapped": FULL, 4: FULL, 2: 1.0, "sequential": 2.0}
    world = World(monkeypatch, costs, backend="gpu", compilation=40.0)
    choice = world.choose(seconds=1.0)  # the budget counts once a candidate fits
    assert choice[:2] == (2, 1)
    assert choice.timings[0] == LayoutTiming("vmapped", 1, None, 40.0)
    assert [timing.layout for timing in choice.timings] == ["vmapped", 4, 2]
    record = json.loads(json.dumps(choice.record(), allow_nan=False))
    assert (record["layout"], record["devices"], record["source"]) == (2, 1, "measured")
    assert record["timings"][0] == choice.timings[0]._asdict()


def test_an_error_says_that_nothing_fits(monkeypatch):
    world = World(monkeypatch, dict.fromkeys(["vmapped", 4, 2, "sequential"], FULL), backend="gpu")
    with pytest.raises(MemoryError, match=r"cohort_size=8 fits .* in no layout; give"):
        world.choose()
    assert len(world.measured) == 4


def test_other_errors_are_not_caught(monkeypatch):
    error = jax.errors.JaxRuntimeError("INTERNAL: broken")
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        World(monkeypatch, {"sequential": error}).choose()


def test_a_single_candidate_or_several_processes_are_not_timed(monkeypatch):
    world = World(monkeypatch, {}, devices=2)
    assert world.choose(task(cohort_size=1), devices=1) == ("sequential", 1, (), "rule")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert world.choose() == ("sequential", 2, (), "rule")
    gpus = World(monkeypatch, {}, devices=2, backend="gpu")
    assert gpus.choose() == ("vmapped", 2, (), "rule")
    assert world.measured == gpus.measured == []


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_budget_that_is_not_positive_is_refused(seconds):
    with pytest.raises(ValueError, match=f"seconds={seconds} is out of range; give more than 0"):
        autotune_layout(*task(), seconds=seconds)


def test_too_many_devices_are_refused():
    with pytest.raises(ValueError, match="devices=99 is out of range"):
        autotune_layout(*task(), devices=99)


def test_the_text_of_a_choice(monkeypatch):
    costs = {"sequential": 2.0, 2: 1.0, 4: 2.0, "vmapped": 2.0}
    assert str(World(monkeypatch, costs).choose()) == (
        "chunks of 2 on 1 device (measured), 1 s a round"
    )
    assert str(LayoutChoice("vmapped", 2, (), "rule")) == "vmapped on 2 devices (rule)"
    assert str(LayoutChoice("4", 1, (), "given")) == "chunks of 4 on 1 device (given)"


@pytest.mark.parametrize("client_state", ["device", "host"])
def test_real_rounds_leave_data_and_states_as_they_were(client_state):
    toy = small_network()
    algorithm = Case("scaffold", {}).build(toy.problem, LOCAL)
    dispatches = one_round(
        Synchronous(toy.data.counts(), LOCAL, cohort_size=3, seed=0).dispatches(1), 0
    )
    state = fa.make_engine(algorithm).init(5, fa.Population(4, 3, 17))
    before = jax.tree.map(np.array, (state, toy.data, dispatches))
    choice = autotune_layout(
        algorithm,
        toy.data,
        dispatches,
        devices=1,
        client_state=client_state,
        seconds=0.5,
        clock=itertools.count().__next__,
    )
    assert choice == ("sequential", 1, (LayoutTiming("sequential", 1, 1, 1),), "measured")
    chex.assert_trees_all_equal(before, jax.tree.map(np.array, (state, toy.data, dispatches)))


PROGRAM = """
import itertools, sys
sys.path[:0] = sys.argv[1:]
from test_autotune import task
from fedjax_algos.engine.autotune import autotune_layout
algorithm, data, dispatches = task(cohort_size=4)
clock = itertools.count().__next__
choice = autotune_layout(algorithm, data, dispatches, seconds=1000, clock=clock)
assert choice[:2] == ("sequential", 2), choice
assert {t[:2] for t in choice.timings} == {("sequential", 2), ("sequential", 1), ("vmapped", 2)}
"""


@pytest.mark.slow
def test_real_rounds_on_two_devices():
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, Path(__file__).parents[:2])],
        check=True,
        env=environment,
    )
