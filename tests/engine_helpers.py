"""A small algorithm that reads all that clients are given, and its rounds and plans by hand."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from helpers import one_round, stored

import fedjax_algos as fa
from fedjax_algos.asynchrony import barrier, buffered, compass, immediate, simulated, tiers
from fedjax_algos.asynchrony.plan import AGGREGATED
from fedjax_algos.core import Mean, Report, WeightedSum
from fedjax_algos.core.randomness import client_key, dispatch_keys, permutation_words
from fedjax_algos.data.federated_data import client_view
from fedjax_algos.data.stored.stored_data import StoredData, source_of

CLIENTS, SEED = 8, 3
LOCAL = fa.Local(batch_size=2, learning_rate=lambda version: 0.1 / (1 + 0.1 * version), steps=4)
POPULATION = fa.Population(CLIENTS, 3, 36)
PROBLEM = fa.Problem(
    init=lambda key: fa.Model(jax.random.uniform(key, (), float), jnp.zeros((), float)),
    apply=lambda model, batch, key, training: (model.params * batch["a"], model.statistics),
    loss=lambda outputs, batch: (outputs - 1) ** 2,
)


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
    # a division: powers may be compiled to other bits inside a loop than outside
    weight = dispatch.share / (1.0 + staleness)
    return WeightedSum(weight * update, weight)


def server_update(server, sums, count, group):
    rate = jnp.where(group == 1, 0.5, 0.8) * count / (1 + count)
    return Server(server.params - rate * sums.mean(), server.steps.at[group].add(1))


def stacked_update(server, stack, count, group):
    """The same from the updates of all clients."""
    weights = jnp.where(stack.mask, stack.dispatches.share, 0)
    sums = WeightedSum((weights * stack.updates).sum(), weights.sum())
    return server_update(server, sums, count, group)


def client_init(params, key):
    return params + 0.1 * jax.random.uniform(key, (), float)


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


@jax.jit
def train(data, seed, origin, version, row, known, dispatch):
    """One client's row before its training, and what `client_update` returns."""
    sent, statistics = version
    order, key = dispatch_keys(seed, dispatch.client, dispatch.number)
    row = jnp.where(known, row, client_init(origin, client_key(seed, dispatch.client)))
    words = permutation_words(order)
    view = client_view(data, dispatch.client, words, statistics, dispatch.first_step)
    return row, client_update(sent, row, view, dispatch, key)


@jax.jit
def _added(sums, update, report, dispatch, staleness):
    new = contribute(update, dispatch, staleness), report
    return new if sums is None else jax.tree.map(jnp.add, sums, new)


_served = jax.jit(server_update)


class Run:
    """A run whose clients train one after another, without slots, tables or masks.

    `rows` has the clients that have been dispatched, and `loss` the sum of the last server step.
    """

    def __init__(self, seed=SEED, data=None):
        self.data, self.seed = examples() if data is None else data, np.uint32(seed)
        model = PROBLEM.init(jax.random.fold_in(jax.random.key(seed), 0))
        self.origin, self.rows, self.excluded, self.loss = model.params, {}, [], Mean(0.0, 0.0)
        self.server, self.statistics = ALGORITHM.init(model.params, None), model.statistics

    def version(self):
        return self.server.params, self.statistics

    def train(self, version, dispatch):
        """The update and the report; None if something is not finite, whose row stays."""
        client = int(dispatch.client)
        own = self.rows.get(client, np.zeros_like(self.origin)), client in self.rows
        before, (row, *sent) = train(self.data, self.seed, self.origin, version, *own, dispatch)
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((row, sent)))
        self.rows[client] = row if finite else before
        if finite:
            return sent
        self.excluded.append((int(dispatch.server_step), client))
        return None

    def step(self, arrived, group=0):
        """A server step of (update, report), dispatch and staleness of each that has arrived."""
        sums, arrived = None, [each for each in arrived if each[0] is not None]
        for (update, report), *facts in arrived:
            sums = _added(sums, update, report, *facts)
        if arrived:
            contributed, report = sums
            count = len(arrived)
            self.server = _served(self.server, contributed, np.int32(count), np.int32(group))
            self.statistics = report.statistics * (1 / report.statistics.dtype.type(count))
            self.loss = report.metrics["train_loss"]
        else:
            self.loss = Mean(0.0, 0.0)

    def round(self, dispatches):
        """A round of dispatches [cohort], of which some are empty or do not arrive."""
        arrived, answers = [], dispatches.client < CLIENTS
        if not isinstance(dispatches.arrives, tuple):
            answers = answers & dispatches.arrives
        for index in np.flatnonzero(answers):
            dispatch = one_round(dispatches, index)._replace(arrives=())
            arrived.append((self.train(self.version(), dispatch), dispatch, np.int32(0)))
        self.step(arrived)

    def plan(self, plan, dispatches):
        """Yields the model and the loss after each server step; trains whoever can begin."""
        versions, trained, index = [self.version()], {}, 0
        for step, group in enumerate(plan.group):
            while index < len(plan.client) and plan.version[index] <= step:
                if plan.fate[index] == AGGREGATED:
                    dispatch = one_round(dispatches, index)
                    trained[index] = self.train(versions[plan.version[index]], dispatch), dispatch
                index += 1
            these = np.flatnonzero(plan.step == step)
            arrived = [(*trained.pop(plan.dispatch[i]), plan.staleness[i]) for i in these]
            self.step(arrived, group)
            versions.append(self.version())
            yield self.server, self.statistics, self.loss


def rows_of(table, clients=range(CLIENTS)):
    """The rows that a table on a device or off it has of some clients."""
    return {client: np.asarray(jax.tree.leaves(table[client])[0]) for client in clients}


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
