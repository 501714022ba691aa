"""Every kind of model of the package, in small: the one table for what is claimed of all models."""

import flax.linen as nn
import numpy as np
import pytest

from fedjax_algos.models import classifier, models
from fedjax_algos.models.large.inverted_residual import Blocks, InvertedResidualNetwork
from fedjax_algos.models.large.residual import Bottleneck, ResidualNetwork

STAGES = Blocks(1, 4, 1, 1), Blocks(2, 4, 2, 2)
NORM = "batch", 2, "auto"
SHALLOW = {  # the modules of the deep networks, with few blocks
    "inverted residuals": InvertedResidualNetwork(
        STAGES, 10, nn.silu, True, 0.2, 0.2, *NORM, nn.initializers.zeros
    ),
    "blocks": ResidualNetwork((4, 8), (1, 1), 10, "A", "group", 2, "auto"),
    "bottlenecks": ResidualNetwork((4,), (1,), 10, "B", *NORM, Bottleneck, True),
}
TEXTS, PHOTO, VOLUME = ((5,), np.int32), ((16, 16, 3), np.uint8), ((2, 4, 4), np.float32)
KINDS = [  # name, shape and type of an example
    *((name, *PHOTO) for name in ["linear", *SHALLOW]),
    ("cnn_fedgbo", *PHOTO),
    ("vit:depth=1,width=8,heads=2", *PHOTO),
    ("unet_3d:levels=2,features=2", *VOLUME),
    ("gru:layers=1", *TEXTS),
    ("lstm_words:hidden=4,embedding=4", *TEXTS),
]


def model_of_kind(name, shape):
    """The problem of a name in `KINDS`, with ten classes."""
    return classifier(SHALLOW[name], shape) if name in SHALLOW else models.make(name, shape, 10)


def in_all(*cases, mark=pytest.mark.all):
    """Cases of a parametrised test, each a value or a tuple of values, that CI runs."""
    cases = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*case, marks=mark) for case in cases]


def nightly(*cases):
    return in_all(*cases, mark=pytest.mark.nightly)
