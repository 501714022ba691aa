"""FedProx: a proximal term keeps local models near the global one.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
https://arxiv.org/abs/1812.06127.
"""

import jax
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import NonNegative, Positive


@algorithms
def fedprox(
    problem: Problem,
    local: Local,
    *,
    mu: NonNegative = 0.01,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """FedAvg whose local gradient is `g + mu (y - x)`, of the loss plus `mu/2 |y - x|^2`.

    The factor is mu; some released code adds (mu/2)(y - x), and its mu is twice this one. The other
    options are FedAvg's. The paper samples clients by n_i and averages uniformly; here sampling is
    uniform and `weighting` says how to average.
    """
    train = local_training(problem, local)

    def client_update(params, state, data, visit, key):
        def proximal(gradient, local_params, step):
            del step
            return jax.tree.map(lambda g, y, x: g + mu * (y - x), gradient, local_params, params)

        trained = train(params, data, visit, key, correct=proximal)
        return state, optax.tree.sub(params, trained.params), trained.report

    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting=weighting)
    return frame._replace(client_update=client_update)
