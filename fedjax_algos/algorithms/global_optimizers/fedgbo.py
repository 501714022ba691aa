"""FedGBO: clients train with a global optimiser whose statistics stay fixed in a round.

Mills et al., "Accelerating Federated Learning with a Global Biased Optimiser", IEEE Transactions
on Computers 2023, https://arxiv.org/abs/2108.09134.

Where the paper and the released code differ, we follow the code: v tracks g^2 (the printed Table II
has g) and starts at 1, and eps is added outside the root. Beyond the paper: with unequal K_i or
rates the server divides by the mean of eta_l K_i, so the inverse is still the mean gradient over
all steps (each step with the weight p_i times its rate). `server_learning_rate` scales the mean
delta.
"""

from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.global_optimizers.biased_optimizers import (
    OWN_OPTIMIZER,
    BiasedOptimizer,
    OptimizerName,
    ServerState,
    biased_optimizer,
    frozen,
    sum_gradients,
)
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm, Asynchrony, Local, Problem, Traits, Weighting, weighted_by
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.optimizers import check_transform
from fedjax_algos.core.options import Decay, Positive
from fedjax_algos.core.trees import scale


class Upload(NamedTuple):
    delta: Any  # x - y_i, () if it is not sent
    gradient: Any  # mean gradient of the K_i steps, () if it is not sent


class Sums(NamedTuple):
    delta: Any  # sum of p_i (x - y_i)
    gradient: Any  # sum of p_i eta_l K_i gbar_i
    weight: jax.Array  # float[]: sum of p_i
    work: jax.Array  # float[]: sum of p_i eta_l K_i


def _divide(tree, by):
    return jax.tree.map(lambda leaf: leaf / by.astype(leaf.dtype), tree)


@algorithms.register
def fedgbo(
    problem: Problem,
    local: Local,
    *,
    optimizer: OptimizerName | BiasedOptimizer | optax.GradientTransformation = "sgdm",
    beta: Decay = 0.9,
    b2: Decay = 0.99,
    eps: Positive = 1e-3,
    upload: Literal["model", "gradient", "both"] = "model",
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """Clients step with U(eta_l, g, s) for fixed s; the server inverts the mean to a gradient.

    Client, K times from x: `y_i <- y_i - U(eta_l, g, s)`. Server:
    `x' = mean_i y_i`, `g~ = I(x, x', s, K, eta_l)`, `s <- T(g~, s)`, `x <- x'`.

    Args:
      problem: the model and the loss.
      local: how a client trains: K steps with learning rate eta_l (eta in the paper);
        `local.transform` acts on the gradients that U reads.
      optimizer: U, T and I by name, as a `BiasedOptimizer`, or any optax transformation without a
        learning rate, which has no I; its `update` gives U and T.
      beta: the decay of SGDm's m, of RMSProp's v, or of Adam's m (beta_1), from 0 to below 1.
      b2: beta_2, the decay of Adam's v, from 0 to below 1.
      eps: epsilon, above 0, added to the root of v; in units of g.
      upload: "model" uses the inverse. "gradient" sends the mean gradient instead, and the server
        computes the mean delta itself. This is right if U is affine in g and does not read the
        params, as for the three named optimisers. "both" sends both and works for any U.
      server_learning_rate: the factor of the mean delta, above 0; 1 in the paper.
      weighting: p_i over the cohort: "uniform" as in the paper, or "examples" (proportional to
        n_i).

    Raises:
      TypeError: for an optimiser that is not an optax transformation.
      ValueError: if the upload is "model" and the optimiser has no inverse, or if the optimiser
        points against the gradient because it includes a learning rate.
    """
    chosen: Any = optimizer
    if isinstance(chosen, str):
        chosen = biased_optimizer(cast(OptimizerName, chosen), beta=beta, b2=b2, eps=eps)
    inverse = getattr(chosen, "inverse", None)
    found = f"fedgbo: {type(chosen).__name__} has no inverse for upload='model'"
    fix = "give upload='both', or 'gradient' if its update is affine in the gradient"
    require(upload != "model" or inverse is not None, f"{found}; {fix}")
    if not isinstance(chosen, BiasedOptimizer):
        check_transform("fedgbo: optimizer", chosen, problem)
    transform = chosen.transform() if isinstance(chosen, BiasedOptimizer) else chosen
    train = local_training(problem, local)
    client_transform = optax.chain(local.transform, sum_gradients(), frozen(transform))
    weigh = weighted_by(weighting)

    def init(params, population):
        return ServerState(params, transform.init(params))

    def client_update(broadcast, state, data, dispatch, key):
        x, s = broadcast
        start = (local.transform.init(x), optax.tree.zeros_like(x), s)
        trained = train(x, data, dispatch, key, transform=client_transform, transform_state=start)
        delta = optax.tree.sub(x, trained.params)
        gradient = _divide(trained.transform_state[1], jnp.maximum(dispatch.num_steps, 1))
        sent = Upload(delta if upload != "gradient" else (), gradient if upload != "model" else ())
        return state, sent, trained.report

    def contribute(update, dispatch, staleness):
        delta, weight = weigh(update.delta, dispatch, staleness)
        work = weight * dispatch.learning_rate * dispatch.num_steps
        gradient = scale(work, update.gradient)
        return Sums(delta, gradient, weight, work)

    def server_update(server, sums, count, group):
        x, s = server

        mean_work = sums.work / sums.weight  # eta_l K
        if upload == "model":
            delta = _divide(sums.delta, sums.weight)
            gradient = inverse(_divide(delta, mean_work), s)  # I
        else:
            gradient = _divide(sums.gradient, sums.work)
        direction, tracked = transform.update(gradient, s, x)  # U at the mean gradient, T
        if upload == "gradient":
            delta = scale(mean_work, direction)
        elif upload == "both":
            delta = _divide(sums.delta, sums.weight)
        x = jax.tree.map(lambda x, d: x - server_learning_rate * d, x, delta)
        return ServerState(x, tracked)

    parts = Upload("delta" if upload != "gradient" else (), "vector" if upload != "model" else ())
    reason = "the inverse needs the statistics that each client started from, and the server's "
    reason += "have changed since; give upload=gradient"
    only_in_rounds = Asynchrony(allowed=("barrier",), reason=reason)
    asynchrony = Asynchrony() if upload == "gradient" else only_in_rounds
    # the inverse needs the statistics that clients step with
    sent = ServerState("model", "count" if upload == "model" else getattr(chosen, "parts", "count"))
    return Algorithm(
        problem=problem,
        local=local,
        init=init,
        broadcast=lambda server, group: server,
        client_update=client_update,
        server_update=server_update,
        contribute=contribute,
        traits=Traits(parts, sent, asynchrony=asynchrony, requires_sgd=OWN_OPTIMIZER),
    )
