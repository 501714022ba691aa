"""Leaves out and counts updates with numbers that are not finite (NaN or infinite).

Rounds and plans call `all_finite` on a client's results. If the check fails, the client is masked
like an empty slot: its contribution, statistics and metrics become zeros, and its row stays.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Dispatch
from fedjax_algos.core.plain_types import NonFinite


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
        number = left_out.sum(dtype=jnp.int32)
        last = jnp.iinfo(jnp.int32).max
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
        raise NonFiniteUpdateError(
            f"{found} {server_step[run]} (on the virtual clock: from the model of that server "
            "step; the first is 0); look for such numbers in the client's examples, give a smaller "
            "client_learning_rate or a clip_norm, or leave them out with non_finite='exclude'"
        )
