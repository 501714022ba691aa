"""FedNTD: clients keep the global model's outputs for the classes that are not the label.

Lee et al., "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning",
NeurIPS 2022, https://arxiv.org/abs/2106.03097.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.local_steps import uncorrected
from fedjax_algos.core.model_outputs import labels_of, logits_of, matrix, teacher
from fedjax_algos.core.options import NonNegative, Positive


def not_true_distillation(
    logits: jax.Array, of_teacher: jax.Array, labels: jax.Array, tau
) -> jax.Array:
    """Returns `tau^2 KL(p || q)`, float[batch], without the label's class.

    p and q are the softmax of the teacher's and of the own logits, divided by tau.
    """
    others = labels[:, None] != jnp.arange(logits.shape[1])[None]
    log_q, log_p = (
        jax.nn.log_softmax(jnp.where(others, each / tau, -jnp.inf)) for each in (logits, of_teacher)
    )
    gap = jnp.where(others, log_p, 0) - jnp.where(others, log_q, 0)
    return tau**2 * (jnp.exp(log_p) * gap).sum(1)


@algorithms.register
def fedntd(
    problem: Problem,
    local: Local,
    *,
    beta: NonNegative = 1.0,
    tau: Positive = 1.0,
    logits: Callable[[Any], jax.Array] = logits_of,
    labels: Callable[[Any], jax.Array] = labels_of,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """FedAvg on the loss plus `beta tau^2 KL(p || q)`, over the classes that are not the label.

    p is the softmax of the received model's logits divided by tau, computed as in evaluation. q is
    the softmax of the local model's logits. Both leave out the label's class. The released code
    (https://github.com/Lee-Gihun/FedNTD) has this rule. A step costs one more forward pass. The
    reported training loss does not contain the term.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      beta: beta, at least 0; 0 is FedAvg.
      tau: tau, the temperature, above 0.
      logits: returns float[batch, classes] from the model's outputs; three classes or more.
      labels: returns the labels, int[batch], from a batch.
      server_learning_rate: eta as in `fedavg`, above 0.
      weighting: the average's weights: "examples" (proportional to n_i) or "uniform".

    Raises:
      ValueError: in the first round, if the outputs have no such logits.
    """

    def client_update(x, state, data, dispatch, key):
        of_x = teacher(problem, data.model(x), key)

        def penalty(outputs, batch):
            own, received = (
                matrix("fedntd", logits(each), "logits") for each in (outputs, of_x(batch))
            )
            return beta * not_true_distillation(own, received, labels(batch), tau)

        own = fedavg(problem, local, uncorrected, penalty)
        return own.client_update(x, state, data, dispatch, key)

    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting=weighting)
    return frame._replace(client_update=client_update)
