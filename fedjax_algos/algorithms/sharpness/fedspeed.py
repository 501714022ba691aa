"""FedSpeed: a prox-correction and a perturbed gradient, for many local steps.

Sun et al., "FedSpeed: Larger Local Interval, Less Communication Round, and Higher Generalization
Accuracy", ICLR 2023, https://arxiv.org/abs/2302.10429, Algorithm 1.
"""

from typing import Literal

import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.control_variates.feddyn import feddyn
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import NonNegative, Positive, UnitInterval
from fedjax_algos.core.trees import add_scaled, scale, unit


@algorithms.register
def fedspeed(
    problem: Problem,
    local: Local,
    *,
    rho: NonNegative = 0.1,
    alpha: UnitInterval = 1.0,
    lambda_: Positive = 10.0,
    duals: Literal["cohort", "all"] = "cohort",
    normalised: bool = True,
) -> Algorithm:
    """`y <- y - eta_l (q - g_hat_i + (y - x) / lambda)`; x is the mean of `y_i - lambda g_hat_i`.

    `q = (1 - alpha) g(y) + alpha g(y + e)` on one batch, with `e = rho g(y) / |g(y)|`. After the
    local steps `g_hat_i <- g_hat_i - (y_i - x) / lambda`, from 0.

    The paper's e is `rho g(y)`, and its mean of both terms is over the cohort. The released code
    (https://github.com/woodenchild95/FL-Simulator) normalises e, has alpha = 1, and adds the mean
    of `-lambda g_hat_i` over all clients, which is FedDyn's server. At full participation both
    means are equal.

    Args:
      problem: the model and the loss.
      local: how a client trains, with learning rate eta_l.
      rho: rho, at least 0: the length of e, in the unit of the params, or its factor.
      alpha: alpha, the weight of the perturbed gradient, 0 to 1.
      lambda_: lambda, above 0; a larger one makes the proximal term weaker.
      duals: the mean of `-lambda g_hat_i` that x contains: over the "cohort" as in the paper, or
        over "all" clients as in the released code. With "all" a client sends x - y_i alone, so
        prefer it if updates are clipped.
      normalised: whether e has the length rho; if not, it is `rho g(y)`.
    """

    def mixed(gradient, y, step):
        direction = unit(gradient) if normalised else gradient
        moved = step.gradient_at(add_scaled(y, rho, direction))
        return add_scaled(scale(1 - alpha, gradient), alpha, moved)

    if duals == "all":
        return feddyn(problem, local, mixed, alpha=1 / lambda_)
    train = local_training(problem, local)

    def client_init(params, key):
        return optax.tree.zeros_like(params)  # g_hat_i

    def client_update(x, g_hat, data, dispatch, key):
        def corrected(gradient, y, step):
            quasi = optax.tree.sub(mixed(gradient, y, step), g_hat)
            return add_scaled(quasi, 1 / lambda_, optax.tree.sub(y, x))

        trained = train(x, data, dispatch, key, correct=corrected)
        delta = optax.tree.sub(x, trained.params)
        g_hat = add_scaled(g_hat, 1 / lambda_, delta)
        return g_hat, add_scaled(delta, lambda_, g_hat), trained.report

    frame = fedavg(problem, local, weighting="uniform")
    return frame._replace(client_init=client_init, client_update=client_update)
