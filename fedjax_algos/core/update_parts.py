"""The parts of an update, by `Traits.parts`: which of them wrappers and diagnostics may read."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_algos.core.algorithm import PartKinds
from fedjax_algos.core.types import Update

VECTORS = ("delta", "change", "model", "vector", "moments")  # trees of floats


def kinds(parts: PartKinds) -> tuple[str, ...]:
    """The kind of each part, in the order of the update's leaves."""
    return tuple(jax.tree.leaves(parts))


def split_update(parts: PartKinds, update: Update) -> list[Any]:
    """The parts of an update, one tree for each of `kinds(parts)`.

    Raises:
      ValueError: for an update that has not these parts, or whose vectors are not floats.
    """
    structure: Any = jax.tree.structure(parts)
    try:
        trees = structure.flatten_up_to(update)
    except (TypeError, ValueError) as error:
        raise ValueError(_mismatch(parts, f"the update is {jax.tree.structure(update)}")) from error
    for kind, tree in zip(kinds(parts), trees, strict=True):
        for leaf in jax.tree.leaves(tree) if kind in VECTORS else []:
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                raise ValueError(_mismatch(parts, f"a {kind} has {jnp.result_type(leaf)} entries"))
    return trees


def _mismatch(parts, what):
    return (
        f"the algorithm declares parts={parts!r}, but {what}; give Traits(parts=...) the kind of "
        "each part of its update, as in fednova"
    )


def join_update(parts: PartKinds, trees: Sequence[Any]) -> Update:
    """The update of its parts; the inverse of `split_update`."""
    structure: Any = jax.tree.structure(parts)
    return structure.unflatten(trees)
