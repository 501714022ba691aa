"""FedGBO: clients train with a global optimiser whose statistics stay fixed in a round.

Mills et al., "Accelerating Federated Learning with a Global Biased Optimiser", IEEE Transactions
on Computers 2023, https://arxiv.org/abs/2108.09134.

Where paper and released code differ, the code counts: v tracks g^2 (the printed Table II has g),
starts at 1, and eps stands outside the root. Beyond the paper: with unequal K_i or rates the server
divides by the mean of rate * K_i, so the inverse is still the mean gradient over all steps (each
step weighing p_i times its rate), and `server_learning_rate` scales the mean step.
"""

from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.global_optimizers.biased_optimizers import (
    BiasedOptimizer,
    Name,
    accumulate,
    frozen,
    named,
)
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting, weighted_by
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import Decay, Positive


class ServerState(NamedTuple):
    params: Params  # x
    optimizer_statistics: Any  # s


class Upload(NamedTuple):
    step: Any  # x - y_i, () where it is not sent
    gradient: Any  # mean gradient of the K_i steps, () where it is not sent


class Sums(NamedTuple):
    step: Any  # sum of p_i (x - y_i)
    gradient: Any  # sum of p_i rate K_i gbar_i
    weight: jax.Array  # sum of p_i
    work: jax.Array  # sum of p_i rate K_i


@algorithms
def fedgbo(
    problem: Problem,
    local: Local,
    *,
    optimizer: (Name | BiasedOptimizer | optax.GradientTransformation) = "sgdm",
    beta: Decay = 0.9,
    b2: Decay = 0.99,
    eps: Positive = 1e-3,
    upload: Literal["model", "gradient", "both"] = "model",
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """Clients step with U(rate, g, s) for fixed s; the server inverts the mean step to a gradient.

    Client, K times from x: `y_i <- y_i - U(rate, g, s)`. Server:
    `x' = mean_i y_i`, `g~ = I(x, x', s, K, rate)`, `s <- T(g~, s)`, `x <- x'`.

    Args:
      problem: what is learned.
      local: how a client trains; `local.transform` acts on the gradients that U reads.
      optimizer: U, T and I by name, as a `BiasedOptimizer`, or any optax transformation without
        its rate (which has no I; its `update` gives U and T).
      beta: decay of SGDm's m, RMSProp's v or Adam's m.
      b2: decay of Adam's v.
      eps: added to the root of v.
      upload: "model" uses the inverse. "gradient" sends the mean gradient instead, and the server
        makes the mean step itself: right where U is affine in g and does not read the params, as
        for the three. "both" sends both and needs nothing of U.
      server_learning_rate: 1 in the paper.
      weighting: "uniform" as in the paper, or "examples".

    Raises:
      ValueError: if the upload is "model" and the optimiser has no inverse.
    """
    chosen: Any = optimizer
    if isinstance(chosen, str):
        chosen = named(cast(Name, chosen), beta=beta, b2=b2, eps=eps)
    inverse = getattr(chosen, "inverse", None)
    if upload == "model" and inverse is None:
        raise ValueError(
            f"fedgbo: {type(chosen).__name__} has no inverse for upload='model'; give "
            "upload='both', or 'gradient' if its update is affine in the gradient"
        )
    transform = chosen.transform() if isinstance(chosen, BiasedOptimizer) else chosen
    train = local_training(problem, local)
    client_transform = optax.chain(local.transform, accumulate(), frozen(transform))
    weigh = weighted_by(weighting)

    def init(params, population):
        del population
        return ServerState(params, transform.init(params))

    def broadcast(server, group):
        del group
        return server

    def client_update(broadcast, state, data, visit, key):
        x, s = broadcast
        start = (local.transform.init(x), optax.tree.zeros_like(x), s)
        trained = train(x, data, visit, key, transform=client_transform, transform_state=start)
        step = optax.tree.sub(x, trained.params)
        gradient = jax.tree.map(
            lambda total: total / jnp.maximum(visit.num_steps, 1).astype(total.dtype),
            trained.transform_state[1],
        )
        update = Upload(step if upload != "gradient" else (), gradient if upload != "model" else ())
        return state, update, trained.report

    def contribute(update, visit, staleness):
        step, weight = weigh(update.step, visit, staleness)
        work = weight * visit.learning_rate * visit.num_steps
        gradient = jax.tree.map(lambda g: work.astype(g.dtype) * g, update.gradient)
        return Sums(step, gradient, weight, work)

    def server_update(server, sums, count, group):
        del count, group
        x, s = server

        def divide(tree, by):
            return jax.tree.map(lambda leaf: leaf / by.astype(leaf.dtype), tree)

        mean_work = sums.work / sums.weight  # rate * K
        if upload == "model":
            step = divide(sums.step, sums.weight)
            gradient = inverse(divide(step, mean_work), s)  # I
        else:
            gradient = divide(sums.gradient, sums.work)
        direction, tracked = transform.update(gradient, s, x)  # U at the mean gradient, T
        if upload == "gradient":
            step = jax.tree.map(lambda u: mean_work.astype(u.dtype) * u, direction)
        elif upload == "both":
            step = divide(sums.step, sums.weight)
        x = jax.tree.map(lambda x, d: x - server_learning_rate * d, x, step)
        return ServerState(x, tracked)

    return Algorithm(
        problem, local, init, broadcast, client_update, server_update, contribute=contribute
    )
