"""Residual networks for 32x32 images.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
https://arxiv.org/abs/1512.03385, in the variants of the papers.
"""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from fedjax_algos.core import Problem
from fedjax_algos.core.options import Count
from fedjax_algos.models.adapters import classifier
from fedjax_algos.models.convolutional import Convolutions
from fedjax_algos.models.layers.convolution import Conv
from fedjax_algos.models.layers.initialisation import initialisers, kaiming_normal
from fedjax_algos.models.preprocessing import Augmentation, augmented
from fedjax_algos.models.registry import models

Norm = Literal["group", "batch"]


class Normalisation(nn.Module):
    """GroupNorm, or BatchNorm whose statistics exclude the masked rows of a short batch."""

    kind: Norm
    groups: int  # of channels, for GroupNorm
    training: bool
    mask: jnp.ndarray | None  # bool[batch]: real rows

    @nn.compact
    def __call__(self, x):
        if self.kind == "group":
            return nn.GroupNorm(self.groups, epsilon=1e-5)(x)
        mask = None if self.mask is None else self.mask.reshape(-1, *(1,) * (x.ndim - 1))
        return nn.BatchNorm(not self.training, momentum=0.9, epsilon=1e-5)(x, mask=mask)


class Block(nn.Module):
    """Two convolutions and a shortcut: zeros ("A") or a 1x1 convolution ("B") for new channels."""

    features: int
    stride: int
    shortcut: Literal["A", "B"]
    convolution: type
    normalisation: type

    @nn.compact
    def __call__(self, x):
        y = self.convolution(self.features, (3, 3), self.stride, 1)(x)
        y = nn.relu(self.normalisation()(y))
        y = self.normalisation()(self.convolution(self.features, (3, 3), 1, 1)(y))
        if x.shape != y.shape and self.shortcut == "A":
            added = self.features - x.shape[-1]
            x = x[:, :: self.stride, :: self.stride]
            x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (added // 2, added - added // 2)))
        elif x.shape != y.shape:
            x = self.normalisation()(self.convolution(self.features, (1, 1), self.stride, 0)(x))
        return nn.relu(x + y)


class ResidualNetwork(nn.Module):
    """A 3x3 convolution, stages of blocks, the mean over the image, and a dense layer.

    Each stage after the first halves the height and width.
    """

    widths: tuple[int, ...]  # of the stages
    blocks: int  # of a stage
    num_classes: int
    shortcut: Literal["A", "B"]
    norm: Norm
    groups: int
    convolutions: Convolutions

    @nn.compact
    def __call__(self, x, training=False, mask=None):
        x = x[..., None] if x.ndim == 3 else x
        convolution = partial(
            Conv, use_bias=False, kernel_init=kaiming_normal, implementation=self.convolutions
        )
        normalisation = partial(Normalisation, self.norm, self.groups, training, mask)
        x = nn.relu(normalisation()(convolution(self.widths[0], (3, 3), 1, 1)(x)))
        for stage, width in enumerate(self.widths):
            for block in range(self.blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = Block(width, stride, self.shortcut, convolution, normalisation)(x)
        x = x.mean((1, 2))
        self.sow("intermediates", "features", x)
        bias_init = initialisers("torch", x.shape[-1])["bias_init"]
        return nn.Dense(self.num_classes, kernel_init=kaiming_normal, bias_init=bias_init)(x)


@models.register
def resnet20(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "group",
    groups: Count = 2,
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """GHBM's ResNet-20: widths 16, 32 and 64, and shortcuts without parameters.

    It has 269,722 parameters for CIFAR-10.

    Args:
      example_shape: of one image, [height, width] or [height, width, channels].
      num_classes: number of labels.
      norm: GroupNorm or BatchNorm.
      groups: number of groups of channels of GroupNorm; a divisor of 16.
      convolutions: implementation of the convolutions; see `convolve`.
      augmentation: preprocessing of the images; see `augmented`.
    """
    module = ResidualNetwork((16, 32, 64), 3, num_classes, "A", norm, groups, convolutions)
    return augmented(classifier(module, example_shape), augmentation)


@models.register
def resnet18(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "batch",
    groups: Count = 32,
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """FedCompass' ResNet-18: widths 64, 128, 256 and 512, and a first convolution of 3x3.

    It has 11,173,962 parameters for CIFAR-10.

    Args:
      example_shape: of one image, [height, width] or [height, width, channels].
      num_classes: number of labels.
      norm: GroupNorm or BatchNorm.
      groups: number of groups of channels of GroupNorm; a divisor of 64.
      convolutions: implementation of the convolutions; see `convolve`.
      augmentation: preprocessing of the images; see `augmented`.
    """
    module = ResidualNetwork((64, 128, 256, 512), 2, num_classes, "B", norm, groups, convolutions)
    return augmented(classifier(module, example_shape), augmentation)
