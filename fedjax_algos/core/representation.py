"""Readable one-line representations of what holds arrays and functions."""

from typing import Any

import jax
import numpy as np

_SHOWN = 4  # arrays of a tree that are named one by one


def describe_tree(tree: Any) -> str:
    """A tree of arrays in a few words, such as `x float32[1435, 64], y int32[1435]`.

    Args:
      tree: leaves are arrays, tracers or `jax.ShapeDtypeStruct`s.

    Returns:
      Path, dtype and shape of each array, or the number of arrays and of their entries if there are
      more than four.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if len(leaves) > _SHOWN:
        entries = sum(int(np.prod(np.shape(leaf))) for _, leaf in leaves)
        return f"{len(leaves)} arrays of {entries:,} entries"
    return ", ".join(f"{_name(path)}{_describe_leaf(leaf)}" for path, leaf in leaves) or "nothing"


def describe(value: Any, **facts: Any) -> str:
    """`Name(fact=..., fact=...)`, for a class's `__repr__`.

    Args:
      value: whose class is named.
      **facts: what is said of it, in this order; texts stand without quotes.
    """
    listed = ", ".join(f"{name}={fact}" for name, fact in facts.items())
    return f"{type(value).__name__}({listed})"


def _name(path):
    return f"{jax.tree_util.keystr(path, simple=True, separator='.')} " if path else ""


def _describe_leaf(leaf):
    if not hasattr(leaf, "dtype"):
        return repr(leaf)
    return f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"
