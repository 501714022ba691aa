"""What a run carries from round to round, and the rows of client state that are off the devices."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_algos.core import (
    Algorithm,
    ClientState,
    Dispatch,
    Model,
    Params,
    Population,
    ServerState,
    Statistics,
)
from fedjax_algos.core.checks import check_not_consumed
from fedjax_algos.core.randomness import client_key, model_key
from fedjax_algos.core.reprs import describe, describe_tree
from fedjax_algos.engine.non_finite import Excluded, NonFinite
from fedjax_algos.engine.placed.devices import replicate
from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.slots import Placement, answers


class FederatedState(NamedTuple):
    """All that a run carries from round to round.

    A client's state is one row of a table. The row is initialised at the client's first dispatch;
    before that it holds zeros. `client_states` gives the rows as the next dispatch reads them.

    Attributes:
      server: the algorithm's server state, with the global model as `server.params`.
      statistics: those of the model: the plain mean over the last cohort, `()` if it has none.
      clients: the clients' rows: leaves [num_clients, ...], or a `HostClientState`, or
        a `DiskClientState`; `()` if clients keep no state.
      origin: theta_0, from which rows are initialised; `()` if clients keep no state.
      seed: uint32[]: of the run.
      excluded: updates that were not finite; `()` if they are kept.
      dispatched: bool[num_clients]: whose row is initialised; `()` if clients keep no state.
      frozen: a tree of the model's arrays that never change; `()` if there are none.
    """

    server: ServerState
    statistics: Statistics
    clients: ClientState
    origin: Params
    seed: jax.Array
    excluded: Excluded | tuple[()] = ()
    dispatched: jax.Array | tuple[()] = ()
    frozen: Any = ()

    @property
    def model(self) -> Model:
        """The global model, which is evaluated."""
        return Model(self.server.params, self.statistics, self.frozen)

    def __repr__(self) -> str:
        parts = dict(zip(self._fields[:3], self, strict=False))  # also if they were consumed
        return describe(self, **{name: describe_tree(part) for name, part in parts.items()})


def _read(state: FederatedState, name: str) -> Any:
    """A field of a state; a state that a round has consumed cannot be read."""
    value = tuple.__getattribute__(state, name)
    if name in ("server", "statistics", "clients"):
        check_not_consumed(value)
    return value


# not in the class, where type checkers would take it to have any attribute
FederatedState.__getattribute__ = _read  # type: ignore[assignment]


def initial_state(
    algorithm: Algorithm,
    placement: Placement,
    seed: jax.Array,
    model: Model | None,
    population: Population,
    num_rows: int,
    non_finite: NonFinite = "exclude",
) -> FederatedState:
    """The state before the first round, traced.

    Args:
      algorithm: whose state it is.
      placement: how the state is laid out over devices.
      seed: uint32[]: of the run.
      model: the initial model; None for the problem's own initialisation.
      population: static facts about the clients.
      num_rows: rows of the client state table: N, or 0 if the rows are not on the devices.
      non_finite: what is done with updates that are not finite.
    """
    if model is None:
        model = algorithm.problem.init(model_key(seed))
    row = jax.eval_shape(algorithm.client_init, model.params, client_key(seed, jnp.int32(0)))
    table = jax.tree.map(lambda leaf: jnp.zeros((num_rows, *leaf.shape), leaf.dtype), row)
    keeping = bool(jax.tree.leaves(row))
    state = FederatedState(
        server=algorithm.init(model.params, population._replace(seed=seed)),
        statistics=model.statistics,
        clients=(),
        origin=model.params if keeping else (),
        seed=seed,
        excluded=() if non_finite == "keep" else Excluded.none(),
        dispatched=jnp.zeros(population.num_clients, bool) if keeping else (),
        frozen=model.frozen,
    )
    return placement.constrain(state)._replace(clients=placement.constrain_rows(table))


def row_shapes(algorithm: Algorithm, state: FederatedState) -> ClientState:
    """Shapes and dtypes of one client's row, from a state or its shapes."""
    key = jax.eval_shape(client_key, state.seed, jnp.int32(0))
    return jax.eval_shape(algorithm.client_init, state.origin, key)


class HostClientState(dict[int, ClientState]):
    """Rows of client state in host memory, as trees of NumPy arrays by client id.

    It holds only the clients that have been dispatched. Every other client has a row of zeros,
    which its first dispatch replaces.

    Args:
      shapes: shapes and dtypes of a row; see `row_shapes`.
    """

    def __init__(self, shapes: ClientState):
        super().__init__()
        self.blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)

    def __missing__(self, client: int) -> ClientState:
        return self.blank

    def __repr__(self) -> str:
        return describe(self, clients=len(self), row=describe_tree(self.blank))

    def write(self, rows: Iterable[tuple[int, ClientState]]) -> "HostClientState":
        """Writes rows in place, and returns this object.

        Args:
          rows: clients and their rows, of the shapes of `blank`. They are copied.
        """
        for client, row in rows:
            self[client] = jax.tree.map(np.array, row)
        return self


RowTable = HostClientState | DiskClientState  # of rows that are not on the devices


def place_of(clients: ClientState | RowTable) -> str:
    """Where rows of client state are: "device", "host" or "disk"."""
    if isinstance(clients, HostClientState):
        return "host"
    return "disk" if isinstance(clients, DiskClientState) else "device"


def read_rows(mesh: Mesh | None, table: RowTable, dispatches: Dispatch) -> ClientState:
    """Copies the rows of a cohort to all devices, [slots, ...]; empty slots read rows of zeros."""
    rows = [table[int(client)] for client in dispatches.client]
    return replicate(mesh, jax.tree.map(lambda *leaves: np.stack(leaves), *rows))


def write_rows(
    table: RowTable, dispatches: Dispatch, rows: ClientState, num_clients: int
) -> RowTable:
    """Writes the rows of a cohort, [slots, ...], into the table in place, and returns it."""
    rows = jax.device_get(rows)
    return table.write(
        (int(dispatches.client[slot]), jax.tree.map(lambda leaf, i=slot: leaf[i], rows))
        for slot in np.flatnonzero(answers(dispatches, num_clients))
    )
