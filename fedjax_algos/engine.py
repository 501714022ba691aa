"""The engine says how: it gathers, maps, masks, sums and scatters; it knows no algorithm.

A round is two compiled functions: one runs the cohort, the other the server update.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import (
    Algorithm,
    ClientState,
    Metrics,
    Model,
    Params,
    Population,
    ServerState,
    Stack,
    Statistics,
    Visit,
)
from fedjax_algos.data.store import FederatedData, client_view
from fedjax_algos.keys import client_key, model_key, visit_keys

Layout = Literal["auto", "vmapped", "sequential"] | str | int


class FederatedState(NamedTuple):
    """All that a run carries from round to round."""

    server: ServerState
    statistics: Statistics  # the model's, a plain mean over each cohort
    clients: ClientState  # leaves [num_clients, ...], or a `HostTable`; see `make_engine`
    origin: Params  # theta_0, from which rows are made; () where clients are stateless
    seed: jax.Array  # uint32[]


class HostTable(dict[int, ClientState]):
    """Client rows in host memory, of the clients that were visited, as trees of NumPy arrays."""


class Transfer(NamedTuple):
    """Bytes of one client in one round."""

    download: int
    upload: int


class Engine(NamedTuple):
    """An algorithm, compiled: see `make_engine`."""

    algorithm: Algorithm
    init: Callable[..., FederatedState]
    round: Callable[[FederatedState, FederatedData, Visit], tuple[FederatedState, Metrics]]
    transfer: Callable[[FederatedState, FederatedData, Visit], Transfer]
    updates: Callable[[FederatedState, FederatedData, Visit], Stack]


def chunk_size(layout: Layout, cohort_size: int) -> int:
    """How many clients are computed at once.

    Raises:
      ValueError: for a layout that is no name and no positive number.
    """
    if layout == "auto":
        layout = "sequential" if jax.default_backend() == "cpu" else "vmapped"
    named = {"vmapped": cohort_size, "sequential": 1}
    size = named.get(layout) if isinstance(layout, str) else layout
    if isinstance(layout, str) and layout.isdecimal():
        size = int(layout)
    if size is None or size < 1:
        raise ValueError(
            f"layout={layout!r} is unknown; give auto, vmapped, sequential, or a number of clients "
            "for each chunk"
        )
    return min(size, cohort_size)


def make_engine(
    algorithm: Algorithm,
    layout: Layout = "auto",
    client_state: Literal["device", "host"] = "device",
) -> Engine:
    """Compiles an algorithm's round.

    Args:
      algorithm: what is computed.
      layout: "vmapped" maps all clients of a cohort at once, "sequential" runs them one after
        another, a number maps chunks of that many; "auto" is sequential on a CPU, where many
        copies of the weights only move through memory, and vmapped elsewhere. Results agree up to
        rounding.
      client_state: where the clients' rows live: "device", one row for each client, or "host", rows
        of clients that were visited, with the cohort's on the device while it runs.

    Returns:
      `init(seed, population, params=None) -> FederatedState` makes the first state, from the
      problem's own initialisation unless `params` (or a whole `Model`) are given. `round(state,
      data, visits) -> (state, metrics)` takes visits of one round (leaves [cohort]) and CONSUMES
      the state that it is given: its buffers are reused. `transfer(state, data, visits)` counts
      the bytes that one client downloads and uploads, from the shapes of what is really sent.
      `updates(state, data, visits)` is the `Stack` of what these visits would upload; it leaves
      the state as it was, for diagnostics.

    Raises:
      ValueError: for an unknown layout or place of client state.
    """
    chunk_size(layout, 1)
    if client_state not in ("device", "host"):
        raise ValueError(f"client_state={client_state!r} is unknown; choose device or host")
    on_host, prelude = client_state == "host", algorithm.prelude

    def run_cohort(rows, state, data, visits):
        table, rows = rows, rows if on_host else _rows_of(rows, visits.client)
        rows, updates, *summed = _run_cohort(algorithm, layout, state, rows, data, visits)
        if not on_host:
            rows = jax.tree.map(lambda t, r: t.at[visits.client].set(r), table, rows)
        if algorithm.reduce == "stack":
            summed[0] = _stack(updates, visits)
        return rows, *summed

    def see_updates(rows, state, data, visits):
        if prelude is not None:
            sums, count = _run_prelude(algorithm, layout, state, data, visits)
            server = prelude.server_update(state.server, sums, count, jnp.int32(0))
            state = state._replace(server=server)
        rows = rows if on_host else _rows_of(rows, visits.client)
        stacked = algorithm._replace(reduce="stack")
        _, updates, *_ = _run_cohort(stacked, layout, state, rows, data, visits)
        return _stack(updates, visits)

    start = jax.jit(
        functools.partial(_start, algorithm), static_argnames=("population", "num_clients")
    )
    ask = jax.jit(functools.partial(_run_prelude, algorithm, layout))
    prepare = _compiled_update(prelude)
    cohort = jax.jit(run_cohort, donate_argnums=(0,))
    server_update = _compiled_update(algorithm)
    see = jax.jit(see_updates)

    def init(seed: int, population: Population, params: Params | Model | None = None):
        given = params if params is None or isinstance(params, Model) else Model(params)
        # jit gives each leaf a buffer of its own, so that rounds may reuse them one by one
        num_rows = 0 if on_host else population.num_clients
        state = start(
            jnp.asarray(seed, jnp.uint32), given, population=population, num_clients=num_rows
        )
        return state._replace(clients=HostTable()) if on_host else state

    def rows_for(state, visits):
        return _rows_from_host(algorithm, state, visits) if on_host else state.clients

    def round(state: FederatedState, data: FederatedData, visits: Visit):
        on_device, shared = jax.device_put(visits), state._replace(clients=())
        if prelude is not None:
            sums, count = ask(shared, data, on_device)
            shared = shared._replace(server=prepare(shared.server, sums, count))
        rows = rows_for(state, visits)
        rows, sums, statistics, metrics, count = cohort(rows, shared, data, on_device)
        server = server_update(shared.server, sums, count)
        clients = _keep_on_host(state.clients, visits, rows) if on_host else rows
        return state._replace(server=server, statistics=statistics, clients=clients), metrics

    def updates(state: FederatedState, data: FederatedData, visits: Visit):
        shared = state._replace(clients=())
        return see(rows_for(state, visits), shared, data, jax.device_put(visits))

    return Engine(algorithm, init, round, functools.partial(_transfer, algorithm), updates)


def _compiled_update(phase):
    """A phase's server update, which reuses the buffers of the server state; None for none."""
    if phase is None:
        return None

    def update(server, sums, count):
        return phase.server_update(server, sums, count, jnp.int32(0))

    return jax.jit(update, donate_argnums=(0,))


def _stack(updates, visits):
    return Stack(updates, visits, jnp.ones(visits.client.shape, bool))


def _transfer(algorithm, state, data, visits):
    """Bytes of one client in one round, from the shapes of what is sent."""
    state = state._replace(clients=())
    one = jax.tree.map(lambda leaf: leaf[0], visits)
    sent = jax.eval_shape(functools.partial(_broadcast, algorithm), state.server)
    turn = functools.partial(_turn, algorithm)
    _, update, _ = jax.eval_shape(turn, state, sent, data, one, _row_shapes(algorithm, state))
    if algorithm.prelude is not None:
        first_turn = functools.partial(_prelude_turn, algorithm)
        update = update, jax.eval_shape(first_turn, state, sent[0], data, one)
    statistics = tree_bytes(state.statistics)
    return Transfer(tree_bytes(sent) + statistics, tree_bytes(update) + statistics)


def _row_shapes(algorithm, state):
    return jax.eval_shape(algorithm.client_init, state.origin, client_key(state.seed, 0))


def _rows_from_host(algorithm, state, visits):
    """The cohort's rows, on the device; zeros for clients that are here for the first time."""
    blank = jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype), _row_shapes(algorithm, state)
    )
    rows = [state.clients.get(int(client), blank) for client in visits.client]
    return jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *rows))


def _keep_on_host(table, visits, rows):
    """Writes the cohort's rows into the table, in place."""
    rows = jax.device_get(rows)
    for index, client in enumerate(visits.client):
        # copies: a view would keep the whole cohort's rows alive
        table[int(client)] = jax.tree.map(lambda leaf, i=index: leaf[i].copy(), rows)
    return table


def _start(algorithm, seed, given, population, num_clients):
    """The first state. The table of client state is not filled: see `_turn`."""
    model = algorithm.problem.init(model_key(seed)) if given is None else given
    row = jax.eval_shape(algorithm.client_init, model.params, client_key(seed, 0))
    table = jax.tree.map(lambda leaf: jnp.zeros((num_clients, *leaf.shape), leaf.dtype), row)
    return FederatedState(
        server=algorithm.init(model.params, population),
        statistics=model.statistics,
        clients=table,
        origin=model.params if jax.tree.leaves(row) else (),
        seed=seed,
    )


def _rows_of(table, clients):
    return jax.tree.map(lambda leaf: leaf[clients], table)


def _broadcast(algorithm, server):
    """What a client holds when its local steps begin."""
    sent = algorithm.broadcast(server, jnp.int32(0))
    if algorithm.prelude is None:
        return sent
    return algorithm.prelude.broadcast(server, jnp.int32(0)), sent


def _view(algorithm, state, data, visit):
    """A visit's examples, and its key."""
    order, key = visit_keys(state.seed, visit.client, visit.visit)
    if algorithm.local.batches == "feeder":  # one stream for all of a client's turns
        order, _ = visit_keys(state.seed, visit.client, jnp.int32(0))
    return client_view(data, visit.client, order, state.statistics, visit.first_step), key


def _turn(algorithm, state, broadcast, data, visit, row, first=None):
    """One client's turn: (new row, update, report). Its row is made when it is first visited.

    `first`, bool[], says so where earlier visits came to nothing.
    """
    view, key = _view(algorithm, state, data, visit)
    first = visit.visit == 0 if first is None else first
    fresh = algorithm.client_init(state.origin, client_key(state.seed, visit.client))
    row = jax.tree.map(lambda new, old: jnp.where(first, new, old), fresh, row)
    return algorithm.client_update(broadcast, row, view, visit, key)


def _prelude_turn(algorithm, state, broadcast, data, visit):
    view, key = _view(algorithm, state, data, visit)
    return algorithm.prelude.client_update(broadcast, view, visit, key)


def _run_prelude(algorithm, layout, state, data, visits):
    """The first exchange: (sums, number of clients)."""
    broadcast = algorithm.prelude.broadcast(state.server, jnp.int32(0))

    def turn(visit):
        update = _prelude_turn(algorithm, state, broadcast, data, visit)
        return (algorithm.prelude.contribute(update, visit, jnp.int32(0)), jnp.int32(1)), ()

    summed, _ = _map_cohort(turn, (visits,), layout, data.num_clients)
    return summed


def _run_cohort(algorithm, layout, state, rows, data, visits):
    """All turns of a round: (rows, updates, sums, statistics, metrics, number of clients)."""
    stacked = algorithm.reduce == "stack"
    broadcast = _broadcast(algorithm, state.server)

    def turn(visit, row):
        row, update, report = _turn(algorithm, state, broadcast, data, visit, row)
        contribution = () if stacked else algorithm.contribute(update, visit, jnp.int32(0))
        return (contribution, report, jnp.int32(1)), (row, update if stacked else ())

    summed, kept = _map_cohort(turn, (visits, rows), layout, data.num_clients)
    sums, report, count = summed
    statistics = jax.tree.map(lambda leaf: leaf / count.astype(leaf.dtype), report.statistics)
    return *kept, sums, statistics, report.metrics, count


def _map_cohort(turn, inputs, layout, nobody):
    """`turn(visit, ...) -> (summed, kept)` over a cohort: the sums, and what is kept, stacked."""
    cohort_size = inputs[0].client.shape[0]
    size = chunk_size(layout, cohort_size)
    num_chunks = -(-cohort_size // size)
    inputs, real = _pad(inputs, num_chunks * size, nobody)

    def masked(real, *turns):
        summed, kept = turn(*turns)
        # `where`, not a product: 0 * NaN is NaN, and padding must add nothing
        return jax.tree.map(lambda leaf: jnp.where(real, leaf, 0), summed), kept

    def chunk(turns):
        if size == 1:  # not mapped at all: convolutions stay dense, loops run their own length
            summed, kept = masked(*jax.tree.map(lambda leaf: leaf[0], turns))
            return summed, jax.tree.map(lambda leaf: leaf[None], kept)
        summed, kept = jax.vmap(masked)(*turns)
        return jax.tree.map(lambda leaf: leaf.sum(0, dtype=leaf.dtype), summed), kept

    turns = (real, *inputs)
    if num_chunks == 1:
        return chunk(turns)
    chunks = jax.tree.map(lambda leaf: leaf.reshape(num_chunks, size, *leaf.shape[1:]), turns)
    shapes, _ = jax.eval_shape(chunk, jax.tree.map(lambda leaf: leaf[0], chunks))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def add(sums, turns):
        summed, kept = chunk(turns)
        return jax.tree.map(jnp.add, sums, summed), kept

    summed, kept = jax.lax.scan(add, zeros, chunks)
    kept = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:cohort_size], kept)
    return summed, kept


def tree_bytes(tree: Any) -> int:
    """Bytes of all leaves, arrays or shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _pad(inputs: tuple, size: int, nobody: int) -> tuple[tuple, jax.Array]:
    """Visits [size] (and their rows) with dummies of no steps at the end, and which are real.

    A dummy's client is one past the last, whose gathers are clipped; what it gives is dropped.
    """
    cohort_size = inputs[0].client.shape[0]
    padded = jax.tree.map(
        lambda leaf: jnp.pad(leaf, [(0, size - cohort_size)] + [(0, 0)] * (leaf.ndim - 1)), inputs
    )
    real = jnp.arange(size) < cohort_size
    visits = padded[0]._replace(client=jnp.where(real, padded[0].client, nobody))
    return (visits, *padded[1:]), real
