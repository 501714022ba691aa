"""q-FedAvg: clients whose examples have a high loss at x get more weight, for equal accuracies.

Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020,
https://arxiv.org/abs/1905.10497, Algorithm 2.
"""

from typing import Any, NamedTuple

import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Traits
from fedjax_algos.core.local_steps import local_training, mean_loss
from fedjax_algos.core.options import NonNegative
from fedjax_algos.core.trees import add_scaled, scale

_SMALLEST_LOSS = 1e-10  # added to F_i, as in the authors' code


class Upload(NamedTuple):
    delta: Params  # D_i
    curvature: Any  # float[]: h_i


@algorithms.register
def qfedavg(problem: Problem, local: Local, *, q: NonNegative = 1.0) -> Algorithm:
    """`x <- x - sum_i D_i / sum_i h_i`, for the objective `sum_i F_i^(q+1) / (q+1)`.

    With `d_i = L (x - y_i)` and L = 1 / eta_l: `D_i = F_i^q d_i` and
    `h_i = q F_i^(q-1) |d_i|^2 + L F_i^q`. F_i is the mean loss of the received x over all of the
    client's examples. The sums over the cohort have equal weights, as in the paper, which draws
    clients in proportion to n_i. h_i bounds the curvature for one local step; with more steps L
    stays 1 / eta_l, as in the authors' code. Losses must not be negative: F_i^q would be NaN, and
    the update would be left out.

    Args:
      problem: the model and the loss.
      local: how a client trains, with learning rate eta_l.
      q: q, at least 0; a larger one gives more weight to high losses, and 0 is FedAvg with equal
        weights.
    """
    train, loss_of = local_training(problem, local), mean_loss(problem, local)

    def client_update(x, state, data, dispatch, key):
        loss = loss_of(data.model(x), data, key) + _SMALLEST_LOSS
        trained = train(x, data, dispatch, key)
        lipschitz = 1 / dispatch.learning_rate
        step = scale(lipschitz, optax.tree.sub(x, trained.params))
        square = optax.tree.norm(step, squared=True)
        h = q * loss ** (q - 1) * square + lipschitz * loss**q
        return state, Upload(scale(loss**q, step), h), trained.report

    def server_update(server, sums, count, group):
        mean = sums.mean()  # the quotient of the means equals that of the sums
        return server._replace(params=add_scaled(server.params, -1 / mean.curvature, mean.delta))

    frame = fedavg(problem, local, weighting="uniform")
    traits = Traits(Upload("vector", "count"), requires_sgd="its h_i has L = 1 / eta_l")
    return frame._replace(client_update=client_update, server_update=server_update, traits=traits)
