"""Runs many rounds as one program that checks each client only if a sum is not finite."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.core import Dispatch, Metrics
from fedjax_algos.core.trees import take
from fedjax_algos.engine.non_finite import all_finite
from fedjax_algos.engine.placed.sharded_data import ProgramData
from fedjax_algos.engine.state import FederatedState


class Screening(NamedTuple):
    """The checks for numbers that are not finite, in one computation of a round."""

    look: jax.Array  # bool[]: whether each client is checked; the sums are then discarded
    left_out: jax.Array  # bool[slots]: the clients known to have updates that are not finite
    last: jax.Array  # bool[]: whether all of them are known

    @property
    def first(self) -> jax.Array:
        """bool[]: whether the round has not been computed yet."""
        return ~(self.look | self.last)

    def arriving(self, dispatches: Dispatch, answered: jax.Array) -> Dispatch:
        """Returns the dispatches, with `arrives` False for clients that are left out."""
        return dispatches._replace(arrives=answered & ~self.left_out)

    def after(self, summed: Any, left_out: jax.Array) -> tuple[jax.Array, "Screening"]:
        """Returns whether the round is complete, bool[], and the next computation's checks."""
        complete = self.last | (~self.look & all_finite(summed))
        return complete, Screening(~(complete | self.look), left_out, self.look)


def looking(round_fn: Callable[..., tuple[FederatedState, Metrics]]) -> Callable[..., Any]:
    """Adapts a pure round, which checks each client, to `run_rounds`."""
    return lambda state, data, dispatches, same: (*round_fn(state, data, dispatches), same)


def run_rounds(
    run_round: Callable[..., tuple[FederatedState, Metrics, Any]],
    state: FederatedState,
    data: ProgramData,
    dispatches: Dispatch,
    number: jax.Array,
) -> tuple[FederatedState, Metrics]:
    """Runs the first `number` rounds of dispatches [rounds, ...]; returns (state, summed metrics).

    A sum is finite only if all its parts are, so `run_round(state, data, dispatches, screening)`
    checks the sums first, which costs less. If one is not finite, the round is computed twice more:
    once to check each client, and once without the clients whose updates are not finite.
    """
    run_round = jax.jit(run_round)  # traced once
    never = jnp.bool_(False)
    screening = Screening(never, jnp.zeros(dispatches.client.shape[1:], bool), never)

    def try_round(carry):
        index, screening, state, total = carry
        state, metrics, screening = run_round(state, data, take(dispatches, index), screening)
        total = jax.tree.map(jnp.add, total, metrics)
        return index + screening.first, screening, state, total

    _, shapes, _ = jax.eval_shape(run_round, state, data, take(dispatches, 0), screening)
    zeros = jax.tree.map(jnp.zeros_like, shapes)
    start = jnp.int32(0), screening, state, zeros
    *_, state, total = jax.lax.while_loop(lambda carry: carry[0] < number, try_round, start)
    return state, total
