"""SCAFFOLD: control variates correct the clients' drift.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
https://arxiv.org/abs/1910.06378, with option II for the controls.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, WeightedSum, Weighting, weighted_by
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import Positive
from fedjax_algos.core.trees import add, add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # x
    control: Params  # c
    num_clients: jax.Array  # N


class Broadcast(NamedTuple):
    params: Params
    control: Params


class Upload(NamedTuple):
    step: Params  # x - y_i
    control_change: Params  # c_i+ - c_i


class Sums(NamedTuple):
    step: WeightedSum
    control_change: Params  # never weighted: c stays the mean of all c_i


@algorithms
def scaffold(
    problem: Problem,
    local: Local,
    *,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """`y_i <- y_i - rate (g - c_i + c)`; `c_i <- c_i - c + (x - y_i) / (K_i rate)`.

    Server: `x <- x - server_learning_rate mean_i (x - y_i)`; `c <- c + (1/N) sum_S (c_i+ - c_i)`
    with N all clients, so that c is the mean of the c_i. Released code of the GHBM paper leaves out
    the 1/N, and diverges on quadratics with 20 clients. All controls start at 0.
    """
    train = local_training(problem, local)
    weigh = weighted_by(weighting)

    def init(params, population):
        num_clients = jnp.asarray(population.num_clients, float)
        return ServerState(params, optax.tree.zeros_like(params), num_clients)

    def broadcast(server, group):
        del group
        return Broadcast(server.params, server.control)

    def client_update(broadcast, own, data, visit, key):
        x, c = broadcast

        offset = optax.tree.sub(c, own)  # c - c_i

        def corrected(gradient, local_params, step):
            del local_params, step
            return add(gradient, offset)

        trained = train(x, data, visit, key, correct=corrected)
        step = optax.tree.sub(x, trained.params)
        work = visit.learning_rate * jnp.maximum(visit.num_steps, 1)  # K_i rate
        change = add_scaled(scale(-1, c), 1 / work, step)
        return optax.tree.add(own, change), Upload(step, change), trained.report

    def contribute(update, visit, staleness):
        return Sums(weigh(update.step, visit, staleness), update.control_change)

    def server_update(server, sums, count, group):
        del count, group
        x, c, num_clients = server
        x = add_scaled(x, -server_learning_rate, sums.step.mean())
        return ServerState(x, add_scaled(c, 1 / num_clients, sums.control_change), num_clients)

    return Algorithm(
        problem,
        local,
        init,
        broadcast,
        client_update,
        server_update,
        contribute=contribute,
        client_init=lambda params, key: optax.tree.zeros_like(params),
    )
