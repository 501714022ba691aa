"""The first stages of MobileNetV2 and EfficientNet-B0, for the stand-ins of the large tasks.

The blocks are those of `mobilenet_v2` and `efficientnet_b0`; there are fewer of them, so that they
compile in seconds. Weights of the whole networks do not fit.
"""

import flax.linen as nn

from fedjax_algos.core import Problem
from fedjax_algos.core.options import Count
from fedjax_algos.models import classifier
from fedjax_algos.models.inverted_residual import (
    EFFICIENTNET_B0,
    MOBILENET_V2,
    InvertedResidualNetwork,
)
from fedjax_algos.models.preprocessing import Augmentation, augmented


def mobilenet_v2(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    stages: Count = 2,
    augmentation: Augmentation = "none",
) -> Problem:
    """MobileNetV2 that ends after the first stages.

    Args:
      example_shape: of one image, [height, width, channels].
      num_classes: number of labels.
      stages: of the seven, those that are kept.
      augmentation: preprocessing of the images.
    """
    return _network(example_shape, num_classes, MOBILENET_V2[:stages], False, augmentation)


def efficientnet_b0(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    stages: Count = 2,
    augmentation: Augmentation = "none",
) -> Problem:
    """EfficientNet-B0 that ends after the first stages.

    Args:
      example_shape: of one image, [height, width, channels].
      num_classes: number of labels.
      stages: of the seven, those that are kept.
      augmentation: preprocessing of the images.
    """
    return _network(example_shape, num_classes, EFFICIENTNET_B0[:stages], True, augmentation)


def _network(example_shape, num_classes, stages, efficient, augmentation):
    """Without dropout, which small images and few steps do not bear."""
    activation = nn.silu if efficient else nn.relu6
    module = InvertedResidualNetwork(
        stages, num_classes, activation, efficient, 0.0, 0.0, "batch", 8, "auto",
        nn.initializers.normal(0.01),
    )  # fmt: skip
    return augmented(classifier(module, example_shape), augmentation)
