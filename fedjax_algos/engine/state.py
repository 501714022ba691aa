"""The state of a run, and the rows of client state on the device, on the host or on disk."""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import describe, describe_tree
from fedjax_algos.core import Algorithm, types
from fedjax_algos.core.checks import check_kind, check_like, check_not_consumed, described
from fedjax_algos.core.options import NonFinite
from fedjax_algos.core.randomness import client_key, model_key
from fedjax_algos.core.trees import along, take
from fedjax_algos.engine.non_finite import Excluded
from fedjax_algos.engine.placed.devices import OptionalMesh, constrain, place_state, put, put_state
from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.placed.processes import fetch, gathered
from fedjax_algos.engine.slots import Placement, answers


class FederatedState(NamedTuple):
    """The state that a run carries from round to round.

    A client's state is one row of a table. The row is initialised at the client's first dispatch;
    before that it holds zeros. `client_states` gives the rows as the next dispatch reads them.

    Attributes:
      server: the algorithm's server state, with the global model as `server.params`.
      statistics: the model's statistics, a plain mean over the last cohort; `()` without any.
      clients: the clients' rows: leaves [num_clients, ...], or a `HostClientState`, or
        a `DiskClientState`; `()` if clients keep no state.
      origin: theta_0, used to initialise rows; `()` if clients keep no state.
      seed: uint32[]: the seed of the run.
      excluded: updates that were not finite; `()` if they are kept.
      dispatched: bool[num_clients]: whose row is initialised; `()` if clients keep no state.
      frozen: a tree of the model's arrays that never change, or `()`.
    """

    server: types.ServerState
    statistics: types.Statistics
    clients: types.ClientState
    origin: types.Params
    seed: jax.Array
    excluded: Excluded | tuple[()] = ()
    dispatched: jax.Array | tuple[()] = ()
    frozen: Any = ()

    @property
    def model(self) -> types.Model:
        """The global model, as it is evaluated."""
        check_not_consumed(self.server)
        return types.Model(self.server.params, self.statistics, self.frozen)

    def __repr__(self) -> str:
        parts = zip(self._fields[:3], self, strict=False)
        return describe(self, **{name: describe_tree(part) for name, part in parts})


def initial_state(
    algorithm: Algorithm,
    placement: Placement,
    seed: jax.Array,
    model: types.Model | None,
    population: types.Population,
    non_finite: NonFinite = "exclude",
    on_device: bool = True,
) -> FederatedState:
    """Traces the state before the first round; without rows unless they are `on_device`."""
    if model is None:
        model = algorithm.problem.init(model_key(seed))
    row = jax.eval_shape(algorithm.client_init, model.params, client_key(seed, jnp.int32(0)))
    table = jax.tree.map(jnp.zeros_like, table_of(row, population.num_clients if on_device else 0))
    keeping = bool(jax.tree.leaves(row))
    server = algorithm.init(model.params, population._replace(seed=seed))
    fix = "return a NamedTuple with a field params, the model that is evaluated"
    has_params = isinstance(server, tuple) and hasattr(server, "params")
    require(has_params, f"the algorithm's init returned {described(server)}; {fix}")
    state = FederatedState(
        server=server,
        statistics=model.statistics,
        clients=table,
        origin=model.params if keeping else (),
        seed=seed,
        excluded=() if non_finite == "keep" else Excluded.none(),
        dispatched=jnp.zeros(population.num_clients, bool) if keeping else (),
        frozen=model.frozen,
    )
    return place_state(constrain, placement.mesh, state)


def row_shapes(algorithm: Algorithm, state: FederatedState) -> types.ClientState:
    """Returns shapes and dtypes of one client's row, from a state or its shapes."""
    key = jax.eval_shape(client_key, state.seed, jnp.int32(0))
    return jax.eval_shape(algorithm.client_init, state.origin, key)


def table_of(row: types.ClientState, number: int) -> types.ClientState:
    """Returns shapes and dtypes of a table of rows, leaves [number, ...]."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape), leaf.dtype), row)


class HostClientState(dict[int, types.ClientState]):
    """Rows of client state in host memory, as trees of NumPy arrays by client id.

    It holds only the clients that have been dispatched. Every other client has a row of zeros,
    which its first dispatch replaces.

    Args:
      shapes: shapes and dtypes of a row; see `row_shapes`.
    """

    def __init__(self, shapes: types.ClientState):
        super().__init__()
        self.blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)

    def __missing__(self, client: int) -> types.ClientState:
        return self.blank

    def __repr__(self) -> str:
        return describe(self, clients=len(self), row=describe_tree(self.blank))

    def write(self, rows: Iterable[tuple[int, types.ClientState]]) -> "HostClientState":
        """Writes rows in place and returns this object.

        Args:
          rows: pairs of a client id and a row with the shapes of `blank`. Rows are copied.
        """
        for client, row in rows:
            self[client] = jax.tree.map(np.array, row)
        return self


RowTable = HostClientState | DiskClientState  # rows outside of the devices


def place_of(clients: types.ClientState | RowTable) -> str:
    """Names the place of client rows: "device", "host" or "disk"."""
    if isinstance(clients, HostClientState):
        return "host"
    return "disk" if isinstance(clients, DiskClientState) else "device"


def read_rows(mesh: OptionalMesh, table: RowTable, dispatches: types.Dispatch) -> types.ClientState:
    """Copies a cohort's rows to the devices, [slots, ...]; empty slots read rows of zeros."""
    rows = [table[int(client)] for client in dispatches.client]
    return put_state(mesh, jax.tree.map(lambda *leaves: np.stack(leaves), *rows), rows=True)


