"""The rows of client state of a whole run: taken out of a state, and given to the first one."""

import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Algorithm, Array, ClientState
from fedjax_algos.core.checks import check_kind, check_not_consumed
from fedjax_algos.core.randomness import client_key
from fedjax_algos.core.reprs import describe, describe_tree
from fedjax_algos.engine.non_finite import Excluded
from fedjax_algos.engine.placed.devices import row_sharding
from fedjax_algos.engine.slots import Placement
from fedjax_algos.engine.state import FederatedState, RowTable, row_shapes


class _OfAlgorithm(Protocol):
    """An `Engine` or an `Executor`."""

    algorithm: Algorithm


class ClientStates(NamedTuple):
    """The state of every client, as `client_states` returns it and `engine.init` takes it.

    Attributes:
      rows: leaves [num_clients, ...].
      dispatched: bool[num_clients]: which clients have been dispatched; the others start with
        `client_init`, whatever their row. True is all of them.
    """

    rows: ClientState
    dispatched: Array | bool = True

    def __repr__(self) -> str:
        number = int(np.sum(self.dispatched))
        return describe(self, rows=describe_tree(self.rows), dispatched=number)


def client_states(engine: _OfAlgorithm, state: FederatedState) -> ClientStates:
    """Every client's row as its next dispatch reads it, and which clients have been dispatched.

    The row of a client that has not been dispatched is what the algorithm's `client_init` makes.
    On the virtual clock a client counts as dispatched when a dispatch has been trained. An update
    that was left out because it was not finite is that of a dispatched client, whose row stayed.

    Args:
      engine: an engine or an executor of the algorithm.
      state: the state of a run; not consumed. Its rows are copied, those that are not on the
        devices to NumPy arrays.

    Raises:
      TypeError: for an object of another type.
      ValueError: for an algorithm whose clients keep no state, a state that was consumed, or one of
        several runs whose plans are merged.
    """
    check_kind("state", state, FederatedState, "give what engine.init or the last round returned")
    check_not_consumed(state)
    if isinstance(state.dispatched, tuple):
        raise ValueError(
            "the clients of this algorithm keep no state; take that of an algorithm with a "
            "client_init"
        )
    if jnp.ndim(state.seed):
        raise ValueError(f"the state is that of {state.seed.size} merged runs; give that of one")
    client_init = engine.algorithm.client_init
    if not isinstance(state.clients, RowTable):
        rows = _all_rows(client_init, state.origin, state.seed, state.clients, state.dispatched)
        return ClientStates(rows, state.dispatched)
    dispatched = np.asarray(state.dispatched)
    absent = np.flatnonzero(~dispatched).astype(np.int32)
    initial = jax.device_get(_initial_rows(client_init, state.origin, state.seed, absent))
    present = [state.clients[client] for client in np.flatnonzero(dispatched).tolist()]
    order = np.argsort(np.concatenate([np.flatnonzero(dispatched), absent]))

    def join(new, *own):
        return np.concatenate([np.stack(own), new])[order] if own else new

    return ClientStates(jax.tree.map(join, initial, *present), dispatched)


@functools.partial(jax.jit, static_argnums=0)
def _initial_rows(client_init, origin, seed, clients):
    return jax.vmap(lambda client: client_init(origin, client_key(seed, client)))(clients)


@functools.partial(jax.jit, static_argnums=0)
def _all_rows(client_init, origin, seed, table, dispatched):
    initial = _initial_rows(client_init, origin, seed, jnp.arange(dispatched.size, dtype=jnp.int32))

    def choose(new, old):
        return jnp.where(dispatched.reshape(-1, *[1] * (old.ndim - 1)), old, new)

    return jax.tree.map(choose, initial, table)


def give_rows(
    algorithm: Algorithm, placement: Placement, state: FederatedState, given: ClientStates
) -> FederatedState:
    """The initial state of `engine.init`, in which the clients have copies of the given rows."""
    check_kind("clients", given, ClientStates, "give ClientStates(rows)")
    if isinstance(state.dispatched, tuple):
        raise ValueError("the clients of this algorithm keep no state; leave clients out")
    num_clients = state.dispatched.size
    shapes = row_shapes(algorithm, state)
    _check_rows(given, shapes, num_clients)
    marks = np.broadcast_to(np.asarray(given.dispatched), num_clients)
    if isinstance(state.excluded, Excluded):  # else rows are as they come
        _check_finite(given.rows, marks)
    dispatched = jax.device_put(marks.copy(), state.dispatched.sharding)
    if isinstance(state.clients, RowTable):
        rows = jax.device_get(given.rows)
        table = state.clients.write(
            (
                client,
                jax.tree.map(lambda leaf, like, i=client: leaf[i].astype(like.dtype), rows, shapes),
            )
            for client in np.flatnonzero(marks).tolist()
        )
        return state._replace(clients=table, dispatched=dispatched)

    def place(leaf: Any, like: Any) -> jax.Array:
        copied = jnp.array(leaf, like.dtype)  # rounds consume it
        return copied if placement.mesh is None else jax.device_put(copied, sharding)

    sharding = row_sharding(placement.mesh, num_clients)
    rows = jax.tree.map(place, given.rows, shapes)
    return state._replace(clients=rows, dispatched=dispatched)


def _check_finite(rows, dispatched):
    """Raises ValueError for numbers that are not finite in the row of a dispatched client."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
        numpy: Any = jnp if isinstance(leaf, jax.Array) else np  # where the rows are
        finite = numpy.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)
        wrong = np.flatnonzero(dispatched & ~np.asarray(finite))
        if len(wrong):
            raise ValueError(
                f"clients: rows{jax.tree_util.keystr(path)} of client {wrong[0]} (and "
                f"{len(wrong) - 1} others) are not finite; give finite rows, or dispatched=False "
                "for such clients, which then start anew"
            )


def _check_rows(given, shapes, num_clients):
    """Raises ValueError for rows of other structure or shapes, or marks of another number."""
    if jax.tree.structure(given.rows) != jax.tree.structure(shapes):
        raise ValueError(
            f"clients: the rows are {describe_tree(given.rows)}, but a row of this algorithm is "
            f"{describe_tree(shapes)}; give rows of client_states with a leading axis of clients"
        )
    for leaf, like in zip(jax.tree.leaves(given.rows), jax.tree.leaves(shapes), strict=True):
        if np.shape(leaf) != (num_clients, *like.shape):
            raise ValueError(
                f"clients: the rows have shape {list(np.shape(leaf))}; give "
                f"{[num_clients, *like.shape]}, one row for each of the {num_clients} clients"
            )
    marks = np.shape(given.dispatched)
    if marks not in ((), (num_clients,)) or np.asarray(given.dispatched).dtype != bool:
        raise ValueError(
            f"clients: dispatched has shape {list(marks)}; give one bool, or bool[{num_clients}]"
        )
