"""LocalGHBM: GHBM whose past model is the one that the client itself received last.

Zaccone et al., "Communication-Efficient Heterogeneous Federated Learning with Generalized
Heavy-Ball Momentum", TMLR 2025, https://arxiv.org/abs/2311.18578.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting, trees, weighted_by
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import Decay, Positive


class ServerState(NamedTuple):
    params: Params  # theta^t
    participation: jax.Array  # C


class ClientState(NamedTuple):
    anchor: Params  # the global model received at the last turn
    last_round: jax.Array  # int32[]: that turn's round; -1 before the first


@algorithms
def localghbm(
    problem: Problem,
    local: Local,
    *,
    beta: Decay = 0.9,
    scale: Literal["participation", "gap"] = "participation",
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`y <- y - rate g + beta C / K_i (theta^{t-1} - anchor)`, K_i times; then FedAvg.

    The anchor is the global model that the client received at its last turn; at the first turn the
    term is 0. `scale` is C, the cohort's share of all clients ("participation"), as in the released
    code and so in the paper's results, or 1 / tau_i, tau_i being the rounds since the last turn
    ("gap"), as in the paper's text. The server sends C beside the model.
    """
    train = local_training(problem, local)

    def init(params, population):
        share = population.cohort_size / population.num_clients
        return ServerState(params, jnp.asarray(share, float))

    def broadcast(server, group):
        del group
        return server

    def client_init(params, key):
        del key
        return ClientState(params, jnp.int32(-1))

    def client_update(broadcast, own, data, visit, key):
        x, participation = broadcast
        gap = jnp.maximum(visit.server_step - own.last_round, 1)  # tau_i
        factor = participation if scale == "participation" else 1.0 / gap
        factor = jnp.where(own.last_round >= 0, beta * factor / jnp.maximum(visit.num_steps, 1), 0)
        term = trees.scale(factor / visit.learning_rate, optax.tree.sub(own.anchor, x))

        def corrected(gradient, local_params, step):
            del local_params, step
            return trees.add(gradient, term)

        trained = train(x, data, visit, key, correct=corrected)
        own = ClientState(x, visit.server_step)
        return own, optax.tree.sub(x, trained.params), trained.report

    def server_update(server, sums, count, group):
        del count, group
        return server._replace(
            params=trees.add_scaled(server.params, -server_learning_rate, sums.mean())
        )

    return Algorithm(
        problem,
        local,
        init,
        broadcast,
        client_update,
        server_update,
        contribute=weighted_by(weighting),
        client_init=client_init,
    )
