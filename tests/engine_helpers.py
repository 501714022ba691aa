"""A small algorithm that reads all that clients are given; plans for it."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import by_kind, stored

import fedjax_algos as fa
from fedjax_algos.asynchrony import barrier, buffered, compass, immediate, simulated, tiers
from fedjax_algos.core import Mean, Report, WeightedSum
from fedjax_algos.data.stored.stored_data import StoredData, source_of

CLIENTS, SEED = 8, 3
LOCAL = fa.Local(batch_size=2, learning_rate=lambda version: 0.1 / (1 + 0.1 * version), steps=4)
POPULATION = fa.Population(CLIENTS, 3, 36)
PROBLEM = fa.Problem(
    init=lambda key: fa.Model(jax.random.uniform(key, (), float), jnp.zeros((), float)),
    apply=lambda model, batch, key, training: (model.params * batch["a"], model.statistics),
    loss=lambda outputs, batch: (outputs - 1) ** 2,
)


def in_tier(mark, *cases):
    """Cases of a parametrised test that a later tier runs; a case is a tuple, or one value."""
    tuples = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*case, marks=mark) for case in tuples]


def kinds_in_all(cases=None):
    """Cases as parameters: one of each kind of algorithm is in `all`, the others are nightly."""
    marks = pytest.mark.all, pytest.mark.nightly
    return [pytest.param(*each.values, marks=marks[bool(each.marks)]) for each in by_kind(cases)]


class Server(NamedTuple):
    params: Any
    steps: Any  # server steps of each of two groups


@functools.cache
def examples(seed=0):
    """Of eight clients with 1 to 8 examples; those of other seeds hold other numbers of them."""
    rng = np.random.default_rng(seed)
    if seed:
        rows = rng.permutation(36)[: 36 - seed % 2]
        ends = np.sort(rng.choice(np.arange(1, len(rows)), CLIENTS - 1, replace=False))
        return fa.federate(examples().examples, fa.Partition.of(np.split(rows, ends)))
    return stored([{"a": rng.normal(size=n)} for n in range(1, CLIENTS + 1)])


def in_files(data=None):
    """Examples as stored data."""
    data = examples() if data is None else data
    rows = np.split(np.asarray(data.indices), np.asarray(data.offsets)[1:-1])
    names = [f"client {number}" for number in range(data.num_clients)]
    return StoredData(source_of(jax.device_get(data.examples), fa.Partition.of(rows), names))


def client_update(x, row, data, dispatch, key):
    """Some steps to the means of batches; a rate of NaN spoils one part of what a client returns.

    The client's id says which part that is.
    """
    steepness = 1 / jnp.nan_to_num(dispatch.learning_rate)

    def step(number, y):  # without products, which may be fused with sums or not
        batch, real = data.local_batch(number, LOCAL)
        return y + (jnp.where(real, batch["a"], 0).sum() / real.sum() - y) / steepness

    y = jax.lax.fori_loop(0, dispatch.num_steps, step, x + row)
    update = x - y + jax.random.uniform(key, (), float) / 8 + data.first_step / 128
    parts = row + update, update, y, 0.5 * data.statistics + y
    spoiled, part = 0 * dispatch.learning_rate, dispatch.client % 4
    row, update, y, statistics = (
        each + jnp.where(part == number, spoiled, 0) for number, each in enumerate(parts)
    )
    examples = dispatch.num_examples.astype(y.dtype)
    return row, update, Report({"train_loss": Mean(y * examples, examples)}, statistics)


def contribute(update, dispatch, staleness):
    # a division: powers, and products in sums, may have other bits inside a program than outside
    inverse = 1 + staleness + 1 / dispatch.share
    return WeightedSum(update / inverse, 1 / inverse)


def server_update(server, sums, count, group):
    shift = jnp.where(group == 1, 0.5, 0.8) / (1 + count)
    return Server(server.params - sums.mean() - shift, server.steps.at[group].add(1))


def stacked_update(server, stack, count, group):
    """The same from the updates of all clients."""
    each = contribute(stack.updates, stack.dispatches, 0)
    sums = jax.tree.map(lambda leaf: jnp.where(stack.mask, leaf, 0).sum(), each)
    return server_update(server, sums, count, group)


def client_init(params, key):
    return params + jax.random.uniform(key, (), float) / 8


ALGORITHM = fa.algorithms.fedavg(PROBLEM, LOCAL)._replace(
    init=lambda params, population: Server(params, jnp.zeros(2, jnp.int32)),
    client_init=client_init,
    client_update=client_update,
    contribute=contribute,
    server_update=server_update,
)
STACKED = ALGORITHM._replace(
    server_update=stacked_update, traits=ALGORITHM.traits._replace(reduce="stack")
)


def make_plan(planner, seed, num_clients=CLIENTS, lost=0.0, **end):
    """A plan for clients of unequal speeds, whose dispatches have 1 to 4 steps of 4."""
    system = simulated(speeds="exponential", change=0.3, jitter=0.5, dropout=lost)(seed)
    plan = planner(system, num_clients, **end)
    steps = np.random.default_rng(seed).integers(1, 5, len(plan.client), np.int32)
    return plan._replace(num_steps=steps, full_steps=np.full_like(steps, 4), trace=None)


# arrival groups, with late updates of others, and first arrivals
COMPASS = compass(min_steps=1, max_steps=4, slack=1.1)
PLANNERS = {
    "each arrival": immediate(steps=4),
    "buffers of 3": buffered(steps=4, size=3),
    "groups": COMPASS,
    "tiers": tiers(steps=4),
    "rounds": barrier(steps=4),
}


@functools.cache
def plan_of(kind, seed=2):
    """Some dispatches are lost for even seeds."""
    return make_plan(PLANNERS[kind], seed, lost=0.2 * (seed % 2 == 0), arrivals=30)
