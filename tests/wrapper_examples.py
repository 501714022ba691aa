"""Short wrappers, one for each kind of stage: an attack, a defence, a rule, whole numbers.

Call them with an algorithm, as in `trimmed_mean(nearest_mixing(sign_flip(algorithm)))`.
"""

import jax
import jax.numpy as jnp

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm
from fedjax_algos.core.randomness import permutation_words, permute
from fedjax_algos.core.trees import along, scale
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.optimal_client_sampling import weighted_sum
from fedjax_algos.wrappers.stages import (
    ATTACK,
    WHOLE,
    ClientStage,
    Facts,
    Rule,
    Sent,
    ServerStage,
)

_MARKED = 1  # folded into the seed to mark clients


def marked(client: jax.Array, fraction: float, facts: Facts) -> jax.Array:
    """bool[...]: whether clients are among the `fraction` of all N marked by the seed."""
    words = permutation_words(jax.random.fold_in(jax.random.key(facts.seed), _MARKED))
    place = permute(words, client, facts.num_clients.astype(jnp.int32))
    return place < jnp.round(fraction * facts.num_clients)


def sign_flip(algorithm: Algorithm, *, fraction: float = 0.2) -> Algorithm:
    """Makes marked clients send -u_i."""

    def one(vectors, extra, dispatch, own, key, facts):
        return scale(1 - 2 * marked(dispatch.client, fraction, facts), vectors)

    return add("sign_flip", algorithm, server=[ServerStage("sign_flip", one, place=ATTACK)])


def alie(algorithm: Algorithm, *, fraction: float = 0.2, z: float = 1.0) -> Algorithm:
    """A little is enough: marked clients send the others' mean minus z standard deviations.

    Baruch et al., NeurIPS 2019, https://arxiv.org/abs/1902.06156.
    """

    def change(cohort, own, key, facts):
        bad = marked(cohort.dispatches.client, fraction, facts)
        weights = (cohort.mask & ~bad).astype(cohort.factor.dtype)

        def mean(tree):
            return scale(1 / weights.sum(), weighted_sum(tree, weights, cohort.mask))

        def of_leaf(leaf):
            middle = mean(leaf)
            sent = middle - z * jnp.sqrt(mean((leaf - middle[None]) ** 2))
            return jnp.where(along(bad, leaf), sent[None], leaf)

        return cohort._replace(vectors=jax.tree.map(of_leaf, cohort.vectors)), own

    return add("alie", algorithm, server=[ServerStage("alie", all=change, place=ATTACK)])


def nearest_mixing(algorithm: Algorithm, *, wrong: int = 1) -> Algorithm:
    """Replaces each update by the mean of the n - `wrong` of n arrived updates closest to it.

    Allouah et al., AISTATS 2023, https://arxiv.org/abs/2302.01772.
    """

    def change(cohort, own, key, facts):
        leaves, structure = jax.tree.flatten(cohort.vectors)
        arrived = [along(cohort.mask, leaf) for leaf in leaves]
        leaves = [jnp.where(mask, leaf, 0) for mask, leaf in zip(arrived, leaves, strict=True)]
        flat = jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
        square = (flat**2).sum(1)
        distance = square[:, None] + square[None] - 2 * flat @ flat.T
        rank = jnp.where(cohort.mask, distance, jnp.inf).argsort(1).argsort(1)
        near = (rank < cohort.mask.sum() - wrong).astype(flat.dtype)
        near /= near.sum(1, keepdims=True)
        mixed = [jnp.tensordot(near.astype(leaf.dtype), leaf, 1) for leaf in leaves]
        return cohort._replace(vectors=structure.unflatten(mixed)), own

    return add("nearest_mixing", algorithm, server=[ServerStage("nearest_mixing", all=change)])


def trimmed_mean(algorithm: Algorithm, *, wrong: int = 1) -> Algorithm:
    """Takes the mean of each coordinate without the `wrong` largest and smallest values.

    Yin et al., ICML 2018, https://arxiv.org/abs/1803.01498.
    """

    def estimate(cohort, own, key, facts):
        def of_leaf(leaf):
            place = jnp.arange(len(leaf))
            mask, place = along(cohort.mask, leaf), along(place, leaf)
            ordered = jnp.where(mask, leaf, jnp.inf).sort(0)
            kept = (place >= wrong) & (place < mask.sum() - wrong)
            return jnp.where(kept, ordered, 0).sum(0) / kept.sum().astype(leaf.dtype)

        return jax.tree.map(of_leaf, cohort.vectors), own

    return add("trimmed_mean", algorithm, rule=Rule("trimmed_mean", estimate))


def modular_mean(algorithm: Algorithm, *, bits: int = 16, most: float = 1.0) -> Algorithm:
    """Takes the plain mean of whole numbers modulo 2^32, like sums of masked updates.

    Entries from -`most` to `most` are rounded to 2^bits - 1 numbers. An update with a larger entry,
    or one that is not finite, is left out.
    """
    levels = 2 ** (bits - 1) - 1

    def apply(vectors, own, client):
        fits = jnp.bool_(True)
        for leaf in jax.tree.leaves(vectors):
            fits &= (jnp.abs(leaf) <= most).all()
        whole = jax.tree.map(lambda v: jnp.round(v / most * levels).astype(jnp.int32), vectors)
        return Sent(whole, extra={"modular_mean.fits": jnp.where(fits, jnp.float32(0), jnp.nan)})

    def first(zeros, population):
        fits = population.cohort_size * levels < 2**31
        require(fits, f"modular_mean: bits={bits} overflow a cohort of {population.cohort_size}")
        return zeros

    def summand(vectors, weights, extra, dispatch, own, facts):
        return jax.tree.map(lambda v: v.astype(jnp.uint32), vectors), extra["modular_mean.fits"]

    def estimate(summed, zeros, key, facts):
        def of_leaf(total, zero):
            whole = jax.lax.bitcast_convert_type(total, jnp.int32)
            return whole.astype(zero.dtype) * (most / levels) / summed.number.astype(zero.dtype)

        return jax.tree.map(of_leaf, summed.total[0], zeros), zeros

    stage = ClientStage("modular_mean", apply, kind=lambda kind: "vector", place=WHOLE)
    rule = Rule("modular_mean", estimate, summand, first, equal_weights="leave it out")
    return add("modular_mean", algorithm, client=[stage], rule=rule)
