"""Arithmetic on trees of arrays that keeps the dtype of each leaf.

`optax.tree.scale` and `optax.tree.add_scale` promote the leaves to the dtype of the factor instead.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_algos.core.types import Params


def scale(factor, tree: Params) -> Params:
    """`factor * tree`, in the dtypes of `tree`.

    Args:
      factor: a number or a scalar array, traced or not.
      tree: arrays.
    """
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def add_scaled(tree: Params, factor, other: Params) -> Params:
    """`tree + factor * other`, in the dtypes of `tree`.

    Args:
      tree: arrays.
      factor: a number or a scalar array, traced or not.
      other: arrays with the structure and the shapes of `tree`.
    """
    return jax.tree.map(lambda a, b: a + jnp.asarray(factor, a.dtype) * b, tree, other)


def tree_bytes(tree: Any) -> int:
    """Bytes of all leaves together.

    Args:
      tree: arrays, or shapes with dtypes such as `jax.ShapeDtypeStruct`.
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@jax.jit
def add_trees(left: Any, right: Any) -> Any:
    """The sums of the leaves of two trees, compiled.

    Args:
      left: of arrays.
      right: of arrays of the same shapes.
    """
    return jax.tree.map(jnp.add, left, right)
