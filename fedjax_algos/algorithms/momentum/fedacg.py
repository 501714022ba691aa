"""FedACG: the server sends a model ahead of its own, by its momentum.

Kim et al., "Communication-Efficient Federated Learning with Accelerated Client Gradient", CVPR
2024, https://arxiv.org/abs/2201.03172.
"""

from typing import NamedTuple

import optax

from fedjax_algos.algorithms.averaging.fedprox import fedprox
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting
from fedjax_algos.core.options import Decay, NonNegative
from fedjax_algos.core.trees import add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # x
    momentum: Params  # m


@algorithms.register
def fedacg(
    problem: Problem,
    local: Local,
    *,
    lambda_: Decay = 0.85,
    beta: NonNegative = 0.01,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """Clients minimise `f_i(y) + beta/2 |y - z|^2` from `z = x - lambda m`.

    Server: `m <- lambda m + mean_i (z - y_i)` from m = 0, `x <- x - m`, so x is the mean of the
    y_i. Only z is sent, and x is evaluated. The released code (https://github.com/geehokim/FedACG)
    has no 1/2, so its beta is half of this one, and it also lowers the rate in each local epoch.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      lambda_: lambda, the decay of m, from 0 to below 1; 0 is FedProx.
      beta: beta, at least 0.
      weighting: weights of the mean: "uniform" or "examples" (proportional to n_i).
    """

    def broadcast(server, group):
        return add_scaled(server.params, -lambda_, server.momentum)  # z

    def server_update(server, sums, count, group):
        m = optax.tree.add(scale(lambda_, server.momentum), sums.mean())
        return ServerState(optax.tree.sub(server.params, m), m)

    frame = fedprox(problem, local, mu=beta, weighting=weighting)
    return frame._replace(
        init=lambda params, population: ServerState(params, optax.tree.zeros_like(params)),
        broadcast=broadcast,
        server_update=server_update,
    )
