"""The mean of the cohort's updates as one estimate: the simplest rule on the server."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_algos.core import Algorithm, Dispatch, Update
from fedjax_algos.core.update_parts import VECTORS, join_update, kinds, split_update
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.replay import replay


@wrappers.register
def mean(algorithm: Algorithm) -> Algorithm:
    """`U = sum_i w_i u_i / sum_i w_i` replaces each u_i, and the algorithm's own rule goes on.

    w_i is the weight that the algorithm's own `contribute` gives to the part u_i, so that the
    results are those of the algorithm, up to rounding. It is the plain case beside which robust and
    private estimates are compared. All updates of a cohort are in memory at once.

    Args:
      algorithm: what is wrapped.

    Raises:
      ValueError: for an algorithm whose server compares updates (FedLGA), whose rounds have two
        exchanges (Mime), or whose clients choose a cluster (IFCA).
    """

    def estimate(vectors, stack):
        def weigh(update, dispatch):
            return own_weights(algorithm, update, dispatch)

        weights = jax.vmap(weigh)(stack.updates, stack.dispatches)
        return [_mean(tree, w, stack.mask) for tree, w in zip(vectors, weights, strict=True)]

    return replay("mean", algorithm, estimate)


def own_weights(algorithm: Algorithm, update: Update, dispatch: Dispatch) -> list[Any]:
    """float[] for each vector part: its factor in `contribute`, which is linear in the update."""
    parts = algorithm.traits.parts
    trees = split_update(parts, update)
    chosen = [index for index, kind in enumerate(kinds(parts)) if kind in VECTORS]

    def factor(index):
        def contributed(vector):
            replaced = [*trees[:index], vector, *trees[index + 1 :]]
            return algorithm.contribute(join_update(parts, replaced), dispatch, jnp.int32(0))

        vector = trees[index]
        size = sum(leaf.size for leaf in jax.tree.leaves(vector))
        if not size:  # a part that this variant does not send
            return jnp.zeros_like(dispatch.share)
        ones = jax.tree.map(jnp.ones_like, vector)
        _, changes = jax.jvp(contributed, (vector,), (ones,))
        leaves = [leaf for leaf in jax.tree.leaves(changes) if leaf.dtype != jax.dtypes.float0]
        return sum(leaf.sum() for leaf in leaves) / size

    return [factor(index) for index in chosen]


def _mean(tree, weights, mask):
    """The mean over the clients that have arrived; leaves [slots, ...] and weights [slots]."""
    weights = jnp.where(mask, weights, 0)

    def of_leaf(leaf):
        shape = (-1, *[1] * (leaf.ndim - 1))
        arrived = jnp.where(mask.reshape(shape), leaf, 0)  # 0 * NaN is NaN
        total = (weights.reshape(shape).astype(leaf.dtype) * arrived).sum(0, dtype=leaf.dtype)
        return total / weights.sum().astype(leaf.dtype)

    return jax.tree.map(of_leaf, tree)
