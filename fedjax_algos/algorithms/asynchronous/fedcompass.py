"""FedCompass: groups of clients that arrive together, by giving each the steps that fit its speed.

Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client Devices
Using a Computing Power-Aware Scheduler", ICLR 2024, https://arxiv.org/abs/2309.14675.

The scheduler is `asynchrony.compass`; here is what the server does with a group. Differences from
the released code: the staleness exponent is negative (there a positive one lets stale updates count
more), p_i is n_i / n (there 1/m, an option here), and a late update is added to its client's next
one (there overwritten by it).
"""

from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.asynchronous.fedasync import fedasync
from fedjax_algos.algorithms.asynchronous.staleness import Share, clients_in, stale_share
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.asynchrony.plan import AGGREGATE
from fedjax_algos.core import Algorithm, Local, Params, Problem
from fedjax_algos.core.registry import Decay, NonNegative, Range
from fedjax_algos.core.trees import add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # w
    divisor: jax.Array  # of the sums: 1, or m
    momentum: Params  # m of the variant, () without


class Sums(NamedTuple):
    total: Params  # sum of st p_i Delta_i, or of st p_i Delta_i / Q_i
    work: jax.Array  # sum of p_i Q_i
    share: jax.Array  # sum of p_i


@algorithms
def fedcompass(
    problem: Problem,
    local: Local,
    *,
    alpha: Annotated[float, Range(0, 1, low_open=True)] = 0.9,
    exponent: NonNegative = 0.5,
    variant: Literal["plain", "momentum", "normalised"] = "plain",
    beta: Decay = 0.9,
    weighting: Share = "examples",
) -> Algorithm:
    """`w <- w - sum_i st(d_i) p_i Delta_i` over a group and the late ones; Delta_i = x_i - w_i.

    `st(d) = alpha (d + 1)^(-exponent)`, d the server steps between x_i and the arrival.

    Args:
      problem: what is learned.
      local: how a client trains; the schedule says how many steps.
      alpha: the weight of a fresh update.
      exponent: a.
      variant: "momentum" (FedCompass+M) is `m <- beta m + sum`, `w <- w - m` in group aggregations,
        and plain for first arrivals; "normalised" (+N) sums `st p_i Delta_i / Q_i` and multiplies
        by `sum p_i Q_i / sum p_i` over all contributors.
      beta: the decay of "momentum".
      weighting: p_i is n_i over ALL clients' n ("examples"), or 1/m ("uniform").
    """
    weigh = stale_share(alpha, exponent, weighting)

    def init(params, population):
        momentum = optax.tree.zeros_like(params) if variant == "momentum" else ()
        return ServerState(params, clients_in(weighting, population.num_clients), momentum)

    def contribute(update, visit, staleness):
        steps = jnp.maximum(visit.num_steps, 1).astype(visit.share.dtype)
        total = weigh(update, visit, staleness).total
        if variant == "normalised":
            total = scale(1 / steps, total)
        share = visit.share if weighting == "examples" else jnp.ones_like(visit.share)
        return Sums(total, share * steps, share)

    def server_update(server, sums, count, group):
        del count
        w, divisor, m = server
        step = scale(1 / divisor, sums.total)
        if variant == "normalised":
            step = scale(sums.work / sums.share, step)
        if variant == "momentum":
            grouped = group == AGGREGATE
            moved = add_scaled(step, beta, m)
            step = jax.tree.map(lambda new, s: jnp.where(grouped, new, s), moved, step)
            m = jax.tree.map(lambda new, old: jnp.where(grouped, new, old), moved, m)
        return ServerState(optax.tree.sub(w, step), divisor, m)

    frame = fedasync(problem, local)
    return frame._replace(init=init, contribute=contribute, server_update=server_update)
