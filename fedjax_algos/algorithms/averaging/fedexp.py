"""FedExP: the server extrapolates where the clients' deltas disagree.

Jhunjhunwala et al., "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023,
https://arxiv.org/abs/2301.09604.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, WeightedSum, Weighting
from fedjax_algos.core.options import Positive
from fedjax_algos.core.trees import add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # the model that is evaluated
    iterate: Params  # x


class Sums(NamedTuple):
    delta: WeightedSum  # of x - y_i
    square: jax.Array  # float[]: sum of w_i |x - y_i|^2


@algorithms.register
def fedexp(
    problem: Problem,
    local: Local,
    *,
    epsilon: Positive = 1e-3,
    averaged: bool = True,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`x <- x - eta_g G` with `eta_g = max(1, sum_i p_i |x - y_i|^2 / (2 (|G|^2 + epsilon)))`.

    G is the mean of x - y_i with the weights p_i. As in the paper, the mean of the last two x is
    evaluated, and clients start from the last one; after the first round this is the mean of x_0
    and x_1, where the released code (https://github.com/Divyansh03/FedExP) evaluates x_1. That code
    multiplies epsilon by the size of the cohort, and by .998^2 after each round.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      epsilon: epsilon, above 0, in the unit of |G|^2; a larger one extrapolates less.
      averaged: whether the mean of the last two x is evaluated; if not, x is.
      weighting: p_i: "examples" (proportional to n_i) or "uniform".
    """
    frame = fedavg(problem, local, weighting=weighting)

    def contribute(update, dispatch, staleness):
        delta = frame.contribute(update, dispatch, staleness)
        return Sums(delta, delta.weight * optax.tree.norm(update, squared=True))

    def server_update(server, sums, count, group):
        delta = sums.delta.mean()
        square = optax.tree.norm(delta, squared=True)
        rate = sums.square / sums.delta.weight / (2 * (square + epsilon))
        x = add_scaled(server.iterate, -jnp.maximum(1, rate), delta)
        mean = scale(0.5, optax.tree.add(x, server.iterate))
        return ServerState(mean if averaged else x, x)

    return frame._replace(
        init=lambda params, population: ServerState(params, params),
        broadcast=lambda server, group: server.iterate,
        contribute=contribute,
        server_update=server_update,
    )
