"""FedDyn: a dynamic regulariser aligns the clients' optima with the global one.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021,
https://arxiv.org/abs/2111.04263.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, WeightedSum
from fedjax_algos.core.local_steps import Correction, in_order, local_training, uncorrected
from fedjax_algos.core.options import Positive
from fedjax_algos.core.trees import add_scaled


class ServerState(NamedTuple):
    params: Params  # x
    correction: Params  # h, the mean of all h_i
    num_clients: jax.Array  # float[]: N


class Sums(NamedTuple):
    delta: WeightedSum  # of x - y_i; h needs the sum itself


@algorithms.register
def feddyn(
    problem: Problem,
    local: Local,
    first: Correction = uncorrected,
    *,
    alpha: Positive = 0.01,
) -> Algorithm:
    """SGD on `F_i(y) - <h_i, y> + alpha/2 |y - x|^2`; then `h_i <- h_i - alpha (y_i - x)`.

    Server: `h <- h - (alpha/N) sum_S (y_i - x)`, `x <- mean_S y_i - h / alpha`, with the uniform
    mean; h and all h_i start at 0. The authors' code divides alpha by a client's relative size and
    evaluates the mean of the y_i; here alpha is the same for all and the evaluated model is x. The
    GHBM paper's code has the opposite sign for h and a mean for the sum, and diverges.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      first: a correction of the gradient before the regulariser; none by default.
      alpha: alpha, the strength of the regulariser, above 0.
    """
    train = local_training(problem, local)

    def init(params, population):
        num_clients = jnp.asarray(population.num_clients, float)
        return ServerState(params, optax.tree.zeros_like(params), num_clients)

    def client_init(params, key):
        return optax.tree.zeros_like(params)  # h_i

    def client_update(x, h_i, data, dispatch, key):
        def regularised(gradient, local_params, step):
            return jax.tree.map(
                lambda g, h, y, x: g - h + alpha * (y - x), gradient, h_i, local_params, x
            )

        trained = train(x, data, dispatch, key, correct=in_order(first, regularised))
        delta = optax.tree.sub(x, trained.params)
        return add_scaled(h_i, alpha, delta), delta, trained.report

    def server_update(server, sums, count, group):
        x, h, num_clients = server
        h = add_scaled(h, alpha / num_clients, sums.delta.total)
        averaged = optax.tree.sub(x, sums.delta.mean())  # mean_S y_i
        return ServerState(add_scaled(averaged, -1 / alpha, h), h, num_clients)

    frame = fedavg(problem, local, weighting="uniform")
    return frame._replace(
        init=init,
        client_update=client_update,
        server_update=server_update,
        contribute=lambda *arguments: Sums(frame.contribute(*arguments)),
        client_init=client_init,
    )
