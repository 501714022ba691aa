"""FedAT: tiers of clients of similar speed run their own rounds; slow tiers have larger weights.

Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System with
Asynchronous Tiers", SC 2021, https://arxiv.org/abs/2010.05958.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.averaging.fedprox import proximal
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Asynchrony, Local, Params, Problem, Traits, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import NonNegative


class ServerState(NamedTuple):
    params: Params  # w
    tiers: Params  # leaves [tiers, ...]: w_k, the last model of each tier, fastest first
    rounds: jax.Array  # int32[tiers]: T_k, the number of rounds that each tier has finished


def tier_weights(rounds: jax.Array) -> jax.Array:
    """Returns the numbers of finished rounds, reversed and divided by their sum, float[tiers].

    Taken literally, the reversed counts would give all weight to the slowest tier's untrained model
    until it finishes a round. So the order is reversed only among tiers that have finished one; the
    others have weight 0.
    """
    finished = rounds > 0
    rank = jnp.cumsum(finished) - 1
    compact = rounds[jnp.argsort(~finished)]  # finished tiers first
    reversed_counts = jnp.where(finished, compact[finished.sum() - 1 - rank], 0)
    return reversed_counts / jnp.maximum(reversed_counts.sum(), 1).astype(float)


@algorithms.register
def fedat(
    problem: Problem,
    local: Local,
    *,
    mu: NonNegative = 0.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`w_k <- sum_i p_i y_i` over tier k, then `w <- sum_k T_(M+1-k) / T w_k` over all M tiers.

    T_k is the number of rounds that tier k has finished, T their sum. Each round of a tier starts
    from the latest w. The planner `tiers` forms the tiers; with one tier this is FedAvg. The
    original also compresses uploads; this does not, as in the FedCompass paper's comparison.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      mu: lambda, at least 0: the local gradient is `g + mu (y - w)`. The original has 0.4.
      weighting: p_i within a tier: "examples" is proportional to n_i, "uniform" is equal.
    """
    train = local_training(problem, local)

    def init(params, population):
        num_tiers = population.num_groups
        tiers = jax.tree.map(lambda p: jnp.zeros((num_tiers, *p.shape), p.dtype), params)
        return ServerState(params, tiers, jnp.zeros(num_tiers, jnp.int32))

    def client_update(w, state, data, dispatch, key):
        trained = train(w, data, dispatch, key, correct=proximal(mu, w))
        return state, trained.params, trained.report

    def server_update(server, sums, count, group):
        tiers = jax.tree.map(lambda models, w: models.at[group].set(w), server.tiers, sums.mean())
        rounds = server.rounds.at[group].add(1)
        weights = tier_weights(rounds)
        params = jax.tree.map(
            lambda models: jnp.tensordot(weights.astype(models.dtype), models, axes=1), tiers
        )
        return ServerState(params, tiers, rounds)

    reason = "it keeps a model for each tier, and only the planners tiers and barrier have tiers"
    frame = fedavg(problem, local, weighting=weighting)
    return frame._replace(
        init=init,
        client_update=client_update,
        server_update=server_update,
        traits=Traits("model", asynchrony=Asynchrony("tiers", ("tiers", "barrier"), reason)),
    )
