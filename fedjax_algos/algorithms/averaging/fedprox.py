"""FedProx: a proximal term keeps the local models near the global one.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
https://arxiv.org/abs/1812.06127.
"""

import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting
from fedjax_algos.core.local_steps import Correction, local_training
from fedjax_algos.core.options import NonNegative, Positive
from fedjax_algos.core.trees import add_scaled


def proximal(mu, x: Params) -> Correction:
    """Returns the gradient correction `g + mu (y - x)`, for the loss plus `mu/2 |y - x|^2`."""

    def corrected(gradient, local_params, step):
        return add_scaled(gradient, mu, optax.tree.sub(local_params, x))

    return corrected


@algorithms.register
def fedprox(
    problem: Problem,
    local: Local,
    *,
    mu: NonNegative = 0.01,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """FedAvg with the local gradient `g + mu (y - x)`, of the loss plus `mu/2 |y - x|^2`.

    The factor is mu; some released code adds (mu/2)(y - x), so its mu is twice this one. The paper
    samples clients by n_i and averages uniformly; here, sampling is uniform.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      mu: mu, at least 0; 0 is FedAvg.
      server_learning_rate: eta as in `fedavg`, above 0; 1 in the paper.
      weighting: the average's weights: "examples" (proportional to n_i) or "uniform".
    """
    train = local_training(problem, local)

    def client_update(params, state, data, dispatch, key):
        trained = train(params, data, dispatch, key, correct=proximal(mu, params))
        return state, optax.tree.sub(params, trained.params), trained.report

    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting=weighting)
    return frame._replace(client_update=client_update)
