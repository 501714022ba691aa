"""GHBM: heavy-ball momentum over the server's last tau rounds, in every local step.

Zaccone et al., "Communication-Efficient Heterogeneous Federated Learning with Generalized
Heavy-Ball Momentum", TMLR 2025, https://arxiv.org/abs/2311.18578, as in its released code.
FedADC is Ozfatura et al., "FedADC: Accelerated Federated Learning with Drift Control", ISIT 2021,
https://arxiv.org/abs/2012.09102.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.momentum.localghbm import DISPLACEMENT
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Traits, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Count, Decay, Positive
from fedjax_algos.core.trees import add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # theta^t
    past: Params  # leaves [tau, ...]: the models of the last tau rounds, as a ring
    rounds: jax.Array  # int32[]: t


class GhbmBroadcast(NamedTuple):
    params: Params  # theta^t
    momentum: Params  # (theta^{t-tau} - theta^t) / tau, and 0 in the first tau rounds


@algorithms.register
def ghbm(
    problem: Problem,
    local: Local,
    *,
    tau: Count,
    beta: Decay = 0.9,
    nesterov: bool = False,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`y <- y - eta_l g + beta / (tau J_i) (theta^{t-1} - theta^{t-tau-1})`, J_i times from theta.

    Then FedAvg. The term does not depend on eta_l and is 0 in the first tau rounds. It is added
    before `local.transform`: clipping acts on it, and weight decay does not.

    Args:
      problem: the model and the loss.
      local: how a client trains: J_i steps with learning rate eta_l.
      tau: tau, at least 1: the number of rounds that the momentum reaches back. The paper finds
        N / cohort size best.
      beta: beta, the factor of the momentum, from 0 to below 1; 0 is FedAvg.
      nesterov: moves y by the term first, and takes the gradient at the moved y.
      server_learning_rate: eta, above 0; 1 in the paper. The past models include it.
      weighting: weights of the mean delta: "examples" (proportional to n_i) as in the released
        code, or "uniform".
    """
    train = local_training(problem, local)

    def init(params, population):
        past = jax.tree.map(lambda p: jnp.zeros((tau, *p.shape), p.dtype), params)
        return ServerState(params, past, jnp.int32(0))

    def broadcast(server, group):
        oldest = jax.tree.map(lambda p: p[server.rounds % tau], server.past)
        momentum = scale(1 / tau, optax.tree.sub(oldest, server.params))
        known = server.rounds >= tau
        return GhbmBroadcast(
            server.params, jax.tree.map(lambda m: jnp.where(known, m, 0), momentum)
        )

    def client_update(broadcast, state, data, dispatch, key):
        x, momentum = broadcast
        share = beta / jnp.maximum(dispatch.num_steps, 1)  # beta / J_i
        term = scale(-share if nesterov else share / dispatch.learning_rate, momentum)

        def corrected(gradient, local_params, step):
            return jax.tree.map(jnp.add, gradient, term)

        def ahead(local_params):
            return jax.tree.map(jnp.add, local_params, term)

        hook = {"move": ahead} if nesterov else {"correct": corrected}
        trained = train(x, data, dispatch, key, **hook)
        return state, optax.tree.sub(x, trained.params), trained.report

    def server_update(server, sums, count, group):
        x, past, rounds = server
        past = jax.tree.map(lambda ring, p: ring.at[rounds % tau].set(p), past, x)
        return ServerState(add_scaled(x, -server_learning_rate, sums.mean()), past, rounds + 1)

    frame = fedavg(problem, local, weighting=weighting)
    return frame._replace(
        init=init,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        traits=Traits(
            broadcast=GhbmBroadcast("model", "vector"),
            requires_sgd="" if nesterov else DISPLACEMENT,
        ),
    )


@algorithms.register
def fedadc(
    problem: Problem,
    local: Local,
    *,
    beta: Decay = 0.9,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """GHBM over one round with a look-ahead gradient, which the GHBM paper compares as FedADC.

    `y <- y + beta / J_i (theta^{t-1} - theta^{t-2})`, then `y <- y - eta_l g(y)`. FedADC's own form
    has two decays and a server momentum; with equal decays its momentum is the last mean delta, as
    it is here.

    Args:
      problem: the model and the loss.
      local: how a client trains: J_i steps with learning rate eta_l.
      beta: beta, the factor of the momentum, from 0 to below 1; 0 is FedAvg.
      server_learning_rate: eta, above 0.
      weighting: weights of the mean delta: "examples" (proportional to n_i) or "uniform".
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
