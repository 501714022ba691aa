"""Params in two parts, such as what all clients share and what stays with each client."""

import fnmatch
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

from fedjax_algos.core.types import Params, Problem

Leaves: TypeAlias = tuple[jax.Array, ...]
Pattern: TypeAlias = str | Callable[[str], bool]

_SHOWN = 8  # paths in a message


class Parts(NamedTuple):
    """Which leaves of the params stay with each client."""

    own: tuple[bool, ...]  # of each leaf, in the order of the tree
    structure: Any  # of the params
    paths: tuple[str, ...]  # of each leaf, such as "Dense_1/kernel"

    def shared_leaves(self, params: Params) -> Leaves:
        """The leaves that all clients share.

        Args:
          params: of a model.
        """
        leaves = jax.tree.leaves(params)
        return tuple(leaf for leaf, own in zip(leaves, self.own, strict=True) if not own)

    def own_leaves(self, params: Params) -> Leaves:
        """The leaves that stay with a client.

        Args:
          params: of a model.
        """
        leaves = jax.tree.leaves(params)
        return tuple(leaf for leaf, own in zip(leaves, self.own, strict=True) if own)

    def join(self, shared: Leaves, own: Leaves) -> Params:
        """The params of both parts.

        Args:
          shared: of `shared_leaves`.
          own: of `own_leaves`.
        """
        parts = iter(shared), iter(own)
        return self.structure.unflatten(next(parts[is_own]) for is_own in self.own)


def split_params(problem: Problem, pattern: Pattern) -> Parts:
    """Says which of a model's params stay with each client.

    Args:
      problem: whose params are split.
      pattern: of the paths of the leaves that stay, such as "Dense_1/*". `*` stands for any text,
        and letters of either case are equal. Or a function from a path to a bool.
    """
    params = jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0)).params
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    paths = tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves)
    if isinstance(pattern, str):
        chosen = pattern.lower()  # the path of a bare array is empty, too
        own = [bool(chosen) and fnmatch.fnmatchcase(path.lower(), chosen) for path in paths]
    else:
        own = [bool(pattern(path)) for path in paths]
    return Parts(tuple(own), structure, paths)


def check_match(name: str, parts: Parts, pattern: Pattern, *, rest: str = "") -> None:
    """Raises ValueError, which names the paths, for a pattern that matches no leaf, or all.

    Args:
      name: of the option.
      parts: of `split_params`.
      pattern: which was given.
      rest: what the leaves that do not match are, such as "the body"; "" if there need be none.
    """
    if any(parts.own) and not (rest and all(parts.own)):
        return
    paths, more = parts.paths[:_SHOWN], len(parts.paths) - _SHOWN
    among = f"of the params {', '.join(paths)}" + f" and {more} others" * (more > 0)
    fix = f"give a pattern such as {paths[-1].rpartition('/')[0] or paths[-1]}*"
    if paths == ("",):
        among, fix = "of the params, which are one array", "give a model of several arrays"
    shown = getattr(pattern, "__name__", repr(pattern))
    if any(parts.own):
        raise ValueError(f"{name}={shown} matches all {among}, which leaves none for {rest}; {fix}")
    raise ValueError(f"{name}={shown} matches none {among}; {fix}")
