"""The engine says how: it compiles a round, and places what it reads; it knows no algorithm.

A round is two compiled functions: one runs the cohort, the other the server update. Or many rounds
are one function, for those who need nothing in between.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Algorithm, Metrics, Model, Params, Population, Stack, Visit
from fedjax_algos.core.keys import model_key
from fedjax_algos.engine import federated_round
from fedjax_algos.engine.devices import Devices, client_mesh, place, settle
from fedjax_algos.engine.federated_round import FederatedState, tree_bytes
from fedjax_algos.engine.host_state import HostTable, keep_on_host, rows_from_host
from fedjax_algos.engine.placement import Layout, Spread, arrange, chunk_size
from fedjax_algos.engine.sharded_data import PlacedData, ShardedData, on_devices, shapes_of, shard


class Transfer(NamedTuple):
    """Bytes of one client in one round."""

    download: int
    upload: int


class Engine(NamedTuple):
    """An algorithm, compiled: see `make_engine`."""

    algorithm: Algorithm
    init: Callable[..., FederatedState]
    round: Callable[[FederatedState, PlacedData, Visit], tuple[FederatedState, Metrics]]
    rounds: Callable[..., tuple[FederatedState, Metrics]]
    transfer: Callable[[FederatedState, PlacedData, Visit], Transfer]
    updates: Callable[[FederatedState, PlacedData, Visit], Stack]
    place: Callable[[PlacedData], Any]


def make_engine(
    algorithm: Algorithm,
    layout: Layout = "auto",
    client_state: Literal["device", "host"] = "device",
    devices: Devices = None,
    examples: Literal["replicated", "sharded"] = "replicated",
) -> Engine:
    """Compiles an algorithm's round.

    Args:
      algorithm: what is computed.
      layout: "vmapped" maps all clients of a cohort at once, "sequential" runs them one after
        another, a number maps chunks of that many; "auto" is sequential on a CPU, where many
        copies of the weights only move through memory, and vmapped elsewhere (`choose_layout`
        measures instead). Results agree up to rounding.
      client_state: where the clients' rows live: "device", one row for each client, or "host", rows
        of clients that were visited, with the cohort's on the device while it runs.
      devices: over which the cohort is divided; see `client_mesh`. Each holds the server; the table
        of client rows is divided if their number is a multiple. The layout is then that of each
        device's part.
      examples: where they are. "replicated": every device holds all, and computes an equal part of
        each cohort. "sharded": each holds those of its own clients, and computes these clients'
        turns, so that a population may be too large for one device. But a draw is uneven, and a
        round waits for the fullest device: of M clients over D devices it has up to about
        `sqrt(2 M / D ln(D R))` more than M / D in R rounds. A call has places for the fullest of
        its rounds, rounded up to 1, 2, 3, 4, 6, 8, 12, 16, ... on each device; empty ones do
        nothing, but cost as the others where clients are mapped. For 100 clients over 8 devices
        that is 12.5 in the mean, 17 on a round's fullest, 21 in ten rounds, so 24 places. Other
        numbers of places are other programs, so a run compiles a few. On one device nothing
        differs.

    Returns:
      `init(seed, population, params=None) -> FederatedState` makes the first state, from the
      problem's own initialisation unless `params` (or a whole `Model`) are given. `place(data)`
      puts the examples on the devices, once; one device needs nothing. `round(state, data, visits)
      -> (state, metrics)` takes visits of one round (leaves [cohort]) and CONSUMES the state that
      it is given: its buffers are reused. `rounds(state, data, visits, number=None)` takes visits
      of many (leaves [rounds, cohort]), runs the first `number` or all in one program, and sums
      their metrics. `transfer(state, data, visits)` counts the bytes that one client downloads and
      uploads, from the shapes of what is really sent. `updates(state, data, visits)` is the `Stack`
      of what these visits would upload; it leaves the state as it was, for diagnostics.

    Raises:
      ValueError: for an unknown layout, place of client state or of examples, or more devices than
        there are; by a round, for data that are not where the engine has them, and, where they are
        sharded, for an algorithm whose clients read the examples of others.
    """
    spread = Spread(layout, client_mesh(devices))
    chunk_size(layout, 1)
    _check("client_state", client_state, ("device", "host"))
    _check("examples", examples, ("replicated", "sharded"))
    on_host, prelude, mesh = client_state == "host", algorithm.prelude, spread.mesh
    sharded = examples == "sharded" and mesh is not None
    run = _compile(algorithm, spread, on_host)

    def init(seed: int, population: Population, params: Params | Model | None = None):
        if params is None:
            params = _first_model(algorithm.problem.init, np.uint32(seed))
        given = params if isinstance(params, Model) else Model(params)
        # jit gives each leaf a buffer of its own, so that rounds may reuse them one by one
        num_rows = 0 if on_host else population.num_clients
        seed, given = place(mesh, (np.uint32(seed), given))
        state = run.start(seed, given, population=population, num_rows=num_rows)
        if on_host:
            state = state._replace(clients=HostTable(federated_round.row_shapes(algorithm, state)))
        return state

    def ready(data, visits):
        """What programs read of the data; on the host the visits in their places, and the order."""
        held = on_devices(mesh, sharded, data)
        homes = data.homes_of(np.asarray(visits.client)) if sharded else None
        order = spread.order(np.asarray(visits.num_steps), homes)
        return held, arrange(visits, order, data.num_clients), order

    def rows_for(state, visits):
        return rows_from_host(mesh, state.clients, visits) if on_host else state.clients

    def compute(state, data, visits):
        """A round of what is ready."""
        on_device, shared = place(mesh, visits), state._replace(clients=())
        if prelude is not None:
            shared = shared._replace(
                server=run.prepare(shared.server, *run.ask(shared, data, on_device))
            )
        rows = rows_for(state, visits)
        rows, sums, statistics, metrics, count = run.cohort(rows, shared, data, on_device)
        server = run.server_update(shared.server, sums, count)
        clients = keep_on_host(state.clients, visits, rows, data.num_clients) if on_host else rows
        new = state._replace(server=server, statistics=statistics, clients=clients)
        return settle(mesh, (new, metrics))

    def round(state: FederatedState, data: PlacedData, visits: Visit):
        data, visits, _ = ready(data, visits)
        return compute(state, data, visits)

    def rounds(state: FederatedState, data: PlacedData, visits: Visit, number: int | None = None):
        number = len(visits.client) if number is None else number
        if not 1 <= number <= len(visits.client):
            raise ValueError(
                f"number={number} is out of range; give 1 to {len(visits.client)}, the rounds that "
                "visits has"
            )
        data, visits, _ = ready(data, visits)
        if not on_host:
            return settle(mesh, run.rounds(state, data, *place(mesh, (visits, np.int32(number)))))
        total = None
        for index in range(number):
            at = jax.tree.map(lambda leaf, i=index: leaf[i], visits)
            state, metrics = compute(state, data, at)
            total = metrics if total is None else _add(total, metrics)
        return state, total

    def updates(state: FederatedState, data: PlacedData, visits: Visit):
        at = None  # where each visit is placed, if not in the order given
        if isinstance(data, ShardedData) or sharded:
            data, visits, order = ready(data, visits)
            at = np.argsort(order)[np.count_nonzero(order < 0) :]
        return run.updates(
            rows_for(state, visits), state._replace(clients=()), data, *place(mesh, (visits, at))
        )

    return Engine(
        algorithm,
        init,
        round,
        rounds,
        partial(_transfer, algorithm),
        updates,
        (lambda data: data) if mesh is None else partial(shard if sharded else place, mesh),
    )


def _check(name, value, known):
    if value not in known:
        raise ValueError(f"{name}={value!r} is unknown; choose {' or '.join(known)}")


class _Programs(NamedTuple):
    """What is compiled."""

    start: Callable
    ask: Callable  # a prelude's cohort, and its server update
    prepare: Callable
    cohort: Callable
    server_update: Callable
    rounds: Callable
    updates: Callable


def _compile(algorithm, spread, on_host):
    prelude = algorithm.prelude

    def run_cohort(rows, state, data, visits):
        if not on_host:
            return federated_round.run_on_table(algorithm, spread, rows, state, data, visits)
        rows, *results = federated_round.run_cohort(algorithm, spread, state, rows, data, visits)
        return spread.pin(rows), *results  # whole in every process, which fetches them

    def see_updates(rows, state, data, visits, at):
        cohort_size = len(visits.client)
        rows = rows if on_host else federated_round.rows_of(rows, visits)
        # in the order given, with empty places at the end
        room = spread.places(cohort_size) - cohort_size
        visits, rows = jax.tree.map(
            lambda leaf: jnp.pad(leaf, [(0, room)] + [(0, 0)] * (leaf.ndim - 1)), (visits, rows)
        )
        real = np.arange(cohort_size + room) < cohort_size
        visits = visits._replace(client=jnp.where(real, visits.client, data.num_clients))
        if prelude is not None:
            asked = federated_round.run_prelude(algorithm, spread, state, data, visits)
            state = state._replace(
                server=federated_round.update_with(prelude, spread, state.server, *asked)
            )
        stacked = algorithm._replace(reduce="stack")
        _, stack, *_ = federated_round.run_cohort(stacked, spread, state, rows, data, visits)
        return jax.tree.map(lambda leaf: leaf[slice(cohort_size) if at is None else at], stack)

    def consuming(function, *fixed):
        return jax.jit(partial(function, *fixed), donate_argnums=0)

    return _Programs(
        jax.jit(
            partial(federated_round.start, algorithm, spread),
            static_argnames=("population", "num_rows"),
        ),
        jax.jit(partial(federated_round.run_prelude, algorithm, spread)),
        consuming(federated_round.update_with, prelude, spread),
        consuming(run_cohort),
        consuming(federated_round.update_with, algorithm, spread),
        consuming(federated_round.run_rounds, algorithm, spread),
        jax.jit(see_updates),
    )


@partial(jax.jit, static_argnums=0)
def _first_model(init, seed):
    """Compiled once for all algorithms on a problem."""
    return init(model_key(seed))


@jax.jit
def _add(left, right):
    return jax.tree.map(jnp.add, left, right)


def _transfer(algorithm, state, data, visits):
    """Bytes of one client in one round, from the shapes of what is sent."""
    one = jax.tree.map(lambda leaf: leaf[0], visits)
    leaves, tree = jax.tree.flatten((state._replace(clients=()), shapes_of(data), one))
    return _sizes(algorithm, tree, tuple(map(jax.typeof, leaves)))


@lru_cache(maxsize=64)
def _sizes(algorithm, tree, leaves):
    """`_transfer` of these shapes; an engine's runs have equal ones, and share one trace."""
    state, data, visit = tree.unflatten(leaves)
    sent = jax.eval_shape(partial(federated_round.sent, algorithm), state.server)
    draws = jax.eval_shape(partial(federated_round.draw, algorithm), state.seed, visit)
    turn = partial(federated_round.turn, algorithm)
    row = federated_round.row_shapes(algorithm, state)
    _, update, _ = jax.eval_shape(turn, state, sent, data, visit, draws, row)
    if algorithm.prelude is not None:
        first_turn = partial(federated_round.prelude_turn, algorithm)
        update = update, jax.eval_shape(first_turn, state, sent[0], data, visit, draws)
    statistics = tree_bytes(state.statistics)
    return Transfer(tree_bytes(sent) + statistics, tree_bytes(update) + statistics)
