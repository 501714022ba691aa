"""FedALA: each client learns, entry by entry, how much of the global model it takes.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023,
https://arxiv.org/abs/2212.01197.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Model, Params, Problem, Weighting, batches_per_epoch
from fedjax_algos.core.local_steps import local_training, repeat
from fedjax_algos.core.options import Count, NonNegative, Positive
from fedjax_algos.core.trees import Leaves, Pattern, check_match, split_params


class ClientState(NamedTuple):
    params: Params  # y_i
    weights: Leaves  # W_i, of the adapted leaves


@algorithms.register
def fedala(
    problem: Problem,
    local: Local,
    *,
    head: Pattern = "*",
    eta: NonNegative = 1.0,
    first_passes: Count = 10,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """The client starts from `s = y_i + W_i (x - y_i)`, where y_i is its last local model.

    Before it trains, `W_i <- clip(W_i - eta g(s) (x - y_i), 0, 1)` for each batch, from W_i = 1. A
    pass takes 80% of an epoch's batches, rounded up.
    This is for the last layers; of all others the client takes x. In the released code
    (https://github.com/TsingZ0/FedALA) the first learning of W_i ends when the standard deviation
    of ten losses is below .1; here it has a fixed number of passes. That code draws a random share
    of the examples in each dispatch; here the batches are the first ones of the local update. There
    all clients learn W_i in every round; here only the cohort does, and a client's first dispatch
    is FedAvg's. The client's own model is s with the last W_i.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      head: the params with weights W_i: a pattern of their paths, or a function from a path to a
        bool; the default is all of them.
      eta: eta, at least 0, the rate of W_i; 0 is FedAvg.
      first_passes: passes in the client's second dispatch; later there is one.
      server_learning_rate: the factor of the mean delta, above 0; 1 in the paper.
      weighting: the average's weights: "examples" (proportional to n_i) or "uniform".

    Raises:
      ValueError: if the pattern matches none of the params.
    """
    parts = split_params(problem, head)
    check_match("fedala: head", parts, head)
    train = local_training(problem, local)

    def mixed(x, own, weights):
        pairs = zip(parts.own_leaves(own), weights, parts.own_leaves(x), strict=True)
        head_leaves = tuple(y + w.astype(y.dtype) * (new - y) for y, w, new in pairs)
        return parts.join(parts.shared_leaves(x), head_leaves)

    def client_init(params, key):
        ones = jax.tree.map(jnp.ones_like, parts.own_leaves(params))
        return ClientState(params, ones)

    def client_update(x, state, data, dispatch, key):
        gap = optax.tree.sub(parts.own_leaves(x), parts.own_leaves(state.params))
        per_epoch = batches_per_epoch(data.num_examples, local.batch_size, local.batches)
        batches = (4 * per_epoch + 4) // 5  # 80%, rounded up
        passes = jnp.where(dispatch.number > 1, 1, first_passes * dispatch.number)

        def gradient_at(model, k, step_key):
            if local.batches == "full":
                return train.full_gradient(model, data, step_key)[0]
            batch = data.batch(k % batches, local.batch_size, local.batches)
            return train.gradient(model, *batch, step_key)[0]

        def learn(k, weights):
            model = data.model(mixed(x, state.params, weights))
            gradient = gradient_at(model, k, jax.random.fold_in(key, k))
            change = jax.tree.map(lambda g, d: eta * g * d, parts.own_leaves(gradient), gap)
            return jax.tree.map(lambda w, c: jnp.clip(w - c, 0, 1).astype(w.dtype), weights, change)

        most = None if local.reverse is None else first_passes * local.reverse.max_examples
        weights = repeat(learn, passes * batches, state.weights, most)
        trained = train(mixed(x, state.params, weights), data, dispatch, key)
        row = ClientState(trained.params, weights)
        return row, optax.tree.sub(x, trained.params), trained.report

    def personal(server, row):
        return Model(mixed(server.params, row.params, row.weights))

    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting=weighting)
    return frame._replace(client_init=client_init, client_update=client_update, personal=personal)
