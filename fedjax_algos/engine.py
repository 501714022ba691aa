"""The engine says how: it gathers, maps, masks, sums and scatters; it knows no algorithm.

A round is two compiled functions: one runs the cohort, the other the server update.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

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
    clients: ClientState  # leaves [num_clients, ...]; a row means something once it was visited
    origin: Params  # theta_0, from which rows are made; () where clients are stateless
    seed: jax.Array  # uint32[]


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


def make_engine(algorithm: Algorithm, layout: Layout = "auto") -> Engine:
    """Compiles an algorithm's round.

    Args:
      algorithm: what is computed.
      layout: "vmapped" maps all clients of a cohort at once, "sequential" runs them one after
        another, a number maps chunks of that many; "auto" is sequential on a CPU, where many
        copies of the weights only move through memory, and vmapped elsewhere. Results agree up to
        rounding.

    Returns:
      `init(seed, population, params=None) -> FederatedState` makes the first state, from the
      problem's own initialisation unless `params` (or a whole `Model`) are given. `round(state,
      data, visits) -> (state, metrics)` takes visits of one round (leaves [cohort]) and CONSUMES
      the state that it is given: its buffers are reused. `transfer(state, data, visits)` counts
      the bytes that one client downloads and uploads, from the shapes of what is really sent.

    Raises:
      ValueError: for an unknown layout.
    """
    chunk_size(layout, 1)

    def run_cohort(table, state, data, visits):
        return _run_cohort(algorithm, layout, state._replace(clients=table), data, visits)

    def update_server(server, sums, num_clients):
        return algorithm.server_update(server, sums, num_clients, jnp.int32(0))

    start = jax.jit(functools.partial(_start, algorithm), static_argnames="population")
    cohort = jax.jit(run_cohort, donate_argnums=(0,))
    server_update = jax.jit(update_server, donate_argnums=(0,))

    def init(seed: int, population: Population, params: Params | Model | None = None):
        given = params if params is None or isinstance(params, Model) else Model(params)
        # jit gives each leaf a buffer of its own, so that rounds may reuse them one by one
        return start(jnp.asarray(seed, jnp.uint32), given, population=population)

    def round(state: FederatedState, data: FederatedData, visits: Visit):
        shared = state._replace(clients=())
        rows, sums, statistics, metrics, num_clients = cohort(
            state.clients, shared, data, jax.device_put(visits)
        )
        server = server_update(state.server, sums, num_clients)
        return state._replace(server=server, statistics=statistics, clients=rows), metrics

    def transfer(state, data, visits):
        one = jax.tree.map(lambda leaf: leaf[0], visits)
        down = jax.eval_shape(algorithm.broadcast, state.server, jnp.int32(0))
        run_client = functools.partial(_run_client, algorithm)
        _, up, _ = jax.eval_shape(run_client, state, data, one)
        statistics = tree_bytes(state.statistics)
        return Transfer(tree_bytes(down) + statistics, tree_bytes(up) + statistics)

    return Engine(algorithm, init, round, transfer)


def _start(algorithm, seed, given, population):
    """The first state. The table of client state is not filled: see `_run_client`."""
    model = algorithm.problem.init(model_key(seed)) if given is None else given
    row = jax.eval_shape(algorithm.client_init, model.params, client_key(seed, 0))
    table = jax.tree.map(
        lambda leaf: jnp.zeros((population.num_clients, *leaf.shape), leaf.dtype), row
    )
    return FederatedState(
        server=algorithm.init(model.params, population),
        statistics=model.statistics,
        clients=table,
        origin=model.params if jax.tree.leaves(table) else (),
        seed=seed,
    )


def _run_client(algorithm, state, data, visit):
    """One client's turn: (new row, update, report). Its row is made when it is first visited."""
    order, key = visit_keys(state.seed, visit.client, visit.visit)
    client_data = client_view(data, visit.client, order, state.statistics)
    fresh = algorithm.client_init(state.origin, client_key(state.seed, visit.client))
    row = jax.tree.map(
        lambda new, rows: jnp.where(visit.visit == 0, new, rows[visit.client]),
        fresh,
        state.clients,
    )
    broadcast = algorithm.broadcast(state.server, jnp.int32(0))
    return algorithm.client_update(broadcast, row, client_data, visit, key)


def _run_cohort(algorithm, layout, state, data, visits):
    """All turns of a round: (table, sums, statistics, metrics, number of clients)."""
    stacked = algorithm.reduce == "stack"
    cohort_size = visits.client.shape[0]
    size = chunk_size(layout, cohort_size)
    num_chunks = -(-cohort_size // size)
    visits, real = _pad(visits, num_chunks * size, data.num_clients)

    def client(visit, real):
        row, update, report = _run_client(algorithm, state, data, visit)
        contribution = () if stacked else algorithm.contribute(update, visit, jnp.int32(0))
        # `where`, not a product: 0 * NaN is NaN, and padding must add nothing
        summed = jax.tree.map(
            lambda leaf: jnp.where(real, leaf, 0), (contribution, report, jnp.int32(1))
        )
        return summed, (row, update if stacked else ())

    def chunk(turns):
        if size == 1:  # not mapped at all: convolutions stay dense, loops run their own length
            summed, kept = client(*jax.tree.map(lambda leaf: leaf[0], turns))
            return summed, jax.tree.map(lambda leaf: leaf[None], kept)
        summed, kept = jax.vmap(client)(*turns)
        return jax.tree.map(lambda leaf: leaf.sum(0, dtype=leaf.dtype), summed), kept

    if num_chunks == 1:
        summed, (rows, updates) = chunk((visits, real))
    else:
        chunks = jax.tree.map(lambda leaf: leaf.reshape(num_chunks, size), (visits, real))
        shapes, _ = jax.eval_shape(chunk, jax.tree.map(lambda leaf: leaf[0], chunks))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def add(sums, turns):
            summed, kept = chunk(turns)
            return jax.tree.map(jnp.add, sums, summed), kept

        summed, kept = jax.lax.scan(add, zeros, chunks)
        rows, updates = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), kept)

    sums, report, num_clients = summed
    table = jax.tree.map(
        lambda table, row: table.at[visits.client].set(row, mode="drop"), state.clients, rows
    )
    sums = Stack(updates, visits, real) if stacked else sums
    statistics = jax.tree.map(lambda leaf: leaf / num_clients.astype(leaf.dtype), report.statistics)
    return table, sums, statistics, report.metrics, num_clients


def tree_bytes(tree: Any) -> int:
    """Bytes of all leaves, arrays or shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _pad(visits: Visit, size: int, nobody: int) -> tuple[Visit, jax.Array]:
    """Visits [size] with dummies of no steps at the end, and which of them are real.

    A dummy's client is one past the last: gathers clip it, scatters drop it.
    """
    cohort_size = visits.client.shape[0]
    padded = jax.tree.map(lambda leaf: jnp.pad(leaf, (0, size - cohort_size)), visits)
    real = jnp.arange(size) < cohort_size
    return padded._replace(client=jnp.where(real, padded.client, nobody)), real
