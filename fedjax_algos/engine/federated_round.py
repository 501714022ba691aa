"""What a round computes, traced: read rows, train the cohort, sum, update the server.

`engine.py` compiles these functions; a batched run puts them into a program of its own. What one
client computes is in `local_update.py`, and how a cohort is mapped in `placement.py`.

Everywhere the dispatches are those of `fill_slots`, with leaves [slots]: client id `num_clients`
marks an empty slot, whose contribution is masked out.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import (
    Algorithm,
    ClientState,
    Dispatch,
    Metrics,
    Prelude,
    ServerState,
    Stack,
    Statistics,
)
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.local_update import (
    broadcast_to_client,
    draw_cohort,
    local_update,
    prelude_update,
)
from fedjax_algos.engine.placement import Placement, map_cohort
from fedjax_algos.engine.sharded_data import ClientShards
from fedjax_algos.engine.state import FederatedState

# rows, sums or a `Stack`, statistics, metrics, number of clients
CohortResult = tuple[ClientState, Any, Statistics, Metrics, jax.Array]


def run_prelude(
    algorithm: Algorithm,
    placement: Placement,
    state: FederatedState,
    data: FederatedData | ClientShards,
    dispatches: Dispatch,
) -> tuple[Any, jax.Array]:
    """The prelude's client updates: (sums of its contributions, number of clients, int32[]).

    Args:
      algorithm: an algorithm with a prelude.
      placement: how the cohort is laid out over chunks and devices.
      state: of the run; its rows are not read.
      data: all clients' examples, or shards of which each device holds one.
      dispatches: leaves [slots].
    """
    prelude = algorithm.prelude
    assert prelude is not None
    broadcast = prelude.broadcast(state.server, jnp.int32(0))
    shared = state._replace(server=(), clients=()), broadcast

    def update_client(shared, data, dispatch, randomness):
        state, broadcast = shared
        update = prelude_update(algorithm, state, broadcast, data, dispatch, randomness)
        return (prelude.contribute(update, dispatch, jnp.int32(0)), jnp.int32(1)), ()

    inputs = dispatches, draw_cohort(algorithm, state.seed, dispatches)
    summed, _ = map_cohort(update_client, shared, data, inputs, placement)
    return placement.constrain(summed)


def run_cohort(
    algorithm: Algorithm,
    placement: Placement,
    rows: ClientState,
    state: FederatedState,
    data: FederatedData | ClientShards,
    dispatches: Dispatch,
    *,
    rows_are_table: bool,
) -> CohortResult:
    """The local updates of a round.

    Args:
      algorithm: what is computed.
      placement: how the cohort is laid out over chunks and devices.
      rows: leaves [slots, ...], or [num_clients, ...] if they are the table.
      state: of the run; its rows are not read.
      data: all clients' examples, or shards of which each device holds one.
      dispatches: leaves [slots].
      rows_are_table: whether `rows` are those of all clients, or those of the cohort.

    Returns:
      New rows or the new table, sums or a `Stack`, statistics, metrics, number of clients.
    """
    of_cohort = _read_rows(rows, dispatches) if rows_are_table else rows
    stacked = algorithm.reduce == "stack"
    shared = state._replace(server=(), clients=()), broadcast_to_client(algorithm, state.server)

    def update_client(shared, data, dispatch, randomness, row):
        state, broadcast = shared
        row, update, report = local_update(
            algorithm, state, broadcast, data, dispatch, randomness, row
        )
        contribution = () if stacked else algorithm.contribute(update, dispatch, jnp.int32(0))
        return (contribution, report, jnp.int32(1)), (row, update if stacked else ())

    inputs = dispatches, draw_cohort(algorithm, state.seed, dispatches), of_cohort
    (sums, report, count), (of_cohort, updates) = map_cohort(
        update_client, shared, data, inputs, placement
    )
    if stacked:
        mask: Any = dispatches.client < data.num_clients
        sums = Stack(updates, dispatches, mask)
    statistics = jax.tree.map(lambda leaf: leaf / count.astype(leaf.dtype), report.statistics)
    results = placement.constrain((sums, statistics, report.metrics, count))
    if not rows_are_table:
        return placement.constrain(of_cohort), *results
    # the index of an empty slot is out of range, so its row is dropped
    table = jax.tree.map(lambda t, r: t.at[dispatches.client].set(r), rows, of_cohort)
    return placement.constrain_rows(table), *results


def _read_rows(table, dispatches):
    """Leaves [slots, ...]; an empty slot reads the row of some client."""
    return jax.tree.map(lambda leaf: leaf[dispatches.client], table)


def server_step(
    phase: Algorithm | Prelude,
    placement: Placement,
    server: ServerState,
    sums: Any,
    count: jax.Array,
) -> ServerState:
    """The server update at the end of a round or of its prelude.

    Args:
      phase: the algorithm, or its prelude.
      placement: how the server state is laid out over devices.
      server: the server state.
      sums: the contributions' sums, or a `Stack`.
      count: int32[]: number of clients.
    """
    return placement.constrain(phase.server_update(server, sums, count, jnp.int32(0)))


def _after_prelude(algorithm, placement, state, data, dispatches):
    """The state after the prelude's server update; unchanged if there is no prelude."""
    if algorithm.prelude is None:
        return state
    sums, count = run_prelude(algorithm, placement, state, data, dispatches)
    server = server_step(algorithm.prelude, placement, state.server, sums, count)
    return state._replace(server=server)


