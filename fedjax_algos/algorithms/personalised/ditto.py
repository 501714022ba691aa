"""Ditto: each client also trains its own model, which stays near the global one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
https://arxiv.org/abs/2012.04221, Algorithm 1.
"""

import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.averaging.fedprox import proximal
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Model, Problem, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import NonNegative, Positive


@algorithms.register
def ditto(
    problem: Problem,
    local: Local,
    *,
    strength: NonNegative = 1.0,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """FedAvg for w; beside it, `v_k <- v_k - eta (g(v_k) + lambda (v_k - w))`, K_k times.

    w is the model that the client received, and v_k stays with the client. Both take the same steps
    on the same batches, as in the released code; in the paper's Algorithm 1, v_k has its own number
    of steps and its own rate. Before a client's first dispatch, v_k is the initial model. The
    released code also chooses lambda by validation; this does not.

    Args:
      problem: the model and the loss.
      local: how a client trains: K_k steps with learning rate eta.
      strength: lambda, at least 0; 0 is local training alone.
      server_learning_rate: as in `fedavg`, above 0; 1 in the paper.
      weighting: weights of the mean delta: "examples" (proportional to n_k) or "uniform" as in the
        released code, which draws clients with probabilities proportional to n_k.
    """
    train = local_training(problem, local)

    def client_init(params, key):
        return Model(params, problem.init(key).statistics)  # v_k

    def client_update(w, own, data, dispatch, key):
        trained = train(w, data, dispatch, key)
        personal_data = data._replace(statistics=own.statistics)
        near = proximal(strength, w)
        personal = train(own.params, personal_data, dispatch, key, correct=near)
        own = Model(personal.params, personal.report.statistics)
        return own, optax.tree.sub(w, trained.params), trained.report

    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting=weighting)
    return frame._replace(
        client_update=client_update, client_init=client_init, personal=lambda server, own: own
    )
