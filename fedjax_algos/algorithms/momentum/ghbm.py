"""GHBM: heavy-ball momentum over the server's last tau rounds, in every local step.

Zaccone et al., "Communication-Efficient Heterogeneous Federated Learning with Generalized
Heavy-Ball Momentum", TMLR 2025, https://arxiv.org/abs/2311.18578, as its released code has it.
FedADC is Ozfatura et al., "FedADC: Accelerated Federated Learning with Drift Control", ISIT 2021,
https://arxiv.org/abs/2012.09102.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting, weighted_by
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import Decay, Positive, Range
from fedjax_algos.core.trees import add, add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # theta^t
    past: Params  # leaves [tau, ...]: the models of the last tau rounds, as a ring
    rounds: jax.Array  # int32[]: t


class Broadcast(NamedTuple):
    params: Params
    momentum: Params  # (theta^{t-tau} - theta^t) / tau, and 0 in the first tau rounds


@algorithms
def ghbm(
    problem: Problem,
    local: Local,
    *,
    tau: Annotated[int, Range(1)],
    beta: Decay = 0.9,
    nesterov: bool = False,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`y <- y - rate g + beta / (tau K_i) (theta^{t-1} - theta^{t-tau-1})`, K_i times; then FedAvg.

    The term does not depend on the rate, is 0 until tau rounds are done, and stands before
    `local.transform`, so clipping sees it and weight decay does not touch it.

    Args:
      problem: what is learned.
      local: how a client trains.
      tau: rounds that the momentum reaches back; the paper finds N / cohort size best.
      beta: its factor.
      nesterov: move y by the term first, and take the gradient there.
      server_learning_rate: 1 in the paper; the past models contain it.
      weighting: "examples" as in the released code, or "uniform".
    """
    train = local_training(problem, local)

    def init(params, population):
        del population
        past = jax.tree.map(lambda p: jnp.zeros((tau, *p.shape), p.dtype), params)
        return ServerState(params, past, jnp.int32(0))

    def broadcast(server, group):
        del group
        oldest = jax.tree.map(lambda p: p[server.rounds % tau], server.past)
        momentum = scale(1 / tau, optax.tree.sub(oldest, server.params))
        known = server.rounds >= tau
        return Broadcast(server.params, jax.tree.map(lambda m: jnp.where(known, m, 0), momentum))

    def client_update(broadcast, state, data, visit, key):
        x, momentum = broadcast
        share = beta / jnp.maximum(visit.num_steps, 1)  # beta / K_i

        term = scale(-share if nesterov else share / visit.learning_rate, momentum)

        def corrected(gradient, local_params, step):
            del local_params, step
            return add(gradient, term)

        def ahead(local_params):
            return add(local_params, term)

        hook = {"move": ahead} if nesterov else {"correct": corrected}
        trained = train(x, data, visit, key, **hook)
        return state, optax.tree.sub(x, trained.params), trained.report

    def server_update(server, sums, count, group):
        del count, group
        x, past, rounds = server
        past = jax.tree.map(lambda ring, p: ring.at[rounds % tau].set(p), past, x)
        return ServerState(add_scaled(x, -server_learning_rate, sums.mean()), past, rounds + 1)

    return Algorithm(
        problem,
        local,
        init,
        broadcast,
        client_update,
        server_update,
        contribute=weighted_by(weighting),
    )


@algorithms
def fedadc(
    problem: Problem,
    local: Local,
    *,
    beta: Decay = 0.9,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """GHBM over one round with the gradient taken ahead: what the GHBM paper compares as FedADC.

    `y <- y - beta (theta^{t-2} - theta^{t-1}) / K_i`, then `y <- y - rate g(y)`. FedADC's own form
    has two decays and a server momentum of its own; with equal decays its momentum is the last
    mean step, as here.
    """
    return ghbm(
        problem,
        local,
        tau=1,
        beta=beta,
        nesterov=True,
        server_learning_rate=server_learning_rate,
        weighting=weighting,
    )
