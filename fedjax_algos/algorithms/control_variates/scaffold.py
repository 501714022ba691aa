"""SCAFFOLD: control variates correct the clients' drift.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
https://arxiv.org/abs/1910.06378, with option II for the controls.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import (
    Algorithm,
    Local,
    Params,
    Problem,
    Traits,
    WeightedSum,
    Weighting,
    weighted_by,
)
from fedjax_algos.core.local_steps import Correction, in_order, local_training, uncorrected
from fedjax_algos.core.options import Positive
from fedjax_algos.core.trees import add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # x
    control: Params  # c
    num_clients: jax.Array  # float[]: N


class ScaffoldBroadcast(NamedTuple):
    params: Params  # x
    control: Params  # c


class Upload(NamedTuple):
    delta: Params  # x - y_i
    control_change: Params  # c_i+ - c_i


class Sums(NamedTuple):
    delta: WeightedSum
    control_change: Params  # never weighted: c stays the mean of all c_i


@algorithms.register
def scaffold(
    problem: Problem,
    local: Local,
    first: Correction = uncorrected,
    *,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """`y_i <- y_i - eta_l (g - c_i + c)`; `c_i+ = c_i - c + (x - y_i) / (K_i eta_l)`.

    Server: `x <- x - eta_g mean_i (x - y_i)`; `c <- c + (1/N) sum_S (c_i+ - c_i)`, where N is the
    number of all clients, so c is the mean of all c_i. All controls start at 0. The GHBM paper's
    released code leaves out the 1/N and diverges on quadratics with 20 clients.

    Args:
      problem: the model and the loss.
      local: how a client trains: K_i steps with learning rate eta_l.
      first: a correction of g before the controls; none by default.
      server_learning_rate: eta_g, above 0.
      weighting: weights of the mean delta: "uniform" as in the paper, or "examples" (proportional
        to n_i).
    """
    train = local_training(problem, local)
    weigh = weighted_by(weighting)

    def init(params, population):
        num_clients = jnp.asarray(population.num_clients, float)
        return ServerState(params, optax.tree.zeros_like(params), num_clients)

    def broadcast(server, group):
        return ScaffoldBroadcast(server.params, server.control)

    def client_init(params, key):
        return optax.tree.zeros_like(params)  # c_i

    def client_update(broadcast, c_i, data, dispatch, key):
        x, c = broadcast
        offset = optax.tree.sub(c, c_i)

        def corrected(gradient, local_params, step):
            return jax.tree.map(jnp.add, gradient, offset)

        trained = train(x, data, dispatch, key, correct=in_order(first, corrected))
        delta = optax.tree.sub(x, trained.params)
        work = dispatch.learning_rate * jnp.maximum(dispatch.num_steps, 1)  # K_i eta_l
        change = add_scaled(scale(-1, c), 1 / work, delta)
        return optax.tree.add(c_i, change), Upload(delta, change), trained.report

    def contribute(update, dispatch, staleness):
        return Sums(weigh(update.delta, dispatch, staleness), update.control_change)

    def server_update(server, sums, count, group):
        x, c, num_clients = server
        x = add_scaled(x, -server_learning_rate, sums.delta.mean())
        return ServerState(x, add_scaled(c, 1 / num_clients, sums.control_change), num_clients)

    return Algorithm(
        problem=problem,
        local=local,
        init=init,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        contribute=contribute,
        client_init=client_init,
        traits=Traits(
            parts=Upload("delta", "vector"),
            broadcast=ScaffoldBroadcast("model", "vector"),
            requires_sgd="its controls (x - y_i) / (K_i eta_l) are mean gradients only with sgd",
        ),
    )
