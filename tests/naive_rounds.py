"""Algorithms without the engine: client by client and sum by sum, as papers write them.

The work of a client is one program for each algorithm. All else is computed operation by operation,
and what these compile serves all algorithms.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from helpers import dispatches_of
from histories import COUNTS, RATE, SETS, Snapshot, regression

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import plan_dispatches
from fedjax_algos.core import Mean, Stack
from fedjax_algos.core.randomness import client_key, dispatch_keys, model_key, permutation_words
from fedjax_algos.data.federated_data import client_view

ROUND = jnp.int32(0)  # the group of a round


class After(NamedTuple):
    """What there is after a server step."""

    server: Any
    clients: Any  # the rows of all clients, leaves [num_clients, ...]
    statistics: Any
    loss: Any  # the metric of all examples of the step: their sum, and their number


@functools.partial(jax.jit, static_argnames="persistent")
def draws(seed, dispatch, persistent):
    order, key = dispatch_keys(seed, dispatch.client, dispatch.number)
    if persistent:
        order, _ = dispatch_keys(seed, dispatch.client, jnp.int32(0))
    return permutation_words(order), key


def view(data, statistics, dispatch, order):
    return client_view(data, dispatch.client, order, statistics, dispatch.first_step)


def added(trees):
    return functools.reduce(functools.partial(jax.tree.map, jnp.add), trees)


def served(phase, server, sent, group=ROUND):
    """The server state after messages, which are (message, dispatch, staleness)."""
    messages, dispatches, staleness = zip(*sent, strict=True)
    updates = [phase.decode(message) for message in messages]
    if phase.traits.reduce == "stack":
        rows = jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *zip(updates, dispatches, strict=True)
        )
        sums = Stack(*rows, jnp.ones(len(sent), bool))
    else:
        each = map(phase.contribute, updates, dispatches, map(jnp.int32, staleness))
        sums = added(each)
    return phase.server_update(server, sums, jnp.int32(len(sent)), group)


class Program:
    """A function that is compiled once for arguments like these, unless another one has its text.

    Many algorithms differ only in what the server does.
    """

    compiled = {}  # noqa: RUF012

    def __init__(self, function):
        self.function, self.known = function, {}

    def __call__(self, *arguments):
        leaves, tree = jax.tree.flatten(arguments)
        shapes = tree, *map(jax.typeof, leaves)
        if shapes not in self.known:
            made = []

            def of_leaves(*leaves):
                results, result = jax.tree.flatten(self.function(*tree.unflatten(leaves)))
                made.append(result)
                return results

            lowered = jax.jit(of_leaves, keep_unused=True).lower(*leaves)
            text = lowered.as_text()
            if text not in self.compiled:
                self.compiled[text] = lowered.compile()
            self.known[shapes] = self.compiled[text], made[0]
        program, result = self.known[shapes]
        return result.unflatten(program(*leaves))


class Naive:
    """An algorithm whose clients' work is compiled once for data of one size."""

    def __init__(self, algorithm):
        self.algorithm = algorithm

        def train(received, row, data, statistics, dispatch, order, key):
            client = view(data, statistics, dispatch, order)
            return algorithm.client_update(received, row, client, dispatch, key)

        def begin(received, data, statistics, dispatch, order, key):
            client = view(data, statistics, dispatch, order)
            return algorithm.prelude.client_update(received, client, dispatch, key)

        self.train, self.begin = Program(train), Program(begin)

    def rounds(self, data, dispatches, population, **options):
        """The rounds of dispatches [rounds, cohort]; `options` are those of `steps`."""
        arrive = dispatches.client < data.num_clients
        if not isinstance(dispatches.arrives, tuple):
            arrive = arrive & dispatches.arrives
        numbers = np.arange(arrive.size).reshape(arrive.shape)
        arrivals = [(0, [(n, 0) for n in cohort if arrive.flat[n]]) for cohort in numbers]
        flat = jax.tree.map(np.ravel, dispatches)
        return [*self.steps(data, flat, arrivals, population, **options)]

    def on_the_clock(self, data, plan, population):
        """The `After` of each server step of a plan."""
        arrivals = []
        for step, group in enumerate(plan.group):
            here = plan.step == step
            arrivals.append((group, [*zip(plan.dispatch[here], plan.staleness[here], strict=True)]))
        dispatches = plan_dispatches(plan, data.counts(), self.algorithm.local)
        return self.steps(data, dispatches, arrivals, population)

    def steps(self, data, dispatches, arrivals, population, *, seed=0, params=None):
        """Yields an `After` for each server step.

        A step of `arrivals` is its group, and (number of the dispatch, staleness) of what arrives.
        What is not finite is left out, and the client's row stays.
        """
        algorithm, data = self.algorithm, jax.tree.map(jnp.asarray, data)
        model = algorithm.problem.init(model_key(seed))
        origin = model.params if params is None else params
        server, statistics = algorithm.init(origin, population), model.statistics
        clients = map(jnp.int32, range(data.num_clients))
        rows = [algorithm.client_init(origin, client_key(seed, client)) for client in clients]
        versions = []
        for group, arrived in arrivals:
            cohort = []
            for number, _ in arrived:
                dispatch = jax.tree.map(lambda leaf, i=number: jnp.asarray(leaf[i]), dispatches)
                persistent = algorithm.local.batches == "persistent"
                cohort.append((dispatch, *draws(seed, dispatch, persistent)))
            first, prelude = (), algorithm.prelude
            if prelude is not None:
                asked = prelude.broadcast(server, ROUND), data, statistics
                sent = [(self.begin(*asked, *each), each[0], 0) for each in cohort]
                server = served(prelude, server, sent)
                first = (prelude.broadcast(server, ROUND),)
            broadcast = algorithm.broadcast(server, ROUND)
            versions.append(((*first, broadcast) if first else broadcast, statistics))
            sent, reports, loss = [], [], Mean(0.0, 0.0)
            for (dispatch, *drawn), (_, staleness) in zip(cohort, arrived, strict=True):
                (received, known), client = versions[dispatch.server_step], int(dispatch.client)
                given = received, rows[client], data, known, dispatch, *drawn
                row, message, report = trained = self.train(*given)
                if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained)):
                    rows[client] = row
                    sent.append((message, dispatch, staleness))
                    reports.append(report)
            if sent:
                server = served(algorithm, server, sent, jnp.int32(group))
                report = added(reports)
                statistics = optax.tree.scale(1 / len(sent), report.statistics)
                loss = report.metrics["train_loss"]
            table = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
            yield After(jax.tree.map(np.asarray, server), table, statistics, loss)


