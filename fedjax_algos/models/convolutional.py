"""The papers' small convolutional networks."""

from typing import Literal

import flax.linen as nn

from fedjax_algos.core import Problem
from fedjax_algos.models.adapters import classifier
from fedjax_algos.models.dense import Perceptron
from fedjax_algos.models.layers.convolution import Conv
from fedjax_algos.models.layers.initialisation import Initialisation, starts
from fedjax_algos.models.layers.pooling import max_pool
from fedjax_algos.models.preprocessing import Augmentation, augmented
from fedjax_algos.models.registry import models

Convolutions = Literal["auto", "patches", "lax"]  # those of `convolve` that fit every layer


class ConvolutionalNetwork(nn.Module):
    """Valid convolutions, each with a pool of two and a ReLU, and a perceptron behind them.

    The pool comes before the ReLU, which gives the same numbers at a quarter of the work.
    """

    channels: tuple[int, ...]
    kernel: int
    widths: tuple[int, ...]
    initialisation: Initialisation = "flax"
    convolutions: Convolutions = "auto"

    @nn.compact
    def __call__(self, x):
        x = x[..., None] if x.ndim == 3 else x
        for features in self.channels:
            fan_in = self.kernel**2 * x.shape[-1]
            x = Conv(
                features,
                (self.kernel, self.kernel),
                padding="VALID",
                pool=(2, 2),
                implementation=self.convolutions,
                **starts(self.initialisation, fan_in),
            )(x)
            x = nn.relu(max_pool(x, (2, 2), (2, 2)))
        return Perceptron(self.widths, self.initialisation)(x)


def _network(example_shape, num_classes, channels, kernel, widths, *options):
    initialisation, convolutions, augmentation = options
    module = ConvolutionalNetwork(
        channels, kernel, (*widths, num_classes), initialisation, convolutions
    )
    return augmented(classifier(module, example_shape), augmentation)


@models
def cnn_fedgbo(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    initialisation: Initialisation = "flax",
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """FedGBO's: conv3 32, conv3 64, dense 512 (FEMNIST 870,334, CIFAR-100 1,250,852)."""
    options = initialisation, convolutions, augmentation
    return _network(example_shape, num_classes, (32, 64), 3, (512,), *options)


@models
def lenet(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    initialisation: Initialisation = "flax",
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """GHBM's LeNet: conv5 64, conv5 64, dense 384 and 192 (CIFAR-10 797,962)."""
    options = initialisation, convolutions, augmentation
    return _network(example_shape, num_classes, (64, 64), 5, (384, 192), *options)


@models
def cnn_fedcompass(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    initialisation: Initialisation = "flax",
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """FedCompass's for MNIST: conv5 32, conv5 64, dense 512 (582,026)."""
    options = initialisation, convolutions, augmentation
    return _network(example_shape, num_classes, (32, 64), 5, (512,), *options)
