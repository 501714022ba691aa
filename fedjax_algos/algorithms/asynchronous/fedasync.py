"""FedAsync: each arrival is a server step, weighted by the staleness of the update.

Xie et al., "Asynchronous Federated Optimization", 2019, https://arxiv.org/abs/1903.03934, and its
form in FedCompass (Li et al., ICLR 2024, https://arxiv.org/abs/2309.14675).
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import (
    Algorithm,
    Asynchrony,
    Dispatch,
    Local,
    Params,
    Problem,
    Traits,
    Update,
)
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import PositiveShare, Real
from fedjax_algos.core.trees import add_scaled, scale

StaleWeighting = Literal["examples", "uniform"]  # p_i: n_i / n over ALL clients, or 1/m


class ServerState(NamedTuple):
    params: Params  # w
    divisor: jax.Array  # float[]: 1, or m; divides the sums


class MixingSum(NamedTuple):
    total: Params  # sum of st w_i
    weight: jax.Array  # float[]: sum of st


def staleness_weight(staleness: jax.Array, alpha, exponent) -> jax.Array:
    """Returns `alpha (d + 1)^(-exponent)`, float[...], for a staleness d in server steps."""
    return alpha * (1.0 + staleness) ** (-exponent)


def weighted_by_staleness(
    alpha, exponent, weighting: StaleWeighting
) -> Callable[[Update, Dispatch, jax.Array], Update]:
    """Returns a `contribute` with the weight `st(d_i) p_i`; p_i is 1 if weighted "uniform".

    The p_i are not renormalised in a group: a group moves the model only by its share of all
    clients. The server divides the sum by `weight_divisor`.
    """

    def contribute(update, dispatch, staleness):
        share = dispatch.share if weighting == "examples" else jnp.ones_like(dispatch.share)
        weight = staleness_weight(staleness.astype(share.dtype), alpha, exponent) * share
        return scale(weight, update)

    return contribute


def weight_divisor(weighting: StaleWeighting, num_clients: int) -> jax.Array:
    """Returns the divisor of the sum, float[]: m if p_i is 1/m ("uniform"), else 1."""
    return jnp.asarray(num_clients if weighting == "uniform" else 1, float)


@algorithms.register
def fedasync(
    problem: Problem,
    local: Local,
    *,
    alpha: PositiveShare = 0.9,
    exponent: Real = 0.5,
    form: Literal["delta", "mixing"] = "delta",
    weighting: StaleWeighting = "examples",
) -> Algorithm:
    """`w <- w - st(d) p_i (x - w_i)` at each arrival, with `st(d) = alpha (d + 1)^(-a)`.

    x is the model that client i received, and d the number of server steps since then.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      alpha: the weight of a fresh update, above 0 and at most 1.
      exponent: a. Above 0, as in both papers, stale updates have smaller weights; below 0, larger
        ones, which may exceed 1. The configurations in FedCompass's released code
        (https://github.com/APPFL/FedCompass) have `(d + 1)^(+.5)`, which is -0.5 here.
      form: "delta" is the rule above, FedCompass's; "mixing" is the original's
        `w <- (1 - st) w + st w_i`, which has no p_i and needs one arrival in each server step.
      weighting: p_i in the form "delta": "examples" is n_i / n over ALL clients, "uniform" is 1/m.
    """
    train = local_training(problem, local)

    def init(params, population):
        return ServerState(params, weight_divisor(weighting, population.num_clients))

    def client_update(x, state, data, dispatch, key):
        trained = train(x, data, dispatch, key)
        update = trained.params if form == "mixing" else optax.tree.sub(x, trained.params)
        return state, update, trained.report

    def mix(update, dispatch, staleness):
        weight = staleness_weight(staleness.astype(dispatch.share.dtype), alpha, exponent)
        return MixingSum(scale(weight, update), weight)

    def server_update(server, sums, count, group):
        if form == "mixing":
            remaining = scale(1 - sums.weight, server.params)
            return server._replace(params=optax.tree.add(remaining, sums.total))
        return server._replace(params=add_scaled(server.params, -1 / server.divisor, sums))

    contribute = mix if form == "mixing" else weighted_by_staleness(alpha, exponent, weighting)
    asynchrony = Asynchrony("immediate")
    if form == "mixing":
        reason = "it mixes in one arrival at a time; give form=delta, or the planner immediate"
        asynchrony = Asynchrony("immediate", ("immediate",), reason)
    return Algorithm(
        problem=problem,
        local=local,
        init=init,
        client_update=client_update,
        server_update=server_update,
        contribute=contribute,
        traits=Traits("model" if form == "mixing" else "delta", asynchrony=asynchrony),
    )
