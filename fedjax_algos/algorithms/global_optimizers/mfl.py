"""MFL: clients start from the optimiser's global statistics, which the server averages like x.

Liu et al., "Accelerating Federated Learning via Momentum Gradient Descent", IEEE TPDS 2020,
https://arxiv.org/abs/1910.03197, with the RMSProp and Adam forms of the FedGBO paper's comparison.
"""

from typing import Any, NamedTuple

import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.global_optimizers.biased_optimizers import (
    OWN_OPTIMIZER,
    OptimizerName,
    ServerState,
    biased_optimizer,
    rmsprop,
)
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Asynchrony, Local, Params, Problem, Traits, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Decay, Positive
from fedjax_algos.core.trees import add_scaled


class Upload(NamedTuple):
    delta: Params  # x - y_i
    statistics: Any  # s_i


def moving(optimizer: OptimizerName, *, beta, b2, eps) -> optax.GradientTransformation:
    """Returns an optimiser that uses its moments after their update, without bias correction."""
    fixed = biased_optimizer(optimizer, beta=beta, b2=b2, eps=eps)
    scaling = rmsprop(eps=eps)

    def update(gradient, statistics, params=None):
        statistics = fixed.track(gradient, statistics)
        direction = gradient if optimizer == "rmsprop" else statistics.m
        if optimizer != "sgdm":
            direction = scaling.update(direction, statistics)
        return direction, statistics

    return optax.GradientTransformation(fixed.init, update)


@algorithms.register
def mfl(
    problem: Problem,
    local: Local,
    *,
    optimizer: OptimizerName = "sgdm",
    beta: Decay = 0.9,
    b2: Decay = 0.99,
    eps: Positive = 1e-3,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """A local optimiser starts from the global statistics; `x, s` are the means of `y_i, s_i`.

    SGDm: `m <- beta m + (1 - beta) g`, `y <- y - eta_l m`. RMSProp: `v <- beta v + (1 - beta) g^2`,
    `y <- y - eta_l g / (sqrt(v) + eps)`. Adam: both (v with beta_2),
    `y <- y - eta_l m / (sqrt(v) + eps)`. m starts at 0 and v at 1. The rules follow the FedGBO
    paper's code.

    Args:
      problem: the model and the loss.
      local: how a client trains, with learning rate eta_l; `local.transform` acts on the gradients
        that the optimiser reads.
      optimizer: the name of one of the three.
      beta: the decay of SGDm's m, of RMSProp's v, or of Adam's m (beta_1), from 0 to below 1.
      b2: beta_2, the decay of Adam's v, from 0 to below 1.
      eps: epsilon, above 0, added to the root of v; in units of g.
      server_learning_rate: the factor of the mean delta, above 0; 1 gives the mean of the y_i.
      weighting: weights of both means: "uniform", or "examples" (proportional to n_i).
    """
    train = local_training(problem, local)
    own = moving(optimizer, beta=beta, b2=b2, eps=eps)
    transform = optax.chain(local.transform, own)

    def init(params, population):
        return ServerState(params, own.init(params))

    def client_update(broadcast, state, data, dispatch, key):
        x, s = broadcast
        start = (local.transform.init(x), s)
        trained = train(x, data, dispatch, key, transform=transform, transform_state=start)
        update = Upload(optax.tree.sub(x, trained.params), trained.transform_state[1])
        return state, update, trained.report

    def server_update(server, sums, count, group):
        mean = sums.mean()
        params = add_scaled(server.params, -server_learning_rate, mean.delta)
        return ServerState(params, mean.statistics)

    reason = "the mean of a few clients' statistics would replace what the others contributed; "
    reason += "run it in synchronous rounds"
    asynchrony = Asynchrony(allowed=("barrier",), reason=reason)
    parts = biased_optimizer(optimizer, beta=beta, b2=b2, eps=eps).parts
    frame = fedavg(problem, local, weighting=weighting)
    return frame._replace(
        init=init,
        broadcast=lambda server, group: server,
        client_update=client_update,
        server_update=server_update,
        traits=Traits(
            Upload("delta", parts),
            ServerState("model", parts),
            asynchrony=asynchrony,
            requires_sgd=OWN_OPTIMIZER,
        ),
    )
