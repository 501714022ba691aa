"""Slots, devices and merging change no bit of any asynchronous rule, optimised and in float32."""

from typing import Literal, get_args, get_origin, get_type_hints

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_helpers import ALGORITHM, CLIENTS, LOCAL, POPULATION, examples
from helpers import Case

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import buffered, compass, immediate, plan_dispatches, simulated, tiers
from fedjax_algos.core import Report
from fedjax_algos.engine.asynchronous import call_tables
from fedjax_algos.engine.asynchronous.executor import make_executor

SYSTEM, SEEDS = simulated(speeds="exponential", dropout=0.1), (3, 4)
SCHEDULES = {
    **dict.fromkeys(("fedasync", "asyncsgd", "ace"), immediate(steps=3)),
    "fedat": tiers(steps=3, ratio=8),
    **dict.fromkeys(("fedavg", "fedbuff", "ca2fl", "fadas"), buffered(steps=3, size=3)),
    "fedcompass": compass(min_steps=2, max_steps=8),
}


def cases():
    """Each value of the options that are one of some words; the last case of each is in `all`."""
    for name, factory in algorithms.items():
        if name == "fedavg" or ".asynchronous." in factory.__module__:
            kinds = get_type_hints(factory)
            words = {option: get_args(k) for option, k in kinds.items() if get_origin(k) is Literal}
            last = max(map(len, words.values()), default=1) - 1
            for turn in range(last + 1):
                chosen = {option: values[turn % len(values)] for option, values in words.items()}
                mark = pytest.mark.all if turn == last else pytest.mark.nightly
                yield pytest.param(Case(name, chosen), marks=mark)


def client_update(x, state, data, dispatch, key):
    """Compiles quickly instead of local training."""
    update = jnp.cos(x + dispatch.client + 3 * dispatch.number) / dispatch.num_steps
    state = jax.tree.map(lambda last: update, state)
    return state, update, Report({}, ())


PROBLEM = ALGORITHM.problem._replace(init=lambda key: fa.Model(jax.random.normal(key, (7,))))


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("case", [*cases()], ids=str)
def test_slots_devices_and_merged_plans_change_no_bit(case):
    algorithm = case.build(PROBLEM, LOCAL)._replace(client_update=client_update)
    plans = [SCHEDULES[case.name](SYSTEM(seed), CLIENTS, seconds=20) for seed in SEEDS]
    assert min(len(plan.time) for plan in plans) > 20
    drawn = [plan_dispatches(plan, examples().counts(), LOCAL) for plan in plans]
    population = POPULATION._replace(num_groups=int(1 + max(plan.group.max() for plan in plans)))

    def executor_of(slots, devices=None):
        return make_executor(algorithm, slots=slots, layout="sequential", devices=devices)

    def alone(executor):
        for seed, *of_run in zip(SEEDS, plans, drawn, strict=True):
            (end,) = executor.run(executor.init(seed, population), examples(), *of_run)
            yield jax.tree.map(np.array, end.state.server)

    expected = [*alone(executor_of(1))]
    assert expected[0].params.dtype == np.float32
    chex.assert_trees_all_equal([*alone(executor_of(3))], expected)
    executor = executor_of(4, devices=2)
    data = call_tables.merge_data([executor.put_data(examples())] * len(SEEDS))
    merged = call_tables.merge_plans(plans, drawn, CLIENTS)
    states = call_tables.merge_states([executor.init(seed, population) for seed in SEEDS])
    (end,) = executor.run(states, data, *merged)
    servers = [call_tables.state_of_run(end.state, run).server for run in range(len(SEEDS))]
    chex.assert_trees_all_equal(servers, expected)
