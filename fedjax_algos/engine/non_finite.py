"""Leaves out and counts updates with numbers that are not finite (NaN or infinite).

Rounds and plans call `all_finite` on a client's results. If the check fails, the client is masked
like an empty slot: its contribution, statistics and metrics become zeros, and its row stays. Many
rounds in one program (`run_rounds`) check each client only if a sum is not finite.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Dispatch, Metrics
from fedjax_algos.core.options import NonFinite
from fedjax_algos.core.trees import take


class NonFiniteUpdateError(ValueError):
    """A client's update holds a number that is not finite, and `non_finite` is "error"."""


class Excluded(NamedTuple):
    """The updates that a run has left out since its start; leaves [runs] in a merged plan.

    Attributes:
      number: int32[]: how many updates were left out.
      server_step: int32[]: the server step of the first one's dispatch, or -1.
      client: int32[]: the client of the first one, or -1; in rounds the lowest id of the round.
    """

    number: jax.Array
    server_step: jax.Array
    client: jax.Array

    @classmethod
    def none(cls) -> "Excluded":
        """Returns the value before the first update."""
        return cls(jnp.int32(0), jnp.int32(-1), jnp.int32(-1))

    def add(self, left_out: jax.Array, dispatches: Dispatch) -> "Excluded":
        """Counts updates that are left out.

        Args:
          left_out, dispatches: which updates, bool[...], and their dispatches, leaves [...].
        """
        number, last = left_out.sum(dtype=jnp.int32), jnp.iinfo(jnp.int32).max
        client = jnp.where(left_out, dispatches.client, last).min()
        step = jnp.where(left_out, dispatches.server_step, last).min()
        first = (self.number == 0) & (number > 0)
        return Excluded(
            self.number + number,
            jnp.where(first, step, self.server_step),
            jnp.where(first, client, self.client),
        )


def all_finite(*trees: Any) -> jax.Array:
    """Returns whether all floats of the trees are finite, bool[]; other dtypes are ignored."""
    finite = jnp.bool_(True)
    for leaf in floats(trees):
        # `max` propagates NaN; on a CPU this is faster than `isfinite` on every entry
        finite &= jnp.isfinite(jnp.abs(leaf).max(initial=0))
    return finite


def floats(tree: Any) -> list[jax.Array]:
    """Returns the leaves with an inexact dtype."""
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def select(condition: jax.Array, tree: Any, otherwise: Any) -> Any:
    """Returns `tree` where `condition`, bool[], holds, else `otherwise`: a tree or 0."""
    if isinstance(otherwise, int):
        return jax.tree.map(lambda leaf: jnp.where(condition, leaf, otherwise), tree)
    return jax.tree.map(lambda leaf, other: jnp.where(condition, leaf, other), tree, otherwise)


def check_excluded(non_finite: NonFinite, excluded: Any) -> None:
    """Raises NonFiniteUpdateError if `non_finite` is "error" and an update was left out."""
    if non_finite != "error":
        return
    number, server_step, client = (np.ravel(np.asarray(leaf)) for leaf in excluded)
    for run in np.flatnonzero(number)[:1]:
        found = f"client {client[run]} made an update that is not finite in round"
        found += f" {server_step[run]} (on the virtual clock: from the model of that server step)"
        fix = "look for such numbers in the client's examples, give a smaller client_learning_rate "
        fix += "or a clip_norm, or leave them out with non_finite='exclude'"
        raise NonFiniteUpdateError(f"{found}; {fix}")


class Screening(NamedTuple):
    """The checks for numbers that are not finite, in one computation of a round."""

    check_each: jax.Array  # bool[]: whether each client is checked; the sums are then discarded
    left_out: jax.Array  # bool[slots]: the clients known to have updates that are not finite
    last: jax.Array  # bool[]: whether all of them are known

    @property
    def first(self) -> jax.Array:
        """bool[]: whether the round has not been computed yet."""
        return ~(self.check_each | self.last)

    def after(self, summed: Any, left_out: jax.Array) -> tuple[jax.Array, "Screening"]:
        """Returns whether the round is complete, bool[], and the next computation's checks."""
        complete = self.last | (~self.check_each & all_finite(summed))
        return complete, Screening(~(complete | self.check_each), left_out, self.check_each)


def without_screening(round_fn: Callable[..., tuple[Any, Any]]) -> Callable[..., Any]:
    """Adapts a pure round, which checks each client itself, to `run_rounds`."""
    return lambda state, data, dispatches, same: (*round_fn(state, data, dispatches), same)


def run_rounds(
    run_round: Callable[..., tuple[Any, Any, Any]],
    state: Any,
    data: Any,
    dispatches: Dispatch,
    number: jax.Array,
) -> tuple[Any, Metrics]:
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
    start = jnp.int32(0), screening, state, jax.tree.map(jnp.zeros_like, shapes)
    *_, state, total = jax.lax.while_loop(lambda carry: carry[0] < number, try_round, start)
    return state, total
