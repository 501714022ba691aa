"""Residual networks: the papers' for 32x32 images, and torchvision's for ImageNet.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
https://arxiv.org/abs/1512.03385.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from fedjax_algos.base.files import PathLike
from fedjax_algos.core import Problem
from fedjax_algos.core.options import Count
from fedjax_algos.models.adapters import IMAGES, classifier, model_of
from fedjax_algos.models.large.weights import Head, Names, with_weights
from fedjax_algos.models.layers.common import Norm, Normalisation, initialisers, kaiming_out
from fedjax_algos.models.layers.convolution import Conv, Convolutions
from fedjax_algos.models.layers.native import Dense
from fedjax_algos.models.layers.shifted import max_pool
from fedjax_algos.models.preprocessing import Augmentation, augmented

WIDTHS = (64, 128, 256, 512)
kaiming_in = nn.initializers.variance_scaling(2.0, "fan_in", "normal")


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


class Bottleneck(Block):
    """1x1 to the features, 3x3 with the stride, 1x1 to four times as many, and a shortcut ("B").

    He et al. have the stride in the first convolution; torchvision calls this form version 1.5.
    """

    @nn.compact
    def __call__(self, x):
        y = nn.relu(self.normalisation()(self.convolution(self.features, (1, 1), 1, 0)(x)))
        y = self.convolution(self.features, (3, 3), self.stride, 1)(y)
        y = nn.relu(self.normalisation()(y))
        y = self.normalisation()(self.convolution(4 * self.features, (1, 1), 1, 0)(y))
        if x.shape != y.shape:
            x = self.normalisation()(self.convolution(4 * self.features, (1, 1), self.stride, 0)(x))
        return nn.relu(x + y)


class ResidualNetwork(nn.Module):
    """A convolution, stages of blocks, the mean over the image, and a dense layer."""

    widths: tuple[int, ...]  # of the stages
    blocks: tuple[int, ...]  # of each stage
    num_classes: int
    shortcut: Literal["A", "B"]
    norm: Norm
    groups: int
    convolutions: Convolutions
    block: type = Block
    imagenet: bool = False  # stem and initialisation as torchvision has them

    @nn.compact
    def __call__(self, x, training=False):
        x = x[..., None] if x.ndim == 3 else x
        kaiming = {"kernel_init": kaiming_out if self.imagenet else kaiming_in}
        convolution = partial(Conv, use_bias=False, implementation=self.convolutions, **kaiming)
        normalisation = partial(Normalisation, self.norm, self.groups, training)
        stem = ((7, 7), 2, 3) if self.imagenet else ((3, 3), 1, 1)
        x = nn.relu(normalisation()(convolution(self.widths[0], *stem)(x)))
        if self.imagenet:
            x = max_pool(x, (3, 3), (2, 2), 1)
        for stage, (width, blocks) in enumerate(zip(self.widths, self.blocks, strict=True)):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = self.block(width, stride, self.shortcut, convolution, normalisation)(x)
        x = x.mean((1, 2))
        self.sow("intermediates", "features", x)
        options = initialisers("torch", x.shape[-1])
        options |= {"name": "head"} if self.imagenet else {"kernel_init": kaiming_in}
        return Dense(self.num_classes, **options)(x)


def torch_names(blocks: Sequence[int], convolutions: int) -> list[Names]:
    """Returns torchvision's and timm's names; blocks have `convolutions` besides the shortcut's."""
    names = {"Conv_0": "conv1", "Normalisation_0": "bn1", "head": "fc"}
    kind = {2: "Block", 3: "Bottleneck"}[convolutions]
    theirs = [f"layer{stage}.{n}" for stage, count in enumerate(blocks, 1) for n in range(count)]
    for number, block in enumerate(theirs):
        parts = [(f"conv{n}", f"bn{n}") for n in range(1, convolutions + 1)]
        for n, (conv, norm) in enumerate([*parts, ("downsample.0", "downsample.1")]):
            names[f"{kind}_{number}/Conv_{n}"] = f"{block}.{conv}"
            names[f"{kind}_{number}/Normalisation_{n}"] = f"{block}.{norm}"
    return [names]


@model_of(IMAGES)
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
      example_shape, num_classes, convolutions, augmentation: as for `cnn_fedgbo`.
      norm: GroupNorm or BatchNorm. Epsilon is 1e-5, and BatchNorm's momentum 0.9, which torch calls
        0.1. In training its running variance averages the batches' biased variances, as in Flax;
        torch averages unbiased ones.
      groups: number of groups of channels of GroupNorm; a divisor of all widths.
    """
    module = ResidualNetwork((16, 32, 64), (3, 3, 3), num_classes, "A", norm, groups, convolutions)
    return augmented(classifier(module, example_shape), augmentation)


@model_of(IMAGES)
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

    It has 11,173,962 parameters for CIFAR-10. For large images, and with torchvision's weights, see
    `resnet18_imagenet`.

    Args:
      example_shape, num_classes, norm, groups, convolutions, augmentation: as for `resnet20`.
    """
    module = ResidualNetwork(WIDTHS, (2, 2, 2, 2), num_classes, "B", norm, groups, convolutions)
    return augmented(classifier(module, example_shape), augmentation)


@model_of(IMAGES)
def resnet18_imagenet(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    weights: PathLike | None = None,
    head: Head = "loaded",
    norm: Norm = "batch",
    groups: Count = 32,
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """torchvision's ResNet-18, for images of any size such as 224x224, which it reduces 32 times.

    It begins with a 7x7 convolution and a 3x3 max pool, each of stride 2, where `resnet18` has one
    3x3 convolution of stride 1. It has 11,689,512 parameters for 1,000 classes. Initial kernels are
    Kaiming normal by fan out; the head has PyTorch's defaults.

    Args:
      example_shape, num_classes, norm, groups, convolutions, augmentation: as for `resnet20`.
      weights: file of torchvision's or timm's weights, see `load_weights`; None draws the initial
        params. The weights of ImageNet expect `augmentation="imagenet_normalised"`.
      head: "loaded" takes the last layer from `weights`; "new" draws it, for other classes.
    """
    options = norm, groups, convolutions, Block, True
    module = ResidualNetwork(WIDTHS, (2, 2, 2, 2), num_classes, "B", *options)
    names = torch_names(module.blocks, 2)
    problem = with_weights(classifier(module, example_shape), weights, head, names)
    return augmented(problem, augmentation)


@model_of(IMAGES)
def resnet50(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    weights: PathLike | None = None,
    head: Head = "loaded",
    norm: Norm = "batch",
    groups: Count = 32,
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """torchvision's ResNet-50 of bottlenecks, for images of any size such as 224x224.

    It has 25,557,032 parameters for 1,000 classes. The stride is in the 3x3 convolution of a
    bottleneck (version 1.5); the paper has it in the first 1x1 convolution. Everything else is as
    in `resnet18_imagenet`.

    Args:
      example_shape, num_classes, weights, head, norm, groups, convolutions, augmentation: as for
        `resnet18_imagenet`.
    """
    options = norm, groups, convolutions, Bottleneck, True
    module = ResidualNetwork(WIDTHS, (3, 4, 6, 3), num_classes, "B", *options)
    names = torch_names(module.blocks, 3)
    problem = with_weights(classifier(module, example_shape), weights, head, names)
    return augmented(problem, augmentation)
