"""IFCA: each client trains the model, out of several, with the lowest loss on its examples.

Ghosh et al., "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020,
https://arxiv.org/abs/2006.04088, Algorithm 1 with model averaging (option II).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import (
    Algorithm,
    Local,
    Model,
    Params,
    Problem,
    Traits,
    WeightedSum,
    Weighting,
)
from fedjax_algos.core.local_steps import local_training, mean_loss
from fedjax_algos.core.options import Count, Positive


class ServerState(NamedTuple):
    params: Params  # the mean of the models
    models: Params  # leaves [k, ...]: theta_1, ..., theta_k


class Upload(NamedTuple):
    delta: Params  # of the chosen model
    cluster: Any  # int32[]: its number


def _mean(models):
    return jax.tree.map(lambda leaf: leaf.mean(0), models)


@algorithms.register
def ifca(
    problem: Problem,
    local: Local,
    *,
    clusters: Count = 2,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """`j = argmin_j F_i(theta_j)`; then FedAvg of each theta_j over the clients that chose it.

    F_i is the mean loss over all of client i's training examples, without dropout. A model that no
    client chose is unchanged. A client downloads all models and uploads one delta. It keeps its
    choice as its state; before its first dispatch this is the first model. The first model starts
    as the run's initial model. The others are the problem's initial models for further keys, the
    same for every seed. `params`, which is evaluated as the global model, is the mean of the
    models.

    Args:
      problem: the model and the loss.
      local: how a client trains the model that it chose.
      clusters: k, the number of models, at least 1; 1 is FedAvg.
      server_learning_rate: the factor of the mean delta, above 0; 1 in the paper.
      weighting: weights of the mean deltas: "uniform" as in the paper, or "examples" (proportional
        to n_i) as in the released code on FEMNIST.
    """
    train, loss_of = local_training(problem, local), mean_loss(problem, local)

    def init(params, population):
        keys = [jax.random.key(number) for number in range(1, clusters)]
        starts = [params, *(problem.init(key).params for key in keys)]
        models = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
        return ServerState(_mean(models), models)

    def broadcast(server, group):
        return server.models

    def client_init(params, key):
        return jnp.int32(0)

    def client_update(models, chosen, data, dispatch, key):
        losses = jax.lax.map(lambda theta: loss_of(data.model(theta), data, key), models)
        cluster = jnp.argmin(losses).astype(jnp.int32)
        theta = jax.tree.map(lambda leaf: leaf[cluster], models)
        trained = train(theta, data, dispatch, key)
        return cluster, Upload(optax.tree.sub(theta, trained.params), cluster), trained.report

    def contribute(update, dispatch, staleness):
        count = dispatch.num_examples if weighting == "examples" else jnp.int32(1)
        weight = count.astype(dispatch.share.dtype)
        weights = jnp.zeros(clusters, weight.dtype).at[update.cluster].set(weight)

        def place(leaf):
            zeros = jnp.zeros((clusters, *leaf.shape), leaf.dtype)
            return zeros.at[update.cluster].set(weight.astype(leaf.dtype) * leaf)

        return WeightedSum(jax.tree.map(place, update.delta), weights)

    def server_update(server, sums, count, group):
        divisor = jnp.where(sums.weight > 0, sums.weight, 1)

        def move(theta, total):
            by_model = divisor.reshape(-1, *[1] * (total.ndim - 1)).astype(total.dtype)
            return theta - jnp.asarray(server_learning_rate, theta.dtype) * (total / by_model)

        models = jax.tree.map(move, server.models, sums.total)
        return ServerState(_mean(models), models)

    def personal(server, chosen):
        return Model(jax.tree.map(lambda leaf: leaf[chosen], server.models))

    return Algorithm(
        problem=problem,
        local=local,
        init=init,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        contribute=contribute,
        client_init=client_init,
        personal=personal,
        traits=Traits(Upload("delta", "choice"), broadcast="vector"),
    )
