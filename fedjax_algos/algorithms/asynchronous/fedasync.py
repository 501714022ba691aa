"""FedAsync: the server steps at every arrival, less the staler it is.

Xie et al., "Asynchronous Federated Optimization", 2019, https://arxiv.org/abs/1903.03934, and its
form in FedCompass (Li et al., ICLR 2024, https://arxiv.org/abs/2309.14675).
"""

from typing import Annotated, Literal, NamedTuple

import jax
import optax

from fedjax_algos.algorithms.asynchronous.staleness import (
    Share,
    clients_in,
    polynomial,
    stale_share,
)
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import NonNegative, Range
from fedjax_algos.core.trees import add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # w
    divisor: jax.Array  # of the sums: 1, or m


class Mixture(NamedTuple):
    total: Params  # sum of st w_i
    weight: jax.Array  # sum of st


@algorithms
def fedasync(
    problem: Problem,
    local: Local,
    *,
    alpha: Annotated[float, Range(0, 1, low_open=True)] = 0.9,
    exponent: NonNegative = 0.5,
    form: Literal["delta", "mixing"] = "delta",
    weighting: Share = "examples",
) -> Algorithm:
    """`w <- w - st(d) p_i (x - w_i)` at each arrival, with `st(d) = alpha (d + 1)^(-exponent)`.

    d counts the server steps since the client received x.

    Args:
      problem: what is learned.
      local: how a client trains.
      alpha: the weight of a fresh update.
      exponent: a; the FedCompass paper's released code has the opposite sign by default, under
        which stale updates count more.
      form: "delta" as above, FedCompass's; "mixing" is the original's `w <- (1 - st) w + st w_i`
        without p_i, which needs one arrival a server step.
      weighting: p_i of the delta form: "examples" is n_i over ALL clients' n, "uniform" is 1/m.
    """
    train = local_training(problem, local)

    def init(params, population):
        return ServerState(params, clients_in(weighting, population.num_clients))

    def broadcast(server, group):
        del group
        return server.params

    def client_update(x, state, data, visit, key):
        trained = train(x, data, visit, key)
        mixing = form == "mixing"
        update = trained.params if mixing else optax.tree.sub(x, trained.params)
        return state, update, trained.report

    def mix(update, visit, staleness):
        weight = polynomial(staleness.astype(visit.share.dtype), alpha, exponent)
        return Mixture(scale(weight, update), weight)

    def server_update(server, sums, count, group):
        del count, group
        if form == "mixing":
            kept = scale(1 - sums.weight, server.params)
            return server._replace(params=optax.tree.add(kept, sums.total))
        return server._replace(params=add_scaled(server.params, -1 / server.divisor, sums.total))

    contribute = mix if form == "mixing" else stale_share(alpha, exponent, weighting)
    return Algorithm(
        problem, local, init, broadcast, client_update, server_update, contribute=contribute
    )
