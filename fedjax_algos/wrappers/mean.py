"""The mean of the cohort's updates as one estimate: the simplest rule on the server."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_algos.core import Algorithm
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.replay import replay


@wrappers.register
def mean(algorithm: Algorithm) -> Algorithm:
    """`U = sum_i w_i u_i / sum_i w_i` replaces each u_i, and the algorithm's own rule goes on.

    w_i is the weight that the algorithm's own `contribute` gives to the part u_i, so that the
    results are those of the algorithm, up to rounding. It is the plain case beside which robust and
    private estimates are compared.

    Args:
      algorithm: what is wrapped.

    Raises:
      ValueError: for an algorithm whose server compares updates (FedLGA), or whose clients choose
        a cluster (IFCA).
    """

    def estimate(vectors, weights, mask):
        each = zip(vectors, weights, strict=True)
        return [weighted_mean(tree, w, mask) for tree, w in each]

    return replay("mean", algorithm, estimate)


def weighted_sum(tree: Any, weights: jax.Array, mask: jax.Array) -> Any:
    """The sum of what has arrived, over the first axis of each leaf."""

    def of_leaf(leaf):
        shape = (-1, *[1] * (leaf.ndim - 1))
        weighted = weights.reshape(shape).astype(leaf.dtype) * leaf
        return jnp.where(mask.reshape(shape), weighted, 0).sum(0, dtype=leaf.dtype)

    return jax.tree.map(of_leaf, tree)


def weighted_mean(tree: Any, weights: jax.Array, mask: jax.Array) -> Any:
    """The mean of what has arrived, whose weights are 0 where nothing has."""
    total = weighted_sum(tree, weights, mask)
    return jax.tree.map(lambda leaf: leaf / weights.sum().astype(leaf.dtype), total)
