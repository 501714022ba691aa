"""FedCompass: chooses each client's number of steps so that its group arrives together.

Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client Devices
Using a Computing Power-Aware Scheduler", ICLR 2024, https://arxiv.org/abs/2309.14675.

`asynchrony.compass` is the scheduler, with its groups and late clients; this file applies the
updates of an aggregation to the model.

The released code (https://github.com/APPFL/FedCompass) deviates from the paper. Its aggregator has
`(d + 1)**a` with a = .5 in its configurations, so stale updates have larger weights; the paper's
section E.2 has `(d + 1)^(-a)`. The code's p_i is always 1/m. `mode="code"` sets both, and its
planner is `compass:mode=code`. In the released code a client's next update overwrites its late one.
Here both are used in both modes, as in the paper.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.asynchronous.fedasync import (
    StaleWeighting,
    fedasync,
    weight_divisor,
    weighted_by_staleness,
)
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.asynchrony.plan import AGGREGATE
from fedjax_algos.core import Algorithm, Asynchrony, Local, Params, Problem, Traits
from fedjax_algos.core.options import Decay, PositiveShare, Real
from fedjax_algos.core.trees import add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # w
    divisor: jax.Array  # float[]: 1, or m; divides the sums
    momentum: Params  # m times the divisor in the variant "momentum", () in the others


class Sums(NamedTuple):
    total: Params  # sum of st p_i Delta_i, or of st p_i Delta_i / Q_i
    work: jax.Array  # float[]: sum of p_i Q_i
    share: jax.Array  # float[]: sum of p_i


@algorithms.register
def fedcompass(
    problem: Problem,
    local: Local,
    *,
    alpha: PositiveShare = 0.9,
    exponent: Real | None = None,
    mode: Literal["paper", "code"] = "paper",
    variant: Literal["plain", "momentum", "normalised"] = "plain",
    beta: Decay = 0.9,
    weighting: StaleWeighting | None = None,
) -> Algorithm:
    """`w <- w - sum_i st(d_i) p_i Delta_i` over a group and late updates; Delta_i = x_i - w_i.

    `st(d) = alpha (d + 1)^(-a)`, where d_i is the number of server steps between the broadcast of
    x_i and the arrival (with `compass(mode="code")`: and the aggregation).

    Args:
      problem: the model and the loss.
      local: how a client trains; the planner sets its number of steps Q_i.
      alpha: the weight of a fresh update, above 0 and at most 1.
      exponent: a; below 0, stale updates have larger weights. None is 0.5, or -0.5 in code mode.
      mode: chooses the defaults of `exponent` and `weighting`, and the algorithm's planner:
        `compass` for "paper", `compass:mode=code` for "code". If you name the planner, also name
        its mode: `fedcompass:mode=code@compass:mode=code,max_steps=50`.
      variant: "momentum" (FedCompass+M) is `m <- beta m + sum`, `w <- w - m` in group aggregations,
        and the plain rule for first arrivals; "normalised" (FedCompass+N) sums
        `st p_i Delta_i / Q_i` and multiplies by `sum p_i Q_i / sum p_i` over all contributors.
      beta: the decay of m in the variant "momentum", from 0 to below 1.
      weighting: p_i: "examples" is n_i / n over ALL clients, "uniform" is 1/m. None is "examples",
        or "uniform" in code mode.
    """
    code = mode == "code"
    if exponent is None:
        exponent = -0.5 if code else 0.5
    if weighting is None:
        weighting = "uniform" if code else "examples"
    weigh = weighted_by_staleness(alpha, exponent, weighting)

    def init(params, population):
        momentum = optax.tree.zeros_like(params) if variant == "momentum" else ()
        return ServerState(params, weight_divisor(weighting, population.num_clients), momentum)

    def contribute(update, dispatch, staleness):
        steps = jnp.maximum(dispatch.num_steps, 1).astype(dispatch.share.dtype)
        total = weigh(update, dispatch, staleness)
        if variant == "normalised":
            total = scale(1 / steps, total)
        share = dispatch.share if weighting == "examples" else jnp.ones_like(dispatch.share)
        return Sums(total, share * steps, share)

    def server_update(server, sums, count, group):
        w, divisor, m = server
        delta = sums.total
        if variant == "normalised":
            delta = scale(sums.work / sums.share, delta)
        if variant == "momentum":
            aggregated = group == AGGREGATE
            moved = add_scaled(delta, beta, m)
            delta = jax.tree.map(lambda new, d: jnp.where(aggregated, new, d), moved, delta)
            m = jax.tree.map(lambda new, old: jnp.where(aggregated, new, old), moved, m)
        # dividing last leaves no sum of two products, where XLA could fuse either one
        return ServerState(add_scaled(w, -1 / divisor, delta), divisor, m)

    frame = fedasync(problem, local)
    return frame._replace(
        init=init,
        contribute=contribute,
        server_update=server_update,
        traits=Traits(asynchrony=Asynchrony("compass:mode=code" if code else "compass")),
    )
