"""MobileNetV2 and EfficientNet-B0: networks of inverted residuals, as torchvision has them.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018,
https://arxiv.org/abs/1801.04381. Tan and Le, "EfficientNet: Rethinking Model Scaling for
Convolutional Neural Networks", ICML 2019, https://arxiv.org/abs/1905.11946.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from fedjax_algos.base.files import PathLike
from fedjax_algos.core import Problem
from fedjax_algos.core.options import Count, Decay
from fedjax_algos.models.adapters import IMAGES, classifier, model_of
from fedjax_algos.models.large.weights import Head, Names, with_weights
from fedjax_algos.models.layers.common import Norm, Normalisation, kaiming_out, symmetric_uniform
from fedjax_algos.models.layers.convolution import Conv, Convolutions
from fedjax_algos.models.layers.native import Dense
from fedjax_algos.models.layers.shifted import DepthwiseConv
from fedjax_algos.models.preprocessing import Augmentation, augmented


class Blocks(NamedTuple):
    """Blocks of one width; only the first has the stride."""

    expansion: int  # t: expanded channels for each channel of the input
    features: int  # c: channels of the outputs
    blocks: int  # n
    stride: int  # s
    kernel: int = 3  # height and width of the depthwise kernels


MOBILENET_V2 = (
    Blocks(1, 16, 1, 1), Blocks(6, 24, 2, 2), Blocks(6, 32, 3, 2), Blocks(6, 64, 4, 2),
    Blocks(6, 96, 3, 1), Blocks(6, 160, 3, 2), Blocks(6, 320, 1, 1),
)  # fmt: skip
EFFICIENTNET_B0 = (
    Blocks(1, 16, 1, 1), Blocks(6, 24, 2, 2), Blocks(6, 40, 2, 2, 5), Blocks(6, 80, 3, 2),
    Blocks(6, 112, 3, 1, 5), Blocks(6, 192, 4, 2, 5), Blocks(6, 320, 1, 1),
)  # fmt: skip


class Unit(nn.Module):
    """A convolution without bias, its normalisation, and an activation."""

    convolution: Callable[..., nn.Module]
    normalisation: Callable[..., nn.Module]
    activation: Callable[[jax.Array], jax.Array] | None = None

    @nn.compact
    def __call__(self, x):
        x = self.convolution(name="convolution")(x)
        x = self.normalisation(name="normalisation")(x)
        return x if self.activation is None else self.activation(x)


class SqueezeExcitation(nn.Module):
    """Multiplies each channel by a number in (0, 1), which a perceptron computes from all means."""

    features: int  # of the hidden layer
    convolution: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x):
        means = x.mean((1, 2), keepdims=True)
        hidden = nn.silu(self.convolution(self.features, (1, 1), name="reduce")(means))
        return x * nn.sigmoid(self.convolution(x.shape[-1], (1, 1), name="expand")(hidden))


class InvertedResidual(nn.Module):
    """1x1 to more channels, a depthwise convolution, 1x1 back, and a shortcut if shapes agree."""

    stage: Blocks
    stride: int
    activation: Callable[[jax.Array], jax.Array]
    squeeze: bool  # squeeze-and-excitation, with a quarter of the block's input channels
    drop_rate: float  # of stochastic depth: the branch is left out for an example
    convolution: Callable[..., nn.Module]
    depthwise: Callable[..., nn.Module]
    normalisation: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x, training):
        channels, (expansion, features, _, _, kernel) = x.shape[-1], self.stage

        def one_by_one(features):
            return partial(self.convolution, features, (1, 1), padding=0, use_bias=False)

        y = x
        if expansion > 1:
            wider = one_by_one(expansion * channels)
            y = Unit(wider, self.normalisation, self.activation, name="expand")(y)
        filters = partial(self.depthwise, (kernel, kernel), self.stride, kernel // 2)
        y = Unit(filters, self.normalisation, self.activation, name="depthwise")(y)
        if self.squeeze:
            y = SqueezeExcitation(channels // 4, self.convolution, name="squeeze_excitation")(y)
        y = Unit(one_by_one(features), self.normalisation, name="project")(y)
        if x.shape != y.shape:
            return y
        whole_branch = nn.Dropout(self.drop_rate, broadcast_dims=(1, 2, 3))
        return x + whole_branch(y, deterministic=not training)


class InvertedResidualNetwork(nn.Module):
    """A 3x3 convolution of stride 2, stages of inverted residuals, 1x1, the mean, a dense layer."""

    stages: tuple[Blocks, ...]
    num_classes: int
    activation: Callable[[jax.Array], jax.Array]
    squeeze: bool
    dropout: float
    stochastic_depth: float  # rate of the last block; it grows linearly from 0 in the first
    norm: Norm
    groups: int
    convolutions: Convolutions
    head_init: Any

    @nn.compact
    def __call__(self, x, training=False):
        x = x[..., None] if x.ndim == 3 else x
        kaiming = {"kernel_init": kaiming_out}
        convolution = partial(Conv, implementation=self.convolutions, **kaiming)
        filters: Any = "shifts" if self.convolutions == "patches" else self.convolutions
        depthwise = partial(DepthwiseConv, use_bias=False, implementation=filters, **kaiming)
        normalisation = partial(Normalisation, self.norm, self.groups, training)
        stem = partial(convolution, 32, (3, 3), 2, 1, use_bias=False)
        x = Unit(stem, normalisation, self.activation, name="stem")(x)
        total, done = sum(stage.blocks for stage in self.stages), 0
        for number, stage in enumerate(self.stages):
            for block in range(stage.blocks):
                x = InvertedResidual(
                    stage, 1 if block else stage.stride, self.activation, self.squeeze,
                    self.stochastic_depth * done / total, convolution, depthwise, normalisation,
                    name=f"stage{number}_block{block}",
                )(x, training)  # fmt: skip
                done += 1
        last = partial(convolution, 1280, (1, 1), padding=0, use_bias=False)
        x = Unit(last, normalisation, self.activation, name="last")(x).mean((1, 2))
        x = nn.Dropout(self.dropout)(x, deterministic=not training)
        self.sow("intermediates", "features", x)
        return Dense(self.num_classes, kernel_init=self.head_init, name="head")(x)


def torch_names(stages: Sequence[Blocks], squeeze: bool) -> list[Names]:
    """Returns torchvision's and timm's names of EfficientNet, or MobileNetV2 without `squeeze`."""
    blocks = [(number, block) for number, s in enumerate(stages) for block in range(s.blocks)]
    last = f"features.{len(stages if squeeze else blocks) + 1}"
    rows = [
        ("stem/convolution", "features.0.0", "conv_stem"),
        ("stem/normalisation", "features.0.1", "bn1"),
        ("last/convolution", f"{last}.0", "conv_head"),
        ("last/normalisation", f"{last}.1", "bn2"),
        ("head", "classifier.1", "classifier"),
    ]
    for index, (number, block) in enumerate(blocks, 1):
        n = int(stages[number].expansion > 1)  # units before the depthwise one
        last_of_timm = "conv_pwl" if n else "conv_pw"
        of_block = [
            ("depthwise/convolution", f"{n}.0", "conv_dw"),
            ("depthwise/normalisation", f"{n}.1", f"bn{n + 1}"),
            ("squeeze_excitation/reduce", f"{n + 1}.fc1", "se.conv_reduce"),
            ("squeeze_excitation/expand", f"{n + 1}.fc2", "se.conv_expand"),
            ("project/convolution", f"{n + 2}.0" if squeeze else f"{n + 1}", last_of_timm),
            ("project/normalisation", f"{n + 2}.1" if squeeze else f"{n + 2}", f"bn{n + 2}"),
        ]
        if n:
            of_block += [("expand/convolution", "0.0", "conv_pw")]
            of_block += [("expand/normalisation", "0.1", "bn1")]
        first = f"features.{number + 1}.{block}.block" if squeeze else f"features.{index}.conv"
        rows += [
            (f"stage{number}_block{block}/{ours}", f"{first}.{a}", f"blocks.{number}.{block}.{b}")
            for ours, a, b in of_block
        ]
    return [{ours: theirs[n] for ours, *theirs in rows} for n in (0, 1)]


@model_of(IMAGES)
def mobilenet_v2(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    weights: PathLike | None = None,
    head: Head = "loaded",
    norm: Norm = "batch",
    groups: Count = 8,
    dropout: Decay = 0.2,
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """MobileNetV2 of width 1, for images of any size such as 224x224, which it reduces 32 times.

    It has 3,504,872 parameters for 1,000 classes, and is torchvision's `mobilenet_v2` and timm's
    `mobilenetv2_100`: all padding is symmetric. Initial kernels are Kaiming normal by fan out; the
    head's are normal with 0.01. Dropout precedes the head.

    Args:
      example_shape, num_classes, weights, head, norm, groups, augmentation: as for
        `resnet18_imagenet`.
      dropout: rate of dropout in training, from 0 to below 1.
      convolutions: implementation of the convolutions, see `convolve`; "lax" also makes the
        depthwise ones `lax.conv_general_dilated`.
    """
    module = InvertedResidualNetwork(
        MOBILENET_V2, num_classes, nn.relu6, False, dropout, 0.0, norm, groups, convolutions,
        nn.initializers.normal(0.01),
    )  # fmt: skip
    names = torch_names(MOBILENET_V2, squeeze=False)
    problem = with_weights(classifier(module, example_shape), weights, head, names)
    return augmented(problem, augmentation)


@model_of(IMAGES)
def efficientnet_b0(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    weights: PathLike | None = None,
    head: Head = "loaded",
    norm: Norm = "batch",
    groups: Count = 8,
    dropout: Decay = 0.2,
    stochastic_depth: Decay = 0.2,
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """EfficientNet-B0, for images of any size such as 224x224, which it reduces 32 times.

    It has 5,288,548 parameters for 1,000 classes, and is torchvision's and timm's
    `efficientnet_b0`: all padding is symmetric. The paper's code has asymmetric padding for strides
    of 2, epsilon 1e-3 and momentum 0.99; timm calls that network `tf_efficientnet_b0`. Initial
    kernels are Kaiming normal by fan out; the head's are U(-1 / sqrt(classes), 1 / sqrt(classes)).
    Dropout precedes the head.

    Args:
      example_shape, num_classes, weights, head, norm, groups: as for `mobilenet_v2`.
      dropout, convolutions, augmentation: as for `mobilenet_v2`.
      stochastic_depth: s; for an example, the branch of block l of 16, from 0, is left out with
        probability s l / 16.
    """
    module = InvertedResidualNetwork(
        EFFICIENTNET_B0, num_classes, nn.silu, True, dropout, stochastic_depth, norm, groups,
        convolutions, symmetric_uniform(num_classes**-0.5),
    )  # fmt: skip
    names = torch_names(EFFICIENTNET_B0, squeeze=True)
    problem = with_weights(classifier(module, example_shape), weights, head, names)
    return augmented(problem, augmentation)
