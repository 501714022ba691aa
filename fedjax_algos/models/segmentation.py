"""Problems, Dice loss and Dice scores of masks, in which each voxel of an example has a label."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_algos.core import Batch, MetricValues, Problem
from fedjax_algos.models.adapters import Inputs, classifier, scale_pixels
from fedjax_algos.models.outputs import (
    Loss,
    Outputs,
    accuracy,
    cross_entropy,
    losses,
    metrics,
    of_classifiers,
)


@of_classifiers(losses)
def dice(outputs: Outputs, batch: Batch) -> jax.Array:
    """Soft Dice loss: `mean_k 1 - 2 sum_v p_vk g_vk / (sum_v p_vk + sum_v g_vk + 1e-9)`.

    p_vk is the softmax probability of class k in voxel v, and g_vk is 1 if k is its label and
    else 0. The mean is over all classes; one that no voxel has as its label contributes 1.

    The loss of Fed-IXI in FLamby, Ogier du Terrail et al., NeurIPS 2022,
    https://arxiv.org/abs/2210.04620. That of V-Net, Milletari et al., 3DV 2016,
    https://arxiv.org/abs/1606.04797, has squares of p and g in the denominator.

    Raises:
      ValueError: for labels without a spatial axis.
    """
    probabilities, targets = _soft_masks(outputs, batch)
    overlap, size = _overlap_and_size(probabilities, targets)
    return (1 - 2 * overlap / (size + 1e-9)).mean(-1)


@of_classifiers(metrics)
def soft_dice_score(outputs: Outputs, batch: Batch) -> MetricValues:
    """Dice score of the softmax probabilities, as FLamby measures it on Fed-IXI.

    `mean_k sum_v p_vk g_vk / (sum_v (p_vk + g_vk) / 2 + 1e-7)` over all classes, with the symbols
    of `dice`. A class that has neither probability nor labels has score 1.

    Returns:
      "soft_dice_score", float[batch].

    Raises:
      ValueError: for labels without a spatial axis.
    """
    probabilities, targets = _soft_masks(outputs, batch)
    overlap, size = _overlap_and_size(probabilities, targets)
    scores = jnp.where(size > 0, overlap / (size / 2 + 1e-7), 1)
    return {"soft_dice_score": scores.mean(-1)}


@of_classifiers(metrics)
def dice_score(outputs: Outputs, batch: Batch) -> MetricValues:
    """Dice score of the predicted mask: `mean_k 2 |P_k and G_k| / (|P_k| + |G_k|)`.

    P_k are the voxels whose largest logit is that of class k, and G_k those with the label k. The
    mean is over the classes without 0, the background. A class that is in neither mask has score 1.

    Returns:
      "dice_score", float[batch].

    Raises:
      ValueError: for labels without a spatial axis, and for logits of a single class.
    """
    _check_masks(outputs, batch)
    num_classes = outputs.logits.shape[-1]
    if num_classes < 2:
        raise ValueError(
            "the logits are of 1 class, so that no voxel is background; give logits of at least 2"
        )
    predicted, labelled = (  # counted as whole numbers, which are exact
        jax.nn.one_hot(voxels, num_classes, dtype=jnp.int32)[..., 1:]
        for voxels in (outputs.logits.argmax(-1), batch["y"])
    )
    overlap, size = _overlap_and_size(predicted, labelled)
    scores = jnp.where(size > 0, 2 * overlap / jnp.maximum(size, 1), 1)
    return {"dice_score": scores.mean(-1)}


def voxel_metrics(outputs: Outputs, batch: Batch) -> MetricValues:
    """The share of voxels that are labelled rightly, and the Dice score of the mask."""
    return {**accuracy(outputs, batch), **dice_score(outputs, batch)}


def segmenter(
    module: nn.Module,
    example_shape: tuple[int, ...],
    *,
    loss: Loss = cross_entropy,
    inputs: Inputs = scale_pixels,
    dtype: Any = jnp.float32,
) -> Problem:
    """Makes a problem of a Linen module from volumes or images to the logits of their voxels.

    Batches are dicts of "x" [batch, *example_shape] and "y" int32[batch, ...], the label of each
    voxel. The metrics are the accuracy of the voxels and the Dice score. In everything else it is
    `classifier`.

    Args:
      module: as for `classifier`, but returns float[batch, ..., classes].
      loss: `(outputs, batch) -> float[batch]`, such as `dice`; the default is the mean over the
        voxels of an example.
      example_shape, inputs, dtype: as for `classifier`.
    """
    problem = classifier(module, example_shape, inputs=inputs, dtype=dtype)
    return problem._replace(loss=loss, metrics=voxel_metrics)


def _soft_masks(outputs, batch):
    """Probabilities and labels, float[batch, ..., classes]."""
    _check_masks(outputs, batch)
    probabilities = jax.nn.softmax(outputs.logits)
    classes, dtype = probabilities.shape[-1], probabilities.dtype
    return probabilities, jax.nn.one_hot(batch["y"], classes, dtype=dtype)


def _overlap_and_size(first, second):
    """The sum of the products of two masks, and the sum of both; [batch, classes]."""
    voxels = range(1, first.ndim - 1)
    return (first * second).sum(voxels), (first + second).sum(voxels)


def _check_masks(outputs, batch):
    labels, logits = batch["y"].shape, outputs.logits.shape
    if len(labels) < 2 or labels != logits[:-1]:
        raise ValueError(
            f"Dice scores compare masks, but the labels y have shape {labels} and the logits "
            f"{logits}; give labels [batch, ...] of voxels, such as [batch, depth, height, width], "
            "and logits with one more axis, that of the classes"
        )
