"""What a round computes, traced: turns are gathered, mapped, masked, summed and scattered.

`engine` compiles these functions; a sweep puts them into a program of its own.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.core import (
    Algorithm,
    ClientState,
    Key,
    Metrics,
    Model,
    Params,
    Population,
    ServerState,
    Stack,
    Statistics,
    Visit,
)
from fedjax_algos.core.keys import client_key, model_key, visit_keys
from fedjax_algos.core.permutation import permutation_words
from fedjax_algos.data.federated_data import FederatedData, client_view
from fedjax_algos.engine.placement import Spread, map_cohort
from fedjax_algos.engine.sharded_data import Parts


class FederatedState(NamedTuple):
    """All that a run carries from round to round."""

    server: ServerState
    statistics: Statistics  # the model's, a plain mean over each cohort
    clients: ClientState  # leaves [num_clients, ...], or a `HostTable`; see `make_engine`
    origin: Params  # theta_0, from which rows are made; () where clients are stateless
    seed: jax.Array  # uint32[]


def start(
    algorithm: Algorithm,
    spread: Spread,
    seed: jax.Array,
    given: Model | None,
    population: Population,
    num_rows: int,
) -> FederatedState:
    """The first state. The table of client state is not filled: see `turn`."""
    model = algorithm.problem.init(model_key(seed)) if given is None else given
    row = jax.eval_shape(algorithm.client_init, model.params, client_key(seed, jnp.int32(0)))
    table = jax.tree.map(lambda leaf: jnp.zeros((num_rows, *leaf.shape), leaf.dtype), row)
    state = FederatedState(
        server=algorithm.init(model.params, population),
        statistics=model.statistics,
        clients=(),
        origin=model.params if jax.tree.leaves(row) else (),
        seed=seed,
    )
    return spread.pin(state)._replace(clients=spread.pin_table(table))


def row_shapes(algorithm: Algorithm, state: FederatedState) -> ClientState:
    """Shapes of one client's row."""
    key = jax.eval_shape(client_key, state.seed, jnp.int32(0))
    return jax.eval_shape(algorithm.client_init, state.origin, key)


def sent(algorithm: Algorithm, server: ServerState) -> Any:
    """What a client holds when its local steps begin."""
    broadcast = algorithm.broadcast(server, jnp.int32(0))
    if algorithm.prelude is None:
        return broadcast
    return algorithm.prelude.broadcast(server, jnp.int32(0)), broadcast


class Draws(NamedTuple):
    """What is random in a turn."""

    order: jax.Array  # uint32[20]: of its examples, see `permutation_words`
    key: Key  # of its training


def draw(algorithm, seed, visit):
    """A visit's `Draws`; a cohort's are made at once, outside of its loop."""
    order, key = visit_keys(seed, visit.client, visit.visit)
    if algorithm.local.batches == "feeder":  # one stream for all of a client's turns
        order, _ = visit_keys(seed, visit.client, jnp.int32(0))
    return Draws(permutation_words(order), key)


def turn(algorithm, state, broadcast, data, visit, draws, row, first=None):
    """One client's turn: (new row, update, report). Its row is made when it is first visited.

    `first`, bool[], says so where earlier visits came to nothing.
    """
    view = client_view(data, visit.client, draws.order, state.statistics, visit.first_step)
    first = visit.visit == 0 if first is None else first
    fresh = algorithm.client_init(state.origin, client_key(state.seed, visit.client))
    row = jax.tree.map(lambda new, old: jnp.where(first, new, old), fresh, row)
    return algorithm.client_update(broadcast, row, view, visit, draws.key)


def prelude_turn(algorithm, state, broadcast, data, visit, draws):
    """One client's update in the first exchange."""
    view = client_view(data, visit.client, draws.order, state.statistics, visit.first_step)
    return algorithm.prelude.client_update(broadcast, view, visit, draws.key)


def _draw_all(algorithm, state, visits):
    return jax.vmap(functools.partial(draw, algorithm, state.seed))(visits)


