"""Slots, devices and merging change no bit of any asynchronous rule, optimised and in float32."""

from typing import Literal, get_args, get_origin, get_type_hints

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, stored

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import buffered, compass, immediate, plan_dispatches, simulated, tiers
from fedjax_algos.core import Report
from fedjax_algos.engine.asynchronous.call_tables import (
    merge_data,
    merge_plans,
    merge_states,
    state_of_run,
)
from fedjax_algos.engine.asynchronous.executor import make_executor

pytestmark = pytest.mark.usefixtures("optimised")

SIZES = [1, 2, 3, 5, 6, 7]  # products with powers of two alone would need no rounding
LOCAL = fa.Local(batch_size=2, learning_rate=0.05, steps=3)
SYSTEM = simulated(speeds="exponential", dropout=0.1)
SEEDS = (3, 4)
SCHEDULES = {
    "fedasync": immediate(steps=3),
    "fedat": tiers(steps=3, ratio=8),
    "fedavg": buffered(steps=3, size=3),
    "fedbuff": buffered(steps=3, size=3),
    "fedcompass": compass(min_steps=2, max_steps=8),
}
CASES = [
    Case("fedavg", {}),
    Case("fedasync", {"form": "delta", "weighting": "examples"}),
    Case("fedasync", {"form": "delta", "weighting": "uniform"}),
    Case("fedasync", {"form": "mixing"}),
    Case("fedbuff", {"weighting": "examples"}),
    Case("fedbuff", {"weighting": "uniform", "server_learning_rate": 0.7}),
    Case("fedbuff", {"weighting": "buffer"}),
    Case("fedat", {"weighting": "examples"}),
    Case("fedat", {"weighting": "uniform"}),
    Case("fedcompass", {"variant": "plain", "weighting": "uniform", "mode": "code"}),
    Case("fedcompass", {"variant": "momentum", "weighting": "examples", "mode": "paper"}),
    Case("fedcompass", {"variant": "momentum", "weighting": "uniform"}),
    Case("fedcompass", {"variant": "normalised", "weighting": "examples"}),
    Case("fedcompass", {"variant": "normalised", "weighting": "uniform"}),
]


def test_the_table_covers_every_asynchronous_algorithm_and_variant():
    covered = {(c.name, *option) for c in CASES for option in c.hyperparameters.items()}
    for name, factory in algorithms.items():
        if ".asynchronous." in factory.__module__:
            for option, kind in get_type_hints(factory).items():
                values = get_args(kind) if get_origin(kind) is Literal else ()
                assert {(name, option, value) for value in values} <= covered
            assert name in {case.name for case in CASES}


def build(case):
    """The case's server rule, with an update that compiles quickly instead of local training."""

    def client_update(x, state, data, dispatch, key):
        del data, key
        update = jnp.cos(x + dispatch.client + 3 * dispatch.number) / dispatch.num_steps
        return state, update, Report({}, ())

    def init(key):
        return fa.Model(jax.random.normal(key, (7,)))

    problem = fa.Problem(init, lambda model, batch, key, training: batch, lambda outputs, batch: 0)
    return case.build(problem, LOCAL)._replace(client_update=client_update)


def runs_of(case, executor):
    """The plans, dispatches, examples and initial states of the seeds."""
    plans = [SCHEDULES[case.name](SYSTEM(seed), len(SIZES), seconds=20) for seed in SEEDS]
    assert min(len(plan.time) for plan in plans) > 20
    dispatches = [plan_dispatches(plan, np.array(SIZES), LOCAL) for plan in plans]
    groups = 1 + max(plan.group.max() for plan in plans)
    population = fa.Population(len(SIZES), len(SIZES), sum(SIZES), int(groups))
    states = [executor.init(seed, population) for seed in SEEDS]
    examples = executor.put_data(stored([{"x": np.zeros(size, np.float32)} for size in SIZES]))
    return plans, dispatches, [examples] * len(SEEDS), states


def last_state(executor, plan, dispatches, examples, state):
    (end,) = executor.run(state, examples, plan, dispatches)
    return end.state


@pytest.mark.all
@pytest.mark.parametrize("case", CASES, ids=str)
def test_slots_devices_and_merged_plans_change_no_bit(case):
    algorithm = build(case)

    def executor_of(slots, devices=None):
        return make_executor(algorithm, slots=slots, layout="sequential", devices=devices)

    def alone(executor):
        runs = zip(*runs_of(case, executor), strict=True)
        return [jax.tree.map(np.array, last_state(executor, *run).server) for run in runs]

    expected = alone(executor_of(1))
    assert expected[0].params.dtype == np.float32
    if case in {each.name: each for each in CASES}.values():  # the last of each name
        chex.assert_trees_all_equal(alone(executor_of(3)), expected)
    on_devices = executor_of(4, devices=2)
    plans, dispatches, examples, states = runs_of(case, on_devices)
    merged = merge_plans(plans, dispatches, len(SIZES))
    state = last_state(on_devices, *merged, merge_data(examples), merge_states(states))
    servers = [state_of_run(state, run).server for run in range(len(SEEDS))]
    chex.assert_trees_all_equal(servers, expected)
