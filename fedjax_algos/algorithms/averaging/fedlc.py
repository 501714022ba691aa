"""FedLC: a margin for rare classes calibrates the logits of each client.

Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022,
https://arxiv.org/abs/2209.00189.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.local_steps import uncorrected
from fedjax_algos.core.model_outputs import class_counts, labels_of, logits_of, matrix
from fedjax_algos.core.options import NonNegative, Positive


def calibrated_loss(logits: jax.Array, labels: jax.Array, counts: jax.Array, tau) -> jax.Array:
    """Returns the cross-entropy of `logits - tau n_c^(-1/4)`, float[batch].

    A class without examples has an infinite margin, so it is left out.
    """
    present = counts > 0
    margin = tau * jnp.where(present, counts, 1).astype(logits.dtype) ** -0.25
    shifted = jnp.where(present[None], logits - margin[None], -jnp.inf)
    return -jnp.take_along_axis(jax.nn.log_softmax(shifted), labels[:, None], 1)[:, 0]


@algorithms.register
def fedlc(
    problem: Problem,
    local: Local,
    *,
    tau: NonNegative = 1.0,
    logits: Callable[[Any], jax.Array] = logits_of,
    labels: Callable[[Any], jax.Array] = labels_of,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """FedAvg on the cross-entropy of the logits `l_c - tau n_c^(-1/4)`.

    n_c is the client's number of examples of class c. The loss replaces the problem's loss; the
    reported training loss is still the problem's. Classes that a client does not have are left
    out, which is the limit of their margin. Some released code gives them a margin of 100 tau.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      tau: tau, at least 0; 0 leaves out the client's absent classes and changes nothing else.
      logits: returns float[batch, classes] from the model's outputs.
      labels: returns the labels, int[batch], from a batch.
      server_learning_rate: eta as in `fedavg`, above 0.
      weighting: the average's weights: "examples" (proportional to n_i) or "uniform".

    Raises:
      ValueError: in the first round, if the logits or labels have other shapes.
    """

    def client_update(x, state, data, dispatch, key):
        counts = class_counts("fedlc", problem, local, data, logits, labels)

        def penalty(outputs, batch):
            own = matrix("fedlc", logits(outputs), "logits")
            found = labels(batch).astype(jnp.int32)
            return calibrated_loss(own, found, counts, tau) - problem.loss(outputs, batch)

        own = fedavg(problem, local, uncorrected, penalty)
        return own.client_update(x, state, data, dispatch, key)

    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting=weighting)
    return frame._replace(client_update=client_update)
