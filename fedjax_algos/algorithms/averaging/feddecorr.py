"""FedDecorr: a penalty on correlated features, against the collapse of dimensions.

Shi et al., "Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated
Learning", ICLR 2023, https://arxiv.org/abs/2210.00226.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.local_steps import uncorrected
from fedjax_algos.core.model_outputs import matrix, sown_features
from fedjax_algos.core.options import NonNegative, Positive


def decorrelation(features: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the mean of `(X^T X)_jk^2 / B` over j != k, float[], X standardised over B rows.

    The variance is the unbiased one plus 1e-8. Rows outside the mask are left out; with fewer than
    two rows the result is 0.
    """
    number, width = mask.sum().astype(features.dtype), features.shape[1]
    rows = mask[:, None]
    mean = jnp.where(rows, features, 0).sum(0, keepdims=True) / number
    centred = jnp.where(rows, features - mean, 0)
    variance = jnp.square(centred).sum(0, keepdims=True) / jnp.maximum(number - 1, 1)
    x = centred * jax.lax.rsqrt(variance + 1e-8)
    squares = jnp.square(x.T @ x)
    return (squares.sum() - jnp.trace(squares)) / max(width * (width - 1), 1) / number


@algorithms.register
def feddecorr(
    problem: Problem,
    local: Local,
    *,
    beta: NonNegative = 0.1,
    features: Callable[[Any], jax.Array] = sown_features,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """FedAvg on the loss plus beta times the mean of `(X^T X)_jk^2 / B` over j != k.

    X are the features of a batch of B examples, standardised over the batch. This is the term of
    the released code (https://github.com/bytedance/FedDecorr), so beta is the published one. It is
    (B - 1)^2 / B times the mean of the squared correlations of two different features. The reported
    training loss does not contain the term.

    Args:
      problem: the model and the loss.
      local: how a client trains. With accumulated gradients the batch of the term is one piece.
      beta: beta, at least 0; 0 is FedAvg.
      features: returns float[batch, D] from the model's outputs.
      server_learning_rate: eta as in `fedavg`, above 0.
      weighting: the average's weights: "examples" (proportional to n_i) or "uniform".

    Raises:
      ValueError: for `example_noise`, which takes the examples of a batch one by one; in the first
        round, if the outputs have no such features, or if batches are not dicts, which have the
        mask of a short batch.
    """
    text = "feddecorr compares the examples of a batch, and example_noise takes one by one"
    require(local.example_noise is None, f"{text}; leave example_noise out")

    def penalty(outputs, batch):
        text = "feddecorr needs batches that are dicts; give federate a dict of arrays"
        require(isinstance(batch, dict), text)
        found = matrix("feddecorr", features(outputs), "features")
        return jnp.full(found.shape[0], beta * decorrelation(found, batch["mask"]))

    rate = {"server_learning_rate": server_learning_rate}
    return fedavg(problem, local, uncorrected, penalty, weighting=weighting, **rate)
