"""The focal loss of Fed-ISIC2019, whose classes have weights, as in FLamby."""

import jax
import jax.numpy as jnp

from fedjax_algos.core import Batch
from fedjax_algos.core.options import NonNegative
from fedjax_algos.models import losses
from fedjax_algos.models.outputs import Outputs

TRAINING_IMAGES = (3332, 9084, 2649, 712, 1950, 184, 201, 485)  # of each class: 18,597


def weighted_focal(outputs: Outputs, batch: Batch, *, gamma: NonNegative = 2.0) -> jax.Array:
    """`-w_k (1 - p)^gamma log p` of an example of class k; w_k is N / n_k.

    The N = 18,597 training images have n_k of class k. FLamby prints the weights with four digits,
    5.5813, 2.0472, 7.0204, 26.1194, 9.5369, 101.0707, 92.5224 and 38.3443: its `BaselineLoss` in
    https://github.com/owkin/FLamby, flamby/datasets/fed_isic2019/loss.py. The loss of a batch is
    the plain mean, which the weights do not divide.

    Args:
      outputs: of the model, for eight classes.
      batch: with "y", int32[batch], the classes.
      gamma: gamma, at least 0.
    """
    counts = jnp.array(TRAINING_IMAGES, outputs.logits.dtype)
    weights = counts.sum() / counts
    return weights[batch["y"]] * losses["focal"](outputs, batch, gamma=gamma)
