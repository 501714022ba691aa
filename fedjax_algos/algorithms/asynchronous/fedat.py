"""FedAT: tiers of like speed run synchronous rounds of their own; slow tiers count more.

Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System with
Asynchronous Tiers", SC 2021, https://arxiv.org/abs/2010.05958.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting, weighted_by
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import NonNegative
from fedjax_algos.core.trees import add_scaled


class ServerState(NamedTuple):
    params: Params  # w
    tiers: Params  # leaves [tiers, ...]: w_k, the last model of each, fastest first
    rounds: jax.Array  # int32[tiers]: how often each has reported


def tier_weights(rounds: jax.Array) -> jax.Array:
    """float[tiers]: the round counts in reverse order, over their sum; unheard tiers count 0.

    Taken literally, the reversed counts would give everything to the slowest tier's untrained
    model until it first reports, so the order is reversed among tiers that have reported.
    """
    heard = rounds > 0
    rank = jnp.cumsum(heard) - 1
    compact = (
        jnp.zeros_like(rounds).at[jnp.where(heard, rank, rounds.size)].set(rounds, mode="drop")
    )
    reversed_counts = jnp.where(heard, compact[heard.sum() - 1 - rank], 0)
    return reversed_counts / jnp.maximum(reversed_counts.sum(), 1).astype(float)


@algorithms
def fedat(
    problem: Problem,
    local: Local,
    *,
    mu: NonNegative = 0.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`w_k <- sum_i p_i y_i` over tier k, then `w = sum_k rounds_(reverse k) / sum rounds * w_k`.

    Each tier starts its rounds from the latest w. The tiers belong to the schedule (`tiers`); with
    one, this is FedAvg. `mu` is a proximal term, `g + mu (y - x)`, .4 in the original; it and the
    original's compression of uploads are off here, as FedCompass compares it.
    """
    train = local_training(problem, local)

    def init(params, population):
        num_tiers = population.num_groups
        tiers = jax.tree.map(lambda p: jnp.zeros((num_tiers, *p.shape), p.dtype), params)
        return ServerState(params, tiers, jnp.zeros(num_tiers, jnp.int32))

    def broadcast(server, group):
        del group
        return server.params

    def client_update(x, state, data, visit, key):
        def proximal(gradient, local_params, step):
            del step
            return add_scaled(gradient, mu, optax.tree.sub(local_params, x))

        trained = train(x, data, visit, key, correct=proximal)
        return state, trained.params, trained.report

    def server_update(server, sums, count, group):
        del count
        tiers = jax.tree.map(lambda ring, w: ring.at[group].set(w), server.tiers, sums.mean())
        rounds = server.rounds.at[group].add(1)
        weights = tier_weights(rounds)
        params = jax.tree.map(
            lambda ring: jnp.tensordot(weights.astype(ring.dtype), ring, axes=1), tiers
        )
        return ServerState(params, tiers, rounds)

    return Algorithm(
        problem,
        local,
        init,
        broadcast,
        client_update,
        server_update,
        contribute=weighted_by(weighting),
    )