def write_rows(
    table: RowTable, dispatches: types.Dispatch, rows: types.ClientState, num_clients: int
) -> RowTable:
    """Writes a cohort's rows, [slots, ...], into the table in place and returns the table."""
    rows = fetch(rows)
    return table.write(
        (int(dispatches.client[slot]), take(rows, slot))
        for slot in np.flatnonzero(answers(dispatches, num_clients))
    )


class ClientStates(NamedTuple):
    """The state of every client, as `client_states` returns it and `engine.init` takes it.

    Attributes:
      rows: leaves [num_clients, ...].
      dispatched: bool[num_clients]: which clients have been dispatched. The others start with
        `client_init`, and their rows are ignored. True means all clients.
    """

    rows: types.ClientState
    dispatched: types.Array | bool = True

    def __repr__(self) -> str:
        number = int(np.sum(self.dispatched))
        return describe(self, rows=describe_tree(self.rows), dispatched=number)


def client_states(engine: Any, state: FederatedState) -> ClientStates:
    """Returns every client's row as its next dispatch reads it, and the clients dispatched so far.

    For a client that has not been dispatched, the row is the result of the algorithm's
    `client_init`. On the virtual clock a client counts as dispatched once a dispatch is trained.

    Args:
      engine: an engine or an executor of the algorithm.
      state: the state of a run; not consumed. Its rows are copied, from the host or the disk to
        NumPy arrays.

    Raises:
      TypeError: if `state` is not a `FederatedState`.
      ValueError: for an algorithm whose clients keep no state, a state that was consumed, or a
        state of merged runs.
    """
    check_kind("state", state, FederatedState, "give what engine.init or the last round returned")
    check_not_consumed(state)
    keeping = not isinstance(state.dispatched, tuple) and not jnp.ndim(state.seed)
    found = "the clients of this algorithm keep no state, or the state is of merged runs"
    require(keeping, f"{found}; give the state of one run of an algorithm with a client_init")
    client_init = engine.algorithm.client_init
    if not isinstance(state.clients, RowTable):
        rows = _all_rows(client_init, state.origin, state.seed, state.clients, state.dispatched)
        return ClientStates(gathered(rows), gathered(state.dispatched))
    dispatched = np.asarray(state.dispatched)
    absent = np.flatnonzero(~dispatched).astype(np.int32)
    initial = fetch(_initial_rows(client_init, state.origin, state.seed, absent))

    def join(new, *rows):
        table = np.stack(rows)
        table[absent] = new
        return table

    rows = map(state.clients.__getitem__, range(len(dispatched)))
    return ClientStates(jax.tree.map(join, initial, *rows), dispatched)


@functools.partial(jax.jit, static_argnums=0)
def _initial_rows(client_init, origin, seed, clients):
    return jax.vmap(lambda client: client_init(origin, client_key(seed, client)))(clients)


@functools.partial(jax.jit, static_argnums=0)
def _all_rows(client_init, origin, seed, rows, dispatched):
    initial = _initial_rows(client_init, origin, seed, jnp.arange(dispatched.size, dtype=jnp.int32))
    return jax.tree.map(lambda own, new: jnp.where(along(dispatched, own), own, new), rows, initial)


def give_rows(
    algorithm: Algorithm, mesh: OptionalMesh, state: FederatedState, given: ClientStates
) -> FederatedState:
    """Copies the given rows into the initial state of `engine.init`."""
    check_kind("clients", given, ClientStates, "give ClientStates(rows)")
    if isinstance(state.dispatched, tuple):
        raise ValueError("the clients of this algorithm keep no state; leave clients out")
    num_clients, given = state.dispatched.size, gathered(given)
    shapes = row_shapes(algorithm, state)
    table = table_of(shapes, num_clients)
    fix = f"give rows of client_states, one row for each of the {num_clients} clients"
    check_like("clients: rows", given.rows, table, fix, any_dtype=True)
    marks = np.asarray(given.dispatched)
    fits = marks.shape in ((), (num_clients,)) and marks.dtype == bool
    found = f"clients: dispatched has shape {[*marks.shape]} and type {marks.dtype}"
    require(fits, f"{found}; give one bool, or bool[{num_clients}]")
    marks = np.broadcast_to(marks, num_clients)
    if isinstance(state.excluded, Excluded):  # else any number is accepted
        _check_finite(given.rows, marks)
    state = state._replace(dispatched=put(state.dispatched.sharding, marks.copy()))
    if isinstance(state.clients, RowTable):
        rows = jax.tree.map(lambda leaf, like: np.asarray(leaf, like.dtype), given.rows, shapes)
        pairs = ((i, take(rows, i)) for i in np.flatnonzero(marks).tolist())
        return state._replace(clients=state.clients.write(pairs))
    # copies, because rounds consume them
    rows = jax.tree.map(lambda leaf, like: jnp.array(leaf, like.dtype), given.rows, shapes)
    return state._replace(clients=put_state(mesh, rows, rows=True))


def _check_finite(rows, dispatched):
    """Raises ValueError if the row of a dispatched client is not finite."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
        numpy: Any = jnp if isinstance(leaf, jax.Array) else np  # where the rows are
        finite = numpy.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)
        wrong = np.flatnonzero(dispatched & ~np.asarray(finite))
        fix = "give finite rows, or dispatched=False for such clients, which then start anew"
        found = f"clients: rows{jax.tree_util.keystr(path)} of clients {wrong[:9]} are not finite"
        require(not len(wrong), f"{found}; {fix}")
