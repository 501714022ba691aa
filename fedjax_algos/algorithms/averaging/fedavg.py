"""Federated averaging, and the frame of every algorithm that changes one part of it.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, https://arxiv.org/abs/1602.05629; with a server optimiser it is Reddi et al.,
"Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295.
"""

from typing import Any, NamedTuple

import optax

from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting, weighted_by
from fedjax_algos.core.local_steps import Correction, Penalty, local_training, uncorrected
from fedjax_algos.core.optimizers import check_transform
from fedjax_algos.core.options import Positive


class ServerState(NamedTuple):
    params: Params  # x
    optimizer_state: Any  # of `server_transform`


@algorithms.register
def fedavg(
    problem: Problem,
    local: Local,
    first: Correction = uncorrected,
    penalty: Penalty | None = None,
    *,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
    server_transform: optax.GradientTransformation | None = None,
) -> Algorithm:
    """Clients run SGD from x and upload the delta x - y_i; the server moves x by the mean delta.

    `y_i <- y_i - eta_l g`, K_i times from x; `G = sum_i p_i (x - y_i)`;
    `x <- x - eta server_transform(G)`.

    Args:
      problem: the model and the loss.
      local: how a client trains: K_i steps with learning rate eta_l.
      first: a correction of the gradient g; none by default.
      penalty: a term of the loss, as in `local_training`; None for none.
      server_learning_rate: eta, above 0. 1 in McMahan et al.
      weighting: p_i over the cohort: "examples" is proportional to n_i, as in the paper; "uniform"
        is equal, as in the FedGBO paper's comparisons.
      server_transform: an optax transformation of G, without a learning rate; None is the identity.

    Raises:
      ValueError: if `server_transform` points against G because it includes a learning rate.
    """
    train = local_training(problem, local, penalty)
    step = server_transform or optax.identity()
    if server_transform is not None:
        check_transform("fedavg: server_transform", server_transform, problem)
    optimizer = optax.chain(step, optax.scale(-server_learning_rate))

    def init(params, population):
        return ServerState(params, optimizer.init(params))

    def client_update(params, state, data, dispatch, key):
        trained = train(params, data, dispatch, key, correct=first)
        return state, optax.tree.sub(params, trained.params), trained.report

    def server_update(server, sums, count, group):
        updates, state = optimizer.update(sums.mean(), server.optimizer_state, server.params)
        return ServerState(optax.apply_updates(server.params, updates), state)

    return Algorithm(
        problem=problem,
        local=local,
        init=init,
        client_update=client_update,
        server_update=server_update,
        contribute=weighted_by(weighting),
    )
