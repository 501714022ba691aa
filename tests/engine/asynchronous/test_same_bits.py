"""Slots, devices and merging change no bit of any asynchronous rule, optimised and in float32."""

from typing import Literal, get_args, get_origin, get_type_hints

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_helpers import CLIENTS, LOCAL, POPULATION, examples
from helpers import Case

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

SYSTEM, SEEDS = simulated(speeds="exponential", dropout=0.1), (3, 4)
SCHEDULES = {
    "fedasync": immediate(steps=3),
    "fedat": tiers(steps=3, ratio=8),
    "fedavg": buffered(steps=3, size=3),
    "fedbuff": buffered(steps=3, size=3),
    "fedcompass": compass(min_steps=2, max_steps=8),
}
CASES = [  # the last one of each name is tested in `all`
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
    Case("fedcompass", {"variant": "normalised", "weighting": "examples"}),
    Case("fedcompass", {"variant": "normalised", "weighting": "uniform"}),
    Case("fedcompass", {"variant": "momentum", "weighting": "uniform"}),
    Case("fedcompass", {"variant": "momentum", "weighting": "examples", "mode": "paper"}),
]
LAST = {case.name: case for case in CASES}.values()


def test_the_table_covers_every_asynchronous_algorithm_and_variant():
    covered = {(c.name, *option) for c in CASES for option in c.hyperparameters.items()}
    for name, factory in algorithms.items():
        if ".asynchronous." in factory.__module__:
            for option, kind in get_type_hints(factory).items():
                values = get_args(kind) if get_origin(kind) is Literal else ()
                assert {(name, option, value) for value in values} <= covered
            assert name in {case.name for case in CASES}


def client_update(x, state, data, dispatch, key):
    """Compiles quickly instead of local training."""
    update = jnp.cos(x + dispatch.client + 3 * dispatch.number) / dispatch.num_steps
    return state, update, Report({}, ())


def no_batches(*arguments):
    """Stands for what `client_update` above must not call."""
    raise AssertionError("a batch is read")


PROBLEM = fa.Problem(lambda key: fa.Model(jax.random.normal(key, (7,))), no_batches, no_batches)


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.all if case in LAST else pytest.mark.nightly)
        for case in CASES
    ],
    ids=str,
)
def test_slots_devices_and_merged_plans_change_no_bit(case):
    algorithm = case.build(PROBLEM, LOCAL)._replace(client_update=client_update)
    plans = [SCHEDULES[case.name](SYSTEM(seed), CLIENTS, seconds=20) for seed in SEEDS]
    assert min(len(plan.time) for plan in plans) > 20
    drawn = [plan_dispatches(plan, examples().counts(), LOCAL) for plan in plans]
    groups = int(1 + max(plan.group.max() for plan in plans))

    def executor_of(slots, devices=None):
        return make_executor(algorithm, slots=slots, layout="sequential", devices=devices)

    def states_of(executor):
        return [executor.init(seed, POPULATION._replace(num_groups=groups)) for seed in SEEDS]

    def alone(executor):
        for state, *of_run in zip(states_of(executor), plans, drawn, strict=True):
            (end,) = executor.run(state, examples(), *of_run)
            yield jax.tree.map(np.array, end.state.server)

    expected = [*alone(executor_of(1))]
    assert expected[0].params.dtype == np.float32
    if case in LAST:
        chex.assert_trees_all_equal([*alone(executor_of(3))], expected)
    executor = executor_of(4, devices=2)
    data = merge_data([executor.put_data(examples())] * len(SEEDS))
    merged = merge_plans(plans, drawn, CLIENTS)
    (end,) = executor.run(merge_states(states_of(executor)), data, *merged)
    servers = [state_of_run(end.state, run).server for run in range(len(SEEDS))]
    chex.assert_trees_all_equal(servers, expected)
