"""FedMAX: a penalty on activations of low entropy makes the clients' models similar.

Chen et al., "FedMAX: Mitigating Activation Divergence for Accurate and Communication-Efficient
Federated Learning", ECML 2020, https://arxiv.org/abs/2004.03657.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.local_steps import uncorrected
from fedjax_algos.core.model_outputs import matrix, sown_features
from fedjax_algos.core.options import NonNegative, Positive


def divergence_from_uniform(features: jax.Array) -> jax.Array:
    """`KL(U || p) = -log D - (1/D) sum_j log p_j` for p = softmax(features), float[batch]."""
    width = features.shape[-1]
    return -jnp.log(jnp.asarray(width, features.dtype)) - jax.nn.log_softmax(features).mean(-1)


@algorithms.register
def fedmax(
    problem: Problem,
    local: Local,
    *,
    beta: NonNegative = 1.0,
    features: Callable[[Any], jax.Array] = sown_features,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """FedAvg on the loss plus `beta KL(U || softmax(a))`, where a is the input of the last layer.

    U is uniform over the D features. The direction is KL(U || p), averaged over the batch, as in
    the FedGBO paper's code. FedMAX's own code also divides by D, so its beta is D times this one
    for the same strength. The reported training loss does not contain the term.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      beta: beta, at least 0; 0 is FedAvg.
      features: returns a, float[batch, D], from the model's outputs.
      server_learning_rate: eta as in `fedavg`, above 0.
      weighting: the average's weights: "uniform" as in the FedGBO paper's comparisons, or
        "examples" (proportional to n_i).

    Raises:
      ValueError: in the first round, if the outputs have no such features.
    """

    def penalty(outputs, batch):
        return beta * divergence_from_uniform(matrix("fedmax", features(outputs), "features"))

    rate = {"server_learning_rate": server_learning_rate}
    return fedavg(problem, local, uncorrected, penalty, weighting=weighting, **rate)
