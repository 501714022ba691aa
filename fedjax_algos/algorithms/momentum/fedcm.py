"""FedCM: the last round's mean step is mixed into every local gradient.

Xu et al., "FedCM: Federated Learning with Client-level Momentum", 2021,
https://arxiv.org/abs/2106.10874.
"""

from typing import Annotated, NamedTuple

import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting, weighted_by
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import Positive, Range
from fedjax_algos.core.trees import add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # x
    momentum: Params  # M, the last mean of x - y_i


@algorithms
def fedcm(
    problem: Problem,
    local: Local,
    *,
    alpha: Annotated[float, Range(0, 1, low_open=True)] = 0.1,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`y_i <- y_i - rate (alpha g + (1 - alpha) M / (rate K_i))`; M is the last round's mean step.

    Server: `M <- mean_i (x - y_i)` from M = 0, `x <- x - server_learning_rate M`. Released code of
    the GHBM paper sends only one layer of M; here all of it travels.
    """
    train = local_training(problem, local)

    def init(params, population):
        del population
        return ServerState(params, optax.tree.zeros_like(params))

    def broadcast(server, group):
        del group
        return server

    def client_update(broadcast, state, data, visit, key):
        x, momentum = broadcast
        work = visit.learning_rate * jnp.maximum(visit.num_steps, 1)  # rate K_i
        term = scale((1 - alpha) / work, momentum)

        def mixed(gradient, local_params, step):
            del local_params, step
            return add_scaled(term, alpha, gradient)

        trained = train(x, data, visit, key, correct=mixed)
        return state, optax.tree.sub(x, trained.params), trained.report

    def server_update(server, sums, count, group):
        del count, group
        step = sums.mean()
        return ServerState(add_scaled(server.params, -server_learning_rate, step), step)

    return Algorithm(
        problem,
        local,
        init,
        broadcast,
        client_update,
        server_update,
        contribute=weighted_by(weighting),
    )
