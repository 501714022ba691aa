"""Optimal client sampling: all clients of a cohort train, but only a few send their updates."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.core import Algorithm
from fedjax_algos.core.options import Positive
from fedjax_algos.core.trees import along
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.stages import OBSERVE, ClientStage, Rule, Sent


def inclusion(importance: jax.Array, uploads: float) -> jax.Array:
    """Computes `p_i = min(1, c a_i)` with sum M, `uploads`, for importances a_i, float[n]."""
    ordered, number = jnp.sort(importance), importance.size
    below = jnp.cumsum(ordered)
    # the l smallest share the rest of M, where the n - l others have p_i = 1
    left = uploads - number + jnp.arange(1, number + 1)
    fits = (left > 0) & (left * ordered <= below)
    last = number - 1 - jnp.argmax(fits[::-1])
    few = (importance > 0).sum() <= uploads
    c = jnp.where(few, jnp.inf, left[last] / below[last])
    return jnp.where(importance == 0, 0, jnp.minimum(c * importance, 1))


@wrappers.register
def optimal_client_sampling(algorithm: Algorithm, *, uploads: Positive = 3.0) -> Algorithm:
    """Client i sends its update with probability `p_i = min(1, c w_i |u_i|)`; on average M send.

    All clients of a cohort train and send |u_i|, and c makes the p_i sum to M. Each client draws
    independently whether it also sends u_i. `U = sum (w_i / p_i) u_i / sum w_i`, over the clients
    that send and over all, replaces each update before the algorithm's own rule. w_i is the weight
    that its `contribute` gives to u_i. U is unbiased for the mean over the cohort, and of all such
    p_i these have the smallest variance. If M is at least the size of the cohort, the results equal
    the results of the wrapper `mean` up to rounding.

    Chen et al., "Optimal Client Sampling for Federated Learning", TMLR 2022,
    https://arxiv.org/abs/2010.13723; the code is in
    https://github.com/SamuelHorvath/FL-optimal-client-sampling. There c is approximated by sums
    over clients in at most four exchanges (AOCS); here the server knows all norms, and c is exact.

    Bytes count what clients send: 4 for the norm of each client that answers, and the update of
    each client whose draw is positive. The column `uploads` counts these updates. Download and
    operations are counted for the whole cohort. All its updates are in memory at once.

    Args:
      algorithm: the algorithm to wrap. Codecs come before, and |u_i| is taken after decoding.
      uploads: M, the mean number of clients of a cohort that send their update, above 0.

    Raises:
      ValueError: for an algorithm whose clients send several vectors, models, counts, a choice, or
        twice in a round, whose server compares updates, or whose model has statistics.
    """
    name = "optimal_client_sampling"

    def apply(vectors, own, client):
        norm = optax.tree.norm(vectors).astype(jnp.float32)
        return Sent(extra={f"{name}.norm": norm, f"{name}.draw": client.key})

    def first(zeros, population):
        return jnp.int32(0)

    def estimate(cohort, sent, key, facts):
        (vectors,), (weights,) = cohort.vectors, cohort.weights
        norm, words = (cohort.extra[f"{name}.{each}"] for each in ("norm", "draw"))
        draw = jax.vmap(lambda words: jax.random.uniform(jax.random.wrap_key_data(words)))(words)
        p = inclusion(weights * jnp.where(cohort.mask, norm, 0), uploads)
        sends = ~(draw >= p)  # also where p is NaN, because the mean would be NaN
        factors = jnp.where(sends, weights / jnp.where(sends, p, 1), 0)
        total = weighted_sum(vectors, factors, cohort.mask)
        mean = jax.tree.map(lambda leaf: leaf / weights.sum().astype(leaf.dtype), total)
        return [mean], sent + sends.sum(dtype=jnp.int32)

    stage = ClientStage(name, apply, place=OBSERVE)
    rule = Rule(name, estimate, first=first, report=lambda sent: {"uploads": sent}, offers=True)
    needs = "one exchange", "one vector", "no models", "no counts", "no statistics"
    return add(name, algorithm, client=[stage], rule=rule, needs=needs)


def weighted_sum(tree: Any, weights: jax.Array, mask: jax.Array) -> Any:
    """Sums each leaf over its first axis, where `mask` holds, with weights."""

    def of_leaf(leaf):
        arrived = jnp.where(along(mask, leaf), leaf, 0)
        return jnp.tensordot(weights.astype(leaf.dtype), arrived, 1, precision="highest")

    return jax.tree.map(of_leaf, tree)
