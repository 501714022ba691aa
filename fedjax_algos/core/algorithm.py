"""What an algorithm is: pure functions that say what is sent, computed and updated.

An `Algorithm` knows nothing of devices, chunks, time or data loading.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.core.client_data import ClientData
from fedjax_algos.core.types import (
    Array,
    Broadcast,
    ClientState,
    Contribution,
    Key,
    Local,
    Params,
    Population,
    Problem,
    Report,
    ServerState,
    Update,
    Visit,
)


class WeightedSum(NamedTuple):
    """The default contribution: `weight * update` and `weight`, summed over the group."""

    total: Update
    weight: Array  # float[]

    def mean(self) -> Update:
        """The weighted mean of the group's updates."""
        return jax.tree.map(lambda t: t / self.weight.astype(t.dtype), self.total)


class Stack(NamedTuple):
    """What `server_update` receives instead of sums where `reduce` is "stack"."""

    updates: Update  # leaves [group, ...]
    visits: Visit  # leaves [group]
    mask: jax.Array  # bool[group]: False for padding


Weighting = Literal["uniform", "examples"]


def weighted_by(weighting: Weighting) -> Callable[[Update, Visit, jax.Array], WeightedSum]:
    """A `contribute` with weight 1 ("uniform") or n_i ("examples") for each client."""

    def contribute(update: Update, visit: Visit, staleness: jax.Array) -> WeightedSum:
        del staleness
        weight = visit.num_examples if weighting == "examples" else jnp.ones_like(visit.client)
        weight = weight.astype(visit.share.dtype)
        return WeightedSum(jax.tree.map(lambda u: weight.astype(u.dtype) * u, update), weight)

    return contribute


def stateless(params: Params, key: Key) -> ClientState:
    """The `client_init` of an algorithm whose clients keep nothing between their turns."""
    del params, key
    return ()


class Prelude(NamedTuple):
    """A first exchange of a round with the same cohort, before the local steps.

    Its `server_update` keeps what was gathered in the server state. The broadcast that
    `client_update` then receives is the pair (the prelude's broadcast, the algorithm's own), as
    what was sent first is still with the client: only send the rest.
    """

    broadcast: Callable[[ServerState, jax.Array], Broadcast]
    client_update: Callable[[Broadcast, ClientData, Visit, Key], Update]
    server_update: Callable[[ServerState, Any, jax.Array, jax.Array], ServerState]
    contribute: Callable[[Update, Visit, jax.Array], Contribution] = weighted_by("examples")


class Algorithm(NamedTuple):
    """A federated algorithm: pure functions in the order in which they are used in a round.

    The server state is a NamedTuple with a field `params`, the model that is evaluated. The engine
    gathers data and client state, runs `client_update` over the cohort, and only ever SUMS what
    `contribute` returns (or stacks the updates); dividing is `server_update`'s business.
    """

    problem: Problem
    local: Local
    init: Callable[[Params, Population], ServerState]
    broadcast: Callable[[ServerState, jax.Array], Broadcast]  # the array: int32[], the group
    client_update: Callable[
        [Broadcast, ClientState, ClientData, Visit, Key], tuple[ClientState, Update, Report]
    ]
    server_update: Callable[
        [ServerState, Any, jax.Array, jax.Array], ServerState  # sums, count int32[], group int32[]
    ]
    contribute: Callable[[Update, Visit, jax.Array], Contribution] = weighted_by("examples")
    client_init: Callable[[Params, Key], ClientState] = stateless  # from theta_0, at visit 0
    reduce: Literal["sum", "stack"] = "sum"
    prelude: Prelude | None = None
