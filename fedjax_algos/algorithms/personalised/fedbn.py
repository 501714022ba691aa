"""FedBN: the normalisation layers and their statistics stay with the client.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021,
https://arxiv.org/abs/2102.07623, Algorithm 1.
"""

import jax
import optax

from fedjax_algos.algorithms.personalised.fedrep import average_shared
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Model, Problem, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Positive
from fedjax_algos.core.trees import Pattern, check_match, split_params


@algorithms.register
def fedbn(
    problem: Problem,
    local: Local,
    *,
    norm: Pattern = "*norm*",
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """FedAvg of all params except in normalisation layers, which each client keeps.

    A client trains all params together. It also keeps its statistics, such as BatchNorm's means.
    Before its first dispatch it has the initial params and statistics. The global model has the
    initial params of these layers and the mean of the statistics. In the released code its
    statistics also stay initial, it is not evaluated, and all clients train in each round. A model
    without such layers and statistics is refused, because FedBN would be FedAvg.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      norm: the params of the normalisation layers: a pattern of their paths, or a function from a
        path to a bool. The default matches every path with "norm", such as "BatchNorm_0/scale". It
        includes LayerNorm and GroupNorm; the paper has BatchNorm alone.
      server_learning_rate: the factor of the mean delta, above 0; 1 in the paper.
      weighting: weights of the mean delta: "uniform" as in the paper's algorithm, or "examples"
        (proportional to n_i).

    Raises:
      ValueError: if the pattern matches none or all of the params. The default may match none if
        the model has statistics, because clients keep these.
    """
    parts = split_params(problem, norm)
    model = jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0))
    if norm != "*norm*" or not jax.tree.leaves(model.statistics):
        check_match("fedbn: norm", parts, norm, rest="the server")
    train = local_training(problem, local)

    def client_init(params, key):
        return Model(parts.own_leaves(params), problem.init(key).statistics)

    def client_update(shared, own, data, dispatch, key):
        data = data._replace(statistics=own.statistics)
        trained = train(parts.join(shared, own.params), data, dispatch, key)
        delta = optax.tree.sub(shared, parts.shared_leaves(trained.params))
        own = Model(parts.own_leaves(trained.params), trained.report.statistics)
        return own, delta, trained.report

    def personal(server, own):
        return Model(parts.join(parts.shared_leaves(server.params), own.params), own.statistics)

    frame = average_shared(problem, local, parts, server_learning_rate, weighting)
    return frame._replace(client_update=client_update, client_init=client_init, personal=personal)
