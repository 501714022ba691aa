"""Many rounds as one program, which looks at each client only where a sum is not finite."""

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
    """The treatment of numbers that are not finite, in one computation of a round."""

    look: jax.Array  # bool[]: whether it looks at each client; its sums are not used
    left_out: jax.Array  # bool[slots]: the clients whose updates are not finite, as far as is known
    last: jax.Array  # bool[]: whether all of them are known

    @property
    def first(self) -> jax.Array:
        """Whether the round has not been computed yet, bool[]."""
        return ~(self.look | self.last)

    def arriving(self, dispatches: Dispatch, answered: jax.Array) -> Dispatch:
        """The dispatches, of which those that are left out do not arrive."""
        return dispatches._replace(arrives=answered & ~self.left_out)

    def after(self, summed: Any, left_out: jax.Array) -> tuple[jax.Array, "Screening"]:
        """Whether the round ends with these sums, bool[], and what the next computation does."""
        complete = self.last | (~self.look & all_finite(summed))
        return complete, Screening(~(complete | self.look), left_out, self.look)


def looking(round_fn: Callable[..., tuple[FederatedState, Metrics]]) -> Callable[..., Any]:
    """A pure round, which always looks at each client, as `run_rounds` takes it."""
    return lambda state, data, dispatches, same: (*round_fn(state, data, dispatches), same)


def run_rounds(
    run_round: Callable[..., tuple[FederatedState, Metrics, Any]],
    state: FederatedState,
    data: ProgramData,
    dispatches: Dispatch,
    number: jax.Array,
) -> tuple[FederatedState, Metrics]:
    """The first `number` rounds of dispatches [rounds, ...]: the last state, the sum of metrics.

    A sum is finite only if all its parts are, so `run_round(state, data, dispatches, screening)`
    looks at the sums first, which costs less. If one is not finite, the round is computed twice
    more: to look at each client, and then without those whose updates are not finite.
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
