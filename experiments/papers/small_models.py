"""The first stages of MobileNetV2 and EfficientNet-B0, for the stand-ins of the large tasks.

The blocks are those of `mobilenet_v2` and `efficientnet_b0`; there are fewer of them, so that they
compile in seconds. Weights of the whole networks do not fit.
"""

from typing import Literal

import flax.linen as nn

from fedjax_algos.core import Problem
from fedjax_algos.core.options import Count
from fedjax_algos.models import classifier
from fedjax_algos.models.large.inverted_residual import (
    EFFICIENTNET_B0,
    MOBILENET_V2,
    InvertedResidualNetwork,
)
from fedjax_algos.models.preprocessing import Augmentation, augmented

NETWORKS = {"mobilenet_v2": MOBILENET_V2, "efficientnet_b0": EFFICIENTNET_B0}


def first_stages(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    network: Literal["mobilenet_v2", "efficientnet_b0"] = "mobilenet_v2",
    stages: Count = 2,
    augmentation: Augmentation = "none",
) -> Problem:
    """A network that ends after the first stages, without dropout, which small images do not bear.

    Args:
      example_shape: of one image, [height, width, channels].
      num_classes: number of labels.
      network: whose stages these are.
      stages: of the seven, those that are kept.
      augmentation: preprocessing of the images.
    """
    efficient = network == "efficientnet_b0"
    module = InvertedResidualNetwork(
        NETWORKS[network][:stages], num_classes, nn.silu if efficient else nn.relu6, efficient,
        0.0, 0.0, "batch", 8, "auto", nn.initializers.normal(0.01),
    )  # fmt: skip
    return augmented(classifier(module, example_shape), augmentation)
