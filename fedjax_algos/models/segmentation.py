"""Segmentation: problems, Dice loss and Dice scores for masks of voxels; a U-Net for volumes.

The U-Net is from Çiçek et al., "3D U-Net: Learning Dense Volumetric Segmentation from Sparse
Annotation", MICCAI 2016, https://arxiv.org/abs/1606.06650, in the variant of FLamby's Fed-IXI:
Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in
Realistic Healthcare Settings", NeurIPS 2022, https://arxiv.org/abs/2210.04620. FLamby takes it from
the package `unet` 0.7.7 of Pérez-García, https://github.com/fepegar/unet.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike
from fedjax_algos.core import Batch, MetricValues, Problem
from fedjax_algos.core.options import Count, Layers
from fedjax_algos.models.adapters import VOLUMES, Inputs, classifier, model_of, scale_pixels
from fedjax_algos.models.large.weights import Head, Names, load_weights, with_weights
from fedjax_algos.models.layers.common import Norm, Normalisation, initialisers
from fedjax_algos.models.layers.convolution import Convolutions
from fedjax_algos.models.layers.native import Dense
from fedjax_algos.models.layers.volumes import Conv3D, max_pool_3d, upsample_3d
from fedjax_algos.models.outputs import Outputs, accuracy, cross_entropy, losses, metrics


@losses.register
def dice(outputs: Outputs, batch: Batch) -> jax.Array:
    """Soft Dice loss: `mean_k 1 - 2 sum_v p_vk g_vk / (sum_v p_vk + sum_v g_vk + 1e-9)`.

    p_vk is the softmax probability of class k in voxel v, and g_vk is 1 if k is its label and else
    0. The mean is over all classes; a class without labels contributes 1.

    This is FLamby's loss for Fed-IXI, Ogier du Terrail et al., NeurIPS 2022,
    https://arxiv.org/abs/2210.04620. V-Net's loss, Milletari et al., 3DV 2016,
    https://arxiv.org/abs/1606.04797, has squares of p and g in the denominator.

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].

    Raises:
      ValueError: for labels without a spatial axis.
    """
    overlap, size = _soft_overlap_and_size(outputs, batch)
    return (1 - 2 * overlap / (size + 1e-9)).mean(-1)


@metrics.register
def soft_dice_score(outputs: Outputs, batch: Batch) -> MetricValues:
    """Dice score of the softmax probabilities, as FLamby measures it on Fed-IXI.

    `mean_k sum_v p_vk g_vk / (sum_v (p_vk + g_vk) / 2 + 1e-7)` over all classes, with the symbols
    of `dice`. A class with neither probability nor labels has score 1.

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].

    Returns:
      "soft_dice_score", float[batch].

    Raises:
      ValueError: for labels without a spatial axis.
    """
    overlap, size = _soft_overlap_and_size(outputs, batch)
    return {"soft_dice_score": jnp.where(size > 0, overlap / (size / 2 + 1e-7), 1).mean(-1)}


@metrics.register
def dice_score(outputs: Outputs, batch: Batch) -> MetricValues:
    """Dice score of the predicted mask: `mean_k 2 |P_k and G_k| / (|P_k| + |G_k|)`.

    P_k are the voxels where class k has the largest logit, and G_k the voxels with label k. The
    mean is over all classes except 0, the background. A class in neither mask has score 1.

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].

    Returns:
      "dice_score", float[batch].

    Raises:
      ValueError: for labels without a spatial axis, and for logits of a single class.
    """
    _check_masks(outputs, batch)
    num_classes = outputs.logits.shape[-1]
    text = "the logits are of 1 class, which is the background; give logits of at least 2 classes"
    require(num_classes > 1, text)
    predicted, labelled = (  # counted as whole numbers, which are exact
        jax.nn.one_hot(voxels, num_classes, dtype=jnp.int32)[..., 1:]
        for voxels in (outputs.logits.argmax(-1), batch["y"])
    )
    overlap, size = _overlap_and_size(predicted, labelled)
    return {"dice_score": jnp.where(size > 0, 2 * overlap / jnp.maximum(size, 1), 1).mean(-1)}


def voxel_metrics(outputs: Outputs, batch: Batch) -> MetricValues:
    """Returns the accuracy of the voxels and the Dice score of the mask."""
    return {**accuracy(outputs, batch), **dice_score(outputs, batch)}


def segmenter(
    module: nn.Module,
    example_shape: tuple[int, ...],
    *,
    loss: Callable[[Outputs, Batch], jax.Array] = cross_entropy,
    inputs: Inputs = scale_pixels,
    dtype: Any = jnp.float32,
) -> Problem:
    """Makes a problem of a Linen module that returns logits for the voxels of volumes or images.

    Batches are dicts of "x" [batch, *example_shape] and "y" int32[batch, ...], the label of each
    voxel. The metrics are the voxels' accuracy and the Dice score. The rest is as in `classifier`.

    Args:
      module: as for `classifier`, but returns float[batch, ..., classes].
      loss: `(outputs, batch) -> float[batch]`, such as `dice`; by default the mean over voxels.
      example_shape, inputs, dtype: as for `classifier`.
    """
    problem = classifier(module, example_shape, inputs=inputs, dtype=dtype)
    return problem._replace(loss=loss, metrics=voxel_metrics)


def _soft_overlap_and_size(outputs, batch):
    """Returns `_overlap_and_size` of the probabilities and the labels."""
    _check_masks(outputs, batch)
    probabilities = jax.nn.softmax(outputs.logits)
    classes, dtype = probabilities.shape[-1], probabilities.dtype
    return _overlap_and_size(probabilities, jax.nn.one_hot(batch["y"], classes, dtype=dtype))


def _overlap_and_size(first, second):
    """Sums the products of two masks, and both masks, over voxels; [batch, classes] each."""
    voxels = range(1, first.ndim - 1)
    return (first * second).sum(voxels), (first + second).sum(voxels)


def _check_masks(outputs, batch):
    labels, logits = batch["y"].shape, outputs.logits.shape
    shapes = f"Dice scores compare masks, but the labels y have shape {labels} and the logits"
    fix = "give labels [batch, ...] of voxels, and logits with one more axis, the classes"
    require(len(labels) > 1 and labels == logits[:-1], f"{shapes} {logits}; {fix}")


class ConvolutionalLayer(nn.Module):
    """A 3x3x3 convolution, a normalisation, and a PReLU with one slope, which begins at 1/4."""

    features: int
    normalisation: type | None  # without one, the convolution has a bias
    convolutions: Convolutions

    @nn.compact
    def __call__(self, x):
        initial = initialisers("torch", 27 * x.shape[-1])
        convolution = partial(Conv3D, implementation=self.convolutions, **initial)
        x = convolution(self.features, (3, 3, 3), use_bias=self.normalisation is None)(x)
        x = x if self.normalisation is None else self.normalisation()(x)
        return nn.PReLU(negative_slope_init=0.25)(x)


class UNet3D(nn.Module):
    """An encoder that halves the volume, a decoder that doubles it, and links between them."""

    num_classes: int
    levels: int
    features: int  # of the first layer
    norm: Norm
    groups: int
    convolutions: Convolutions

    @nn.compact
    def __call__(self, x, training=False):
        depth, height, width = x.shape[1:4]
        factor = 2 ** (self.levels - 1)
        found = f"volumes of {x.shape[1:4]} cannot be halved {self.levels - 1} times"
        fix = f"pad or crop the examples to multiples of {factor}, or give fewer levels"
        require(depth % factor == height % factor == width % factor == 0, f"{found}; {fix}")
        x = x[..., None] if x.ndim == 4 else x
        norm = partial(Normalisation, self.norm, self.groups, training)
        layer = partial(ConvolutionalLayer, normalisation=norm, convolutions=self.convolutions)
        skips = []
        for level in range(self.levels):
            if level:
                skips.append(x)
                x = max_pool_3d(x, (2, 2, 2))
            features = self.features * 2**level
            first = layer(features) if level else layer(features, normalisation=None)
            x = layer(2 * features)(first(x))
        for encoded in reversed(skips):
            x = jnp.concatenate([encoded, upsample_3d(x)], -1)
            x = layer(encoded.shape[-1])(x)
            x = layer(encoded.shape[-1])(x)
        return Dense(self.num_classes, **initialisers("torch", x.shape[-1]), name="head")(x)


def torch_names(levels: int) -> Names:
    """Returns the names of `UNet3D` in the package `unet` and in FLamby."""
    blocks = [f"encoder.encoding_blocks.{level}" for level in range(levels - 1)]
    blocks += ["bottom_block", *(f"decoder.decoding_blocks.{n}" for n in range(levels - 1))]
    names: dict[str, Any] = {
        "head/kernel": ("classifier.conv_layer.weight", lambda weight: weight[..., 0, 0, 0].T),
        "head/bias": "classifier.conv_layer.bias",
    }
    for index, layer in enumerate(f"{block}.conv{n}" for block in blocks for n in (1, 2)):
        ours = f"ConvolutionalLayer_{index}"
        names[f"{ours}/Conv3D_0"] = f"{layer}.conv_layer"
        names[f"{ours}/Normalisation_0"] = f"{layer}.norm_layer"
        slope = f"{layer}.activation_layer.weight", lambda weight: weight.reshape(())
        names[f"{ours}/PReLU_0/negative_slope"] = slope
    return names


@model_of(VOLUMES)
def unet_3d(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    levels: Layers = 3,
    features: Count = 8,
    norm: Norm = "batch",
    groups: Count = 8,
    convolutions: Convolutions = "auto",
    weights: PathLike | None = None,
    head: Head = "loaded",
) -> Problem:
    """FLamby's 3D U-Net for Fed-IXI, which labels each voxel of a volume.

    It has 246,156 parameters for one channel and two classes. Labels "y" are int32[batch, depth,
    height, width]. The loss is the voxels' cross-entropy; FLamby's is `with_loss(problem, "dice")`.
    The metrics are the voxels' accuracy and the Dice score of the mask. If a size is odd, the
    `unet` package crops what the encoder passes on; here it is refused.

    Args:
      example_shape, num_classes: shape of one volume, [depth, height, width] or with channels
        last, and the number of labels.
      norm, groups, head: as for `resnet18_imagenet`.
      convolutions: implementation of the convolutions, see `convolve_3d`.
      levels: number of resolutions; each is half the one before.
      features: features of the first layer, at least 1; each level doubles them.
      weights: a file of the weights of FLamby's network or of `unet`; see `pretrained`.

    Raises:
      ValueError: when the model is initialised, for sizes that cannot be halved.
    """
    module = UNet3D(num_classes, levels, features, norm, groups, convolutions)
    tensors = None
    if weights is not None:  # PyTorch has a second name for each tensor of these layers
        tensors = {name: t for name, t in load_weights(weights).items() if ".block." not in name}
    return with_weights(segmenter(module, example_shape), tensors, head, [torch_names(levels)])
