"""MOON: a term pulls features to the global model's, and away from the last local model's.

Li et al., "Model-Contrastive Federated Learning", CVPR 2021, https://arxiv.org/abs/2103.16257.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.model_outputs import matrix, sown_features, teacher
from fedjax_algos.core.options import NonNegative, Positive


def contrast(z: jax.Array, received: jax.Array, last: jax.Array, tau) -> jax.Array:
    """Returns `log(1 + exp((cos(z, z_last) - cos(z, z_received)) / tau))`, float[batch]."""
    to_last, to_received = (
        optax.losses.cosine_similarity(z, other, epsilon=1e-8) for other in (last, received)
    )
    return jax.nn.softplus((to_last - to_received) / tau)


@algorithms.register
def moon(
    problem: Problem,
    local: Local,
    *,
    mu: NonNegative = 1.0,
    tau: Positive = 0.5,
    features: Callable[[Any], jax.Array] = sown_features,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """FedAvg on the loss plus `mu log(1 + exp((cos(z, z_last) - cos(z, z_x)) / tau))`.

    z, z_x and z_last are the features of an example in the local model, in the received model x and
    in the client's last local model; the last two are computed as in evaluation, with the received
    statistics. A client's first last model is the initial one, so the first round has no gradient
    of the term. In the released code (https://github.com/QinbinLi/MOON) the first round has no
    term, a client's first last model is another random model, and z is the output of a projection
    head. A step costs two more forward passes. The reported training loss does not contain the
    term.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      mu: mu, at least 0; 0 is FedAvg.
      tau: tau, the temperature, above 0.
      features: returns z, float[batch, D], from the model's outputs.
      server_learning_rate: eta as in `fedavg`, above 0.
      weighting: the average's weights: "examples" (proportional to n_i) or "uniform".

    Raises:
      ValueError: in the first round, if the outputs have no such features.
    """

    def client_init(params, key):
        return params  # the last local model

    def client_update(x, last, data, dispatch, key):
        of_x, of_last = (teacher(problem, data.model(params), key) for params in (x, last))

        def penalty(outputs, batch):
            found = (features(each) for each in (outputs, of_x(batch), of_last(batch)))
            z, received, before = (matrix("moon", each, "features") for each in found)
            return mu * contrast(z, received, before, tau)

        trained = local_training(problem, local, penalty)(x, data, dispatch, key)
        return trained.params, optax.tree.sub(x, trained.params), trained.report

    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting=weighting)
    return frame._replace(client_init=client_init, client_update=client_update)