def run_round(
    algorithm: Algorithm,
    placement: Placement,
    state: FederatedState,
    data: FederatedData | ClientShards,
    dispatches: Dispatch,
) -> tuple[FederatedState, Metrics]:
    """A whole round: the prelude if there is one, the cohort, and the server update.

    Args:
      algorithm: what is computed.
      placement: how the cohort is laid out over chunks and devices.
      state: of the run, with the table of all clients' rows.
      data: all clients' examples, or shards of which each device holds one.
      dispatches: leaves [slots].
    """
    state = _after_prelude(algorithm, placement, state, data, dispatches)
    table, sums, statistics, metrics, count = run_cohort(
        algorithm,
        placement,
        state.clients,
        state._replace(clients=()),
        data,
        dispatches,
        rows_are_table=True,
    )
    server = server_step(algorithm, placement, state.server, sums, count)
    return state._replace(server=server, statistics=statistics, clients=table), metrics


def run_rounds(
    algorithm: Algorithm,
    placement: Placement,
    state: FederatedState,
    data: FederatedData | ClientShards,
    dispatches: Dispatch,
    number: jax.Array,
) -> tuple[FederatedState, Metrics]:
    """Many rounds in one program.

    Args:
      algorithm: what is computed.
      placement: how a cohort is laid out over chunks and devices.
      state: of the run, with the table of all clients' rows.
      data: all clients' examples, or shards of which each device holds one.
      dispatches: leaves [rounds, slots].
      number: int32[]: so many rounds are computed, from the first.

    Returns:
      The state after the last round, and the sum of the rounds' metrics.
    """
    one_round = jax.jit(partial(run_round, algorithm, placement))  # traced once

    def dispatches_of(index):
        return jax.tree.map(lambda leaf: leaf[index], dispatches)

    def add_round(index, carry):
        state, total = carry
        state, metrics = one_round(state, data, dispatches_of(index))
        return state, jax.tree.map(jnp.add, total, metrics)

    _, shapes = jax.eval_shape(one_round, state, data, dispatches_of(0))
    zeros = jax.tree.map(jnp.zeros_like, shapes)
    return jax.lax.fori_loop(0, number, add_round, (state, zeros))


def cohort_updates(
    algorithm: Algorithm,
    placement: Placement,
    rows: ClientState,
    state: FederatedState,
    data: FederatedData | ClientShards,
    dispatches: Dispatch,
    slots: jax.Array | None,
    *,
    rows_are_table: bool,
) -> Stack:
    """What the clients of a cohort would upload; nothing is updated.

    Args:
      algorithm: what is computed.
      placement: how the cohort is laid out over chunks and devices.
      rows: leaves [cohort, ...] in the order of `dispatches`, or [num_clients, ...].
      state: of the run; its rows are not read.
      data: all clients' examples, or shards of which each device holds one.
      dispatches: leaves [cohort]; of `fill_slots` if `slots` is given.
      slots: int32[cohort]: the slot of each dispatch; None if they are in the first slots.
      rows_are_table: whether `rows` are those of all clients.

    Returns:
      The updates in the order of the dispatches before `fill_slots`; leaves [cohort, ...].
    """
    cohort_size = len(dispatches.client)
    rows = _read_rows(rows, dispatches) if rows_are_table else rows
    num_empty = placement.num_slots(cohort_size) - cohort_size
    dispatches, rows = jax.tree.map(
        lambda leaf: jnp.pad(leaf, [(0, num_empty)] + [(0, 0)] * (leaf.ndim - 1)),
        (dispatches, rows),
    )
    filled = np.arange(cohort_size + num_empty) < cohort_size
    client = jnp.where(filled, dispatches.client, data.num_clients)
    dispatches = dispatches._replace(client=client)
    state = _after_prelude(algorithm, placement, state, data, dispatches)
    stacked = algorithm._replace(reduce="stack")
    _, stack, *_ = run_cohort(
        stacked, placement, rows, state, data, dispatches, rows_are_table=False
    )
    index = slice(cohort_size) if slots is None else slots
    return jax.tree.map(lambda leaf: leaf[index], stack)
