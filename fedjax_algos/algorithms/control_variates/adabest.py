"""AdaBest: each client estimates its drift from its last local update, and lets it decay.

Varno et al., "AdaBest: Minimizing Client Drift in Federated Learning via Adaptive Bias Estimation",
ECCV 2022, https://arxiv.org/abs/2204.13170.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Decay, NonNegative
from fedjax_algos.core.trees import add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # x
    average: Params  # the last mean of the y_i; x_0 at first


class ClientState(NamedTuple):
    correction: Params  # h_i
    last_round: jax.Array  # int32[]: t'_i, counted from 1; 0 before the first dispatch


@algorithms.register
def adabest(
    problem: Problem,
    local: Local,
    *,
    mu: NonNegative = 0.02,
    beta: Decay = 0.8,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`y_i <- y_i - eta_l (g - h_i)`; then `h_i <- h_i / (t - t'_i) + mu (x - y_i)`.

    Server, with a the mean of the y_i: `h = beta (a_previous - a)`, `x <- a - h`. t'_i is the round
    of the client's previous dispatch; the GHBM paper's released code never updates it.

    Args:
      problem: the model and the loss.
      local: how a client trains: with learning rate eta_l.
      mu: mu, the weight of the newest delta in h_i, at least 0.
      beta: beta, the server's factor, from 0 to below 1. With mu = beta = 0 this is FedAvg.
      weighting: weights of a, the mean of the y_i: "examples" (proportional to n_i) or
        "uniform".
    """
    train = local_training(problem, local)

    def init(params, population):
        return ServerState(params, params)

    def client_init(params, key):
        return ClientState(optax.tree.zeros_like(params), jnp.int32(0))

    def client_update(x, own, data, dispatch, key):
        def corrected(gradient, local_params, step):
            return optax.tree.sub(gradient, own.correction)

        trained = train(x, data, dispatch, key, correct=corrected)
        delta = optax.tree.sub(x, trained.params)
        this_round = dispatch.server_step + 1  # t
        gap = jnp.maximum(this_round - own.last_round, 1).astype(dispatch.share.dtype)
        correction = add_scaled(scale(1 / gap, own.correction), mu, delta)
        return ClientState(correction, this_round), delta, trained.report

    def server_update(server, sums, count, group):
        average = optax.tree.sub(server.params, sums.mean())
        h = scale(beta, optax.tree.sub(server.average, average))
        return ServerState(optax.tree.sub(average, h), average)

    frame = fedavg(problem, local, weighting=weighting)
    return frame._replace(
        init=init, client_update=client_update, server_update=server_update, client_init=client_init
    )
