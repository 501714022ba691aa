"""Residual networks for 32x32 images.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
https://arxiv.org/abs/1512.03385, in the forms that the papers use.
"""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from fedjax_algos.core import Problem
from fedjax_algos.models.adapters import classifier
from fedjax_algos.models.convolutional import Convolutions
from fedjax_algos.models.layers.convolution import Conv
from fedjax_algos.models.layers.initialisation import kaiming_normal, starts
from fedjax_algos.models.preprocessing import Augmentation, augmented
from fedjax_algos.models.registry import Width, models

Norm = Literal["group", "batch"]


class Normalisation(nn.Module):
    """GroupNorm, or BatchNorm whose statistics leave out the masked rows of a short batch."""

    kind: Norm
    groups: int
    training: bool
    mask: jnp.ndarray | None

    @nn.compact
    def __call__(self, x):
        if self.kind == "group":
            return nn.GroupNorm(self.groups, epsilon=1e-5)(x)
        mask = None if self.mask is None else self.mask.reshape(-1, 1, 1, 1)
        normalise = nn.BatchNorm(not self.training, momentum=0.9, epsilon=1e-5)
        return normalise(x, mask=mask)


class Block(nn.Module):
    """Two convolutions and a shortcut, by 1x1 convolution ("B") or by zeros ("A")."""

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
            x = self.convolution(self.features, (1, 1), self.stride, 0)(x)
            x = self.normalisation()(x)
        return nn.relu(x + y)


class ResidualNetwork(nn.Module):
    """A 3x3 stem, stages of blocks that halve the image, the mean over it, and a dense layer."""

    widths: tuple[int, ...]
    blocks: int
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
        start = starts("torch", x.shape[-1]) | {"kernel_init": kaiming_normal}
        return nn.Dense(self.num_classes, **start)(x)


@models
def resnet20(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "group",
    groups: Width = 2,
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """GHBM's ResNet-20: widths 16, 32, 64, shortcuts without parameters (CIFAR-10 269,722)."""
    module = ResidualNetwork((16, 32, 64), 3, num_classes, "A", norm, groups, convolutions)
    return augmented(classifier(module, example_shape), augmentation)


@models
def resnet18(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "batch",
    groups: Width = 32,
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """FedCompass's ResNet-18 with a 3x3 stem: widths 64 to 512 (CIFAR-10 11,173,962)."""
    module = ResidualNetwork((64, 128, 256, 512), 2, num_classes, "B", norm, groups, convolutions)
    return augmented(classifier(module, example_shape), augmentation)