@functools.cache
def on_regression(name, settings, batches="full", batch_size=3, decay=0.0):
    transform = optax.add_decayed_weights(decay) if decay else optax.identity()
    local = fa.Local(batch_size, RATE, steps=1, transform=transform, batches=batches)
    return Naive(algorithms[name](regression().problem, local, **dict(settings)))


@functools.cache
def play(name, sets=SETS, *, steps=3, full=None, rate=RATE, compiled=(), **settings):
    """The snapshots of a run on the regression.

    `steps` is one number, or one for each client; `rate` is one number, or one for each round.
    `compiled` has pairs of `on_regression`'s other arguments; `settings` are the options.
    """
    chosen = on_regression(name, tuple(settings.items()), **dict(compiled))
    return follow(chosen, sets, steps=steps, full=full, rate=rate)


def follow(naive, sets=SETS, *, steps=3, full=None, rate=RATE):
    data = regression().data
    steps = np.broadcast_to(np.asarray(steps, np.int32), len(COUNTS))
    rates = np.broadcast_to(rate, len(sets))
    work = fa.Local(1, lambda rounds: rates[rounds], steps=int(full or steps.max()))
    dispatches = dispatches_of(data, work, sets, steps)
    population = fa.Population(len(COUNTS), len(sets[0]), sum(COUNTS))
    history = naive.rounds(data, dispatches, population)
    return [Snapshot(after.server, after.clients) for after in history]
