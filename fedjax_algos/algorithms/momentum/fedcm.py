"""FedCM: clients mix the last round's mean delta into every local gradient.

Xu et al., "FedCM: Federated Learning with Client-level Momentum", 2021,
https://arxiv.org/abs/2106.10874.
"""

from typing import NamedTuple

import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Traits, Weighting
from fedjax_algos.core.local_steps import Correction, in_order, local_training, uncorrected
from fedjax_algos.core.options import Positive, PositiveShare
from fedjax_algos.core.trees import add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # x
    momentum: Params  # M, the last mean of x - y_i


@algorithms.register
def fedcm(
    problem: Problem,
    local: Local,
    first: Correction = uncorrected,
    *,
    alpha: PositiveShare = 0.1,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`y_i <- y_i - eta_l (alpha g + (1 - alpha) M / (eta_l K_i))`.

    Server: `M <- mean_i (x - y_i)` from M = 0, `x <- x - eta_g M`. The GHBM paper's released code
    broadcasts only one layer of M; here the server broadcasts all of M.

    Args:
      problem: the model and the loss.
      local: how a client trains: K_i steps with learning rate eta_l.
      first: a correction of g before the mixture; none by default.
      alpha: alpha, the weight of the client's own gradient, above 0 and at most 1; 1 is FedAvg.
      server_learning_rate: eta_g, above 0.
      weighting: weights of M: "examples" (proportional to n_i) or "uniform".
    """
    train = local_training(problem, local)

    def init(params, population):
        return ServerState(params, optax.tree.zeros_like(params))

    def client_update(broadcast, state, data, dispatch, key):
        x, momentum = broadcast
        work = dispatch.learning_rate * jnp.maximum(dispatch.num_steps, 1)  # eta_l K_i
        term = scale((1 - alpha) / work, momentum)

        def mixed(gradient, local_params, step):
            return add_scaled(term, alpha, gradient)

        trained = train(x, data, dispatch, key, correct=in_order(first, mixed))
        return state, optax.tree.sub(x, trained.params), trained.report

    def server_update(server, sums, count, group):
        delta = sums.mean()
        return ServerState(add_scaled(server.params, -server_learning_rate, delta), delta)

    frame = fedavg(problem, local, weighting=weighting)
    return frame._replace(
        init=init,
        broadcast=lambda server, group: server,
        client_update=client_update,
        server_update=server_update,
        traits=Traits(
            broadcast=ServerState("model", "vector"),
            requires_sgd="its momentum M / (eta_l K_i) is a mean gradient only with sgd",
        ),
    )
