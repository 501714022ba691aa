"""FedMAX: activations of high entropy make the clients' models alike.

Chen et al., "FedMAX: Mitigating Activation Divergence for Accurate and Communication-Efficient
Federated Learning", ECML 2020, https://arxiv.org/abs/2004.03657.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Outputs, Problem, Weighting
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import NonNegative, Positive


def divergence_from_uniform(features: jax.Array) -> jax.Array:
    """float[batch]: `KL(U || p) = -log D - (1/D) sum_j log p_j` of `p = softmax(features)`."""
    width = features.shape[-1]
    return -jnp.log(jnp.asarray(width, features.dtype)) - jax.nn.log_softmax(features).mean(-1)


def sown_features(outputs: Outputs) -> Any:
    """The outputs' `features`: what a classifier's module sows under that name."""
    return getattr(outputs, "features", None)


@algorithms
def fedmax(
    problem: Problem,
    local: Local,
    *,
    beta: NonNegative = 1.0,
    features: Callable[[Any], jax.Array] = sown_features,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """FedAvg on the loss plus `beta KL(U || softmax(a))`, a being what enters the last layer.

    The reported training loss is without the term. The direction is KL(U || p), averaged over the
    batch, as in the FedGBO paper's code; FedMAX's own code divides by D as well, so that its beta
    is D times this one for the same strength. `features` finds a, float[batch, D], in the model's
    outputs. The other options are FedAvg's; "uniform" is what the FedGBO paper's comparisons use.

    Raises:
      ValueError: at the first round, if the outputs hold no such features.
    """

    def penalty(outputs, batch):
        del batch
        activations = features(outputs)
        if not isinstance(activations, jax.Array):
            raise ValueError(
                f"fedmax needs float[batch, D] features, but found {activations!r} in the outputs; "
                'sow them in the module as "features", or give features=...'
            )
        return beta * divergence_from_uniform(activations)

    train = local_training(problem, local, penalty)

    def client_update(params, state, data, visit, key):
        trained = train(params, data, visit, key)
        return state, optax.tree.sub(params, trained.params), trained.report

    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting=weighting)
    return frame._replace(client_update=client_update)