def run_prelude(algorithm, spread, state, data, visits):
    """The first exchange: (sums, number of clients)."""
    broadcast = algorithm.prelude.broadcast(state.server, jnp.int32(0))
    shared = state._replace(server=(), clients=()), broadcast

    def one(shared, data, visit, draws):
        state, broadcast = shared
        update = prelude_turn(algorithm, state, broadcast, data, visit, draws)
        return (algorithm.prelude.contribute(update, visit, jnp.int32(0)), jnp.int32(1)), ()

    summed, _ = map_cohort(one, shared, data, (visits, _draw_all(algorithm, state, visits)), spread)
    return spread.pin(summed)


def run_cohort(algorithm, spread, state, rows, data, visits):
    """All turns of a round: (rows, sums or `Stack`, statistics, metrics, number of clients).

    Args:
      algorithm: what is computed.
      spread: how.
      state: the clients' rows in it are not read.
      rows: leaves [places, ...]: those of `visits`.
      data: all clients' examples, or parts of which each device holds one.
      visits: leaves [places], of `arrange`.
    """
    stacked = algorithm.reduce == "stack"
    shared = state._replace(server=(), clients=()), sent(algorithm, state.server)

    def one(shared, data, visit, draws, row):
        state, broadcast = shared
        row, update, report = turn(algorithm, state, broadcast, data, visit, draws, row)
        contribution = () if stacked else algorithm.contribute(update, visit, jnp.int32(0))
        return (contribution, report, jnp.int32(1)), (row, update if stacked else ())

    inputs = visits, _draw_all(algorithm, state, visits), rows
    summed, kept = map_cohort(one, shared, data, inputs, spread)
    (sums, report, count), (rows, updates) = summed, kept
    if stacked:
        sums = Stack(updates, visits, visits.client < data.num_clients)
    statistics = jax.tree.map(lambda leaf: leaf / count.astype(leaf.dtype), report.statistics)
    return rows, *spread.pin((sums, statistics, report.metrics, count))


def run_on_table(algorithm, spread, table, state, data, visits):
    """`run_cohort` with the rows of all clients, of which it writes the cohort's."""
    rows = rows_of(table, visits)
    rows, *results = run_cohort(algorithm, spread, state, rows, data, visits)
    # an empty place's row is out of range and dropped
    table = jax.tree.map(lambda t, r: t.at[visits.client].set(r), table, rows)
    return spread.pin_table(table), *results


def rows_of(table: ClientState, visits: Visit) -> ClientState:
    """The cohort's rows, [places, ...]; an empty place has some other's."""
    return jax.tree.map(lambda leaf: leaf[visits.client], table)


def update_with(phase, spread, server, sums, count):
    """The server update of an algorithm or of its prelude."""
    return spread.pin(phase.server_update(server, sums, count, jnp.int32(0)))


def run_round(
    algorithm: Algorithm,
    spread: Spread,
    state: FederatedState,
    data: FederatedData | Parts,
    visits: Visit,
) -> tuple[FederatedState, Metrics]:
    """A whole round: the prelude where there is one, the cohort, the server update."""
    if algorithm.prelude is not None:
        asked = run_prelude(algorithm, spread, state, data, visits)
        state = state._replace(server=update_with(algorithm.prelude, spread, state.server, *asked))
    shared = state._replace(clients=())
    table, sums, statistics, metrics, count = run_on_table(
        algorithm, spread, state.clients, shared, data, visits
    )
    server = update_with(algorithm, spread, state.server, sums, count)
    return state._replace(server=server, statistics=statistics, clients=table), metrics


def run_rounds(
    algorithm: Algorithm,
    spread: Spread,
    state: FederatedState,
    data: FederatedData | Parts,
    visits: Visit,
    number: jax.Array,
) -> tuple[FederatedState, Metrics]:
    """The first `number` rounds of visits [rounds, places], and the sum of their metrics."""
    one = jax.jit(functools.partial(run_round, algorithm, spread))  # traced once

    def at(index):
        return jax.tree.map(lambda leaf: leaf[index], visits)

    def add(index, carry):
        state, total = carry
        state, metrics = one(state, data, at(index))
        return state, jax.tree.map(jnp.add, total, metrics)

    _, shapes = jax.eval_shape(one, state, data, at(0))
    zeros = jax.tree.map(jnp.zeros_like, shapes)
    return jax.lax.fori_loop(0, number, add, (state, zeros))


def tree_bytes(tree: Any) -> int:
    """Bytes of all leaves, arrays or shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
