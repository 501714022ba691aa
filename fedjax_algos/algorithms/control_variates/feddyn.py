"""FedDyn: a dynamic regulariser aligns the clients' optima with the global one.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021,
https://arxiv.org/abs/2111.04263.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, weighted_by
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import Positive
from fedjax_algos.core.trees import add_scaled


class ServerState(NamedTuple):
    params: Params  # x
    correction: Params  # h, the mean of all h_i
    num_clients: jax.Array  # N


@algorithms
def feddyn(problem: Problem, local: Local, *, alpha: Positive = 0.01) -> Algorithm:
    """SGD on `F_i(y) - <h_i, y> + alpha/2 |y - x|^2`; then `h_i <- h_i - alpha (y_i - x)`.

    Server: `h <- h - (alpha/N) sum_S (y_i - x)`, `x <- mean_S y_i - h / alpha`, with the uniform
    mean; all h start at 0. The authors' code divides alpha by a client's relative size and
    evaluates the mean of the y_i; here alpha is the same for all and the evaluated model is x. The
    GHBM paper's code has the opposite sign for h and a mean for the sum, and diverges.
    """
    train = local_training(problem, local)

    def init(params, population):
        num_clients = jnp.asarray(population.num_clients, float)
        return ServerState(params, optax.tree.zeros_like(params), num_clients)

    def broadcast(server, group):
        del group
        return server.params

    def client_update(x, own, data, visit, key):
        def regularised(gradient, local_params, step):
            del step
            return jax.tree.map(
                lambda g, h_i, y, x: g - h_i + alpha * (y - x), gradient, own, local_params, x
            )

        trained = train(x, data, visit, key, correct=regularised)
        step = optax.tree.sub(x, trained.params)
        return add_scaled(own, alpha, step), step, trained.report

    def server_update(server, sums, count, group):
        del count, group
        x, h, num_clients = server
        h = add_scaled(h, alpha / num_clients, sums.total)
        averaged = optax.tree.sub(x, sums.mean())  # mean_S y_i
        return ServerState(add_scaled(averaged, -1 / alpha, h), h, num_clients)

    return Algorithm(
        problem,
        local,
        init,
        broadcast,
        client_update,
        server_update,
        contribute=weighted_by("uniform"),
        client_init=lambda params, key: optax.tree.zeros_like(params),
    )
