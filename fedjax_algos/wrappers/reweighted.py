"""Fair objectives: wrappers that weigh a client's contribution by its loss at the received model.

F_i(x) is the mean loss of the model x, as the client has received it, over all of its examples. The
client sends it with its update. The server multiplies each client's whole contribution, including
its weight, by a factor a_i that depends on the losses of the cohort. So an algorithm that divides
by the sum of the weights gets the reweighted mean.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm, Array, Population
from fedjax_algos.core.algorithm import kinds, split_update
from fedjax_algos.core.local_steps import mean_loss
from fedjax_algos.core.options import Positive, PositiveShare, Real
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.stages import OBSERVE, ClientStage, Sent, ServerStage


class Losses(NamedTuple):
    """The losses of a cohort.

    Attributes:
      value: float[slots]: F_i(x).
      weight: float[slots]: w_i, the algorithm's own weight of the client.
      client: int32[slots]: the client's id.
      mask: bool[slots]: which updates have arrived; the others have the loss 0 and the weight 1.
    """

    value: jax.Array
    weight: jax.Array
    client: Array
    mask: jax.Array


Factors = Callable[[Losses, Any], tuple[jax.Array, Any]]  # (losses, memory) -> (a_i, memory)


@wrappers.register
def afl(algorithm: Algorithm, *, gamma: Positive = 0.1) -> Algorithm:
    """Agnostic federated learning: the weights lambda_i ascend the losses, on the simplex.

    `U = sum_i lambda_i u_i / sum_i lambda_i` over the cohort, in place of the algorithm's weighted
    mean; then `lambda <- project(lambda + gamma F(x))`, from lambda_i = 1/N. This approaches
    `min_x max_lambda sum_i lambda_i F_i(x)`. In the paper and in the authors' code all clients take
    part in each round. Here lambda_i changes only by the projection while i takes no part. If all
    lambda_i in a cohort are 0, the algorithm gets a mean of 0. The paper returns the mean of all x;
    here the last x is returned. In the authors' code lambda may add up to more than 1.

    Mohri et al., "Agnostic Federated Learning", ICML 2019, https://arxiv.org/abs/1902.00146; the
    code is in https://github.com/litian96/fair_flearn.

    Args:
      algorithm: the algorithm to wrap.
      gamma: the learning rate of lambda, above 0.
    """

    def first(population):
        return jnp.full(population.num_clients, 1 / population.num_clients)

    def factors(losses, lambdas):
        chosen = lambdas[losses.client] / losses.weight
        ascent = jnp.where(losses.mask, gamma * losses.value, 0)
        # an empty slot has a client out of range, so JAX drops it
        return chosen, project(lambdas.at[losses.client].add(ascent, mode="drop"))

    return reweighted("afl", algorithm, factors, first)


@wrappers.register
def term(algorithm: Algorithm, *, t: Real = 1.0) -> Algorithm:
    """Tilted empirical risk minimisation: weights proportional to `w_i exp(t F_i(x))`.

    The objective is `(1/t) log(sum_i p_i exp(t F_i))`, with w_i the algorithm's own weights. They
    are normalised over the cohort. t = 0 changes nothing; a large t approaches the highest
    loss, and t below 0 gives less weight to clients with a high loss, such as outliers.

    Li et al., "Tilted Empirical Risk Minimization", ICLR 2021, https://arxiv.org/abs/2007.01162.

    Args:
      algorithm: the algorithm to wrap.
      t: t, of either sign, in units of 1 / loss.
    """

    def factors(losses, memory):
        tilted = jnp.where(losses.mask, t * losses.value, -jnp.inf)
        return jnp.exp(tilted - tilted.max()), memory  # at most 1, so that nothing overflows

    return reweighted("term", algorithm, factors)


@wrappers.register
def superquantile(algorithm: Algorithm, *, theta: PositiveShare = 0.5) -> Algorithm:
    """Delta-FL: the mean over the share theta of the cohort with the highest losses.

    A client counts if F_i(x) is at least the (1 - theta)-quantile of the cohort's losses, weighted
    by the algorithm's own w_i: if clients with a higher loss have at most the share theta of the
    weights. theta = 1 changes nothing. The clients that do not count also train and send.

    Laguel et al., "Superquantiles at Work: Machine Learning Applications and Efficient Subgradient
    Computation", 2021, and Pillutla et al., "Federated Learning with Superquantile Aggregation for
    Heterogeneous Data", 2022, https://arxiv.org/abs/2112.09429.

    Args:
      algorithm: the algorithm to wrap.
      theta: theta, above 0 and at most 1.
    """

    def factors(losses, memory):
        weight = jnp.where(losses.mask, losses.weight, 0)
        higher = losses.value[None] > losses.value[:, None]
        above = jnp.where(higher, weight[None], 0).sum(1)
        return (above <= theta * weight.sum()).astype(weight.dtype), memory

    return reweighted("superquantile", algorithm, factors)


def project(v: jax.Array) -> jax.Array:
    """Projects float[n] to the closest point of the simplex {lambda >= 0, sum of lambda = 1}."""
    ordered = jnp.sort(v, descending=True)
    shifts = (1 - jnp.cumsum(ordered)) / jnp.arange(1, v.size + 1)
    positive = (ordered + shifts > 0).sum()
    return jnp.maximum(v + shifts[positive - 1], 0)


def reweighted(
    name: str,
    algorithm: Algorithm,
    factors: Factors,
    first: Callable[[Population], Any] = lambda population: (),
) -> Algorithm:
    """Multiplies an algorithm's contributions by factors of the clients' losses at x.

    All updates of a cohort are in memory at once. A client computes F_i(x) in one pass over its
    examples. Statistics of the model, which the engine averages, are not reweighted.

    Args:
      name: the wrapper's name, for messages.
      algorithm: the algorithm to wrap.
      factors: `(losses, memory) -> (a_i, memory)`, with a_i float[slots], at least 0. If all are 0,
        the algorithm gets a mean of 0.
      first: `population -> memory`, the server's memory before the first round.

    Raises:
      ValueError: for an algorithm whose rule is not a weighted mean.
    """
    loss_of = mean_loss(algorithm.problem, algorithm.local)

    def apply(vectors, own, client):
        parts = algorithm.traits.broadcast
        trees = zip(kinds(parts), split_update(parts, client.received, "broadcast"), strict=True)
        whole = jax.tree.structure(algorithm.problem.shapes().params)
        models = [t for kind, t in trees if kind == "model" and jax.tree.structure(t) == whole]
        reason = "its clients do not receive the whole global model"
        require(models, f"{name} does not fit this algorithm: {reason}; leave {name} out")
        loss = loss_of(client.data.model(models[0]), client.data, client.key)
        return Sent(extra={f"{name}.loss": loss})

    def change(cohort, memory, key, facts):
        loss = jnp.where(cohort.mask, cohort.extra[f"{name}.loss"], 0)
        weight = jnp.where(cohort.mask, cohort.weights[0], 1)  # safe to divide by
        losses = Losses(loss, weight, cohort.dispatches.client, cohort.mask)
        factor, memory = factors(losses, memory)
        return cohort._replace(factor=cohort.factor * factor), memory

    client = ClientStage(name, apply, place=OBSERVE)
    server = ServerStage(name, all=change, first=lambda _, population: first(population))
    server = server._replace(reweights=True)
    return add(name, algorithm, client=[client], server=[server], needs=["one exchange"])
