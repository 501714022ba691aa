"""Trees of arrays: arithmetic that keeps the dtype of each leaf, sizes, and params in two parts.

`optax.tree.scale` and `optax.tree.add_scale` promote the leaves to the dtype of the factor instead.
"""

import fnmatch
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.core.types import Params, Problem

Leaves: TypeAlias = tuple[jax.Array, ...]
Pattern: TypeAlias = str | Callable[[str], bool]

_SHOWN = 8  # paths in a message


def scale(factor, tree: Params) -> Params:
    """Returns `factor * tree`, in the dtypes of `tree`."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def add_scaled(tree: Params, factor, other: Params) -> Params:
    """Returns `tree + factor * other`, in the dtypes of `tree`."""
    return jax.tree.map(lambda a, b: a + jnp.asarray(factor, a.dtype) * b, tree, other)


def unit(tree: Params) -> Params:
    """Returns `tree / |tree|`, with the norm over all leaves; a tree of zeros stays zero."""
    square = optax.tree.norm(tree, squared=True)
    inverse = jnp.where(square > 0, jax.lax.rsqrt(jnp.where(square > 0, square, 1)), 0)
    return scale(inverse, tree)


def take(tree: Any, index: Any) -> Any:
    """Returns `leaf[index]` of each leaf, such as one client's rows in a table."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def along(values: jax.Array, leaf: jax.Array) -> jax.Array:
    """Reshapes values [n] so that they broadcast against a leaf [n, ...]."""
    return values.reshape(-1, *[1] * (leaf.ndim - 1))


def tree_bytes(tree: Any) -> int:
    """Returns the bytes of all leaves together; they are arrays or shapes with dtypes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def sent_bytes(tree: Any) -> int:
    """Returns the bytes of a message. Random keys are not sent, because both ends derive them."""
    return tree_bytes([leaf for leaf in jax.tree.leaves(tree) if not is_key(leaf)])


def is_key(leaf: Any) -> bool:
    """Returns whether a leaf has random keys of jax (`jax.random.key`)."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


@jax.jit
def add_trees(left: Any, right: Any) -> Any:
    """Adds two trees leaf by leaf, compiled."""
    return jax.tree.map(jnp.add, left, right)


class Parts(NamedTuple):
    """A partition of the params: leaves that clients share, and leaves that each client keeps."""

    own: tuple[bool, ...]  # whether each leaf stays, in the order of the tree
    structure: Any  # of the params
    paths: tuple[str, ...]  # of each leaf, such as "Dense_1/kernel"

    def shared_leaves(self, params: Params) -> Leaves:
        """Returns the leaves that all clients share."""
        return tuple(itertools.compress(jax.tree.leaves(params), [not own for own in self.own]))

    def own_leaves(self, params: Params) -> Leaves:
        """Returns the leaves that stay with a client."""
        return tuple(itertools.compress(jax.tree.leaves(params), self.own))

    def join(self, shared: Leaves, own: Leaves) -> Params:
        """Returns the params of both parts."""
        parts = iter(shared), iter(own)
        return self.structure.unflatten(next(parts[is_own]) for is_own in self.own)


def split_params(problem: Problem, pattern: Pattern) -> Parts:
    """Divides params: leaves whose path, such as "Dense_1/bias", matches stay with each client."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(problem.shapes().params)
    paths = tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves)
    if isinstance(pattern, str):
        chosen = pattern.lower()  # the path of a bare array is also empty
        own = [bool(chosen) and fnmatch.fnmatchcase(path.lower(), chosen) for path in paths]
    else:
        own = [bool(pattern(path)) for path in paths]
    return Parts(tuple(own), structure, paths)


def check_match(name: str, parts: Parts, pattern: Pattern, *, rest: str = "") -> None:
    """Raises ValueError if a pattern matches no leaf, or all although there must be a `rest`."""
    if any(parts.own) and not (rest and all(parts.own)):
        return
    paths, more = parts.paths[:_SHOWN], len(parts.paths) - _SHOWN
    among = f"of the params {', '.join(paths)}" + f" and {more} others" * (more > 0)
    fix = f"give a pattern such as {paths[-1].rpartition('/')[0] or paths[-1]}*"
    if paths == ("",):
        among, fix = "of the params, which are one array", "give a model of several arrays"
    text = getattr(pattern, "__name__", repr(pattern))
    matched = f"all {among}, which leaves none for {rest}" if any(parts.own) else f"none {among}"
    raise ValueError(f"{name}={text} matches {matched}; {fix}")
