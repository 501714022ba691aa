"""Arithmetic on trees of arrays that keeps each leaf's dtype."""

import jax
import jax.numpy as jnp

from fedjax_algos.core.types import Params


def scale(factor, tree: Params) -> Params:
    """`factor * tree` for a scalar, traced or not."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def add_scaled(tree: Params, factor, other: Params) -> Params:
    """`tree + factor * other`, in the dtypes of `tree`."""
    return jax.tree.map(lambda a, b: a + jnp.asarray(factor, a.dtype) * b, tree, other)


def add(tree: Params, other: Params) -> Params:
    """`tree + other`."""
    return jax.tree.map(jnp.add, tree, other)
