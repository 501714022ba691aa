"""FedSMOO: dynamic regularisers for the model and for its perturbation.

Sun et al., "Dynamic Regularized Sharpness Aware Minimization in Federated Learning: Approaching
Global Consistency and Smooth Landscape", ICML 2023, https://arxiv.org/abs/2305.11584.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.control_variates.feddyn import Sums
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Traits
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import NonNegative, Positive
from fedjax_algos.core.trees import add_scaled, scale, unit


class ServerState(NamedTuple):
    params: Params  # x
    perturbation: Params  # s
    correction: Params  # h, the mean of all h_i
    num_clients: jax.Array  # float[]: N


class SmooBroadcast(NamedTuple):
    params: Params  # x
    perturbation: Params  # s


class ClientState(NamedTuple):
    correction: Params  # h_i
    dual: Params  # mu_i


class Upload(NamedTuple):
    delta: Params  # x - y_i
    dual: Params  # mu_i


@algorithms.register
def fedsmoo(
    problem: Problem, local: Local, *, rho: NonNegative = 0.1, lambda_: Positive = 10.0
) -> Algorithm:
    """`y <- y - eta_l (g(y + e) + (h_i + y - x) / lambda)`, with `e = rho r / |r|`.

    In each step `r = g(y) - mu_i - s`, then `mu_i <- mu_i + e - s`. After the local steps
    `h_i <- h_i + y_i - x`. Server: `s <- rho mean_S mu_i / |mean_S mu_i|`,
    `x <- mean_S y_i + mean h_i` over all clients. s, mu_i and h_i start at 0.

    This is the rule of the released code (https://github.com/woodenchild95/FL-Simulator), which
    adds 1e-7 to both norms. Its comments say that it leaves a term with e out of s.

    Args:
      problem: the model and the loss.
      local: how a client trains, with learning rate eta_l.
      rho: rho, at least 0: the length of e, in the unit of the params. 0 is FedDyn with
        alpha = 1 / lambda.
      lambda_: lambda, above 0; a larger one makes the regulariser weaker.
    """
    train = local_training(problem, local)

    def init(params, population):
        zeros = optax.tree.zeros_like(params)
        return ServerState(params, zeros, zeros, jnp.asarray(population.num_clients, float))

    def broadcast(server, group):
        return SmooBroadcast(server.params, server.perturbation)

    def client_init(params, key):
        zeros = optax.tree.zeros_like(params)
        return ClientState(zeros, zeros)

    def client_update(broadcast, state, data, dispatch, key):
        x, s = broadcast
        offset = optax.tree.sub(state.correction, x)  # h_i - x

        def corrected(gradient, y, step, mu):
            e = scale(rho, unit(optax.tree.sub(optax.tree.sub(gradient, mu), s)))
            gradient = step.gradient_at(optax.tree.add(y, e))
            mu = optax.tree.sub(optax.tree.add(mu, e), s)
            return add_scaled(gradient, 1 / lambda_, optax.tree.add(offset, y)), mu

        given = {"correct": corrected, "correct_state": state.dual}
        trained = train(x, data, dispatch, key, **given)
        delta, mu = optax.tree.sub(x, trained.params), trained.correct_state
        h_i = optax.tree.sub(state.correction, delta)
        return ClientState(h_i, mu), Upload(delta, mu), trained.report

    def server_update(server, sums, count, group):
        mean = sums.delta.mean()
        h = add_scaled(server.correction, -1 / server.num_clients, sums.delta.total.delta)
        x = optax.tree.add(optax.tree.sub(server.params, mean.delta), h)
        return ServerState(x, scale(rho, unit(mean.dual)), h, server.num_clients)

    frame = fedavg(problem, local, weighting="uniform")
    return frame._replace(
        init=init,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        contribute=lambda *arguments: Sums(frame.contribute(*arguments)),
        client_init=client_init,
        traits=Traits(Upload("delta", "vector"), SmooBroadcast("model", "vector")),
    )
