"""The small convolutional networks of the papers."""

from typing import Literal

import flax.linen as nn

from fedjax_algos.core import Problem
from fedjax_algos.models.adapters import classifier
from fedjax_algos.models.dense import Perceptron
from fedjax_algos.models.layers.convolution import Conv
from fedjax_algos.models.layers.initialisation import Initialisation, initialisers
from fedjax_algos.models.layers.pooling import max_pool
from fedjax_algos.models.preprocessing import Augmentation, augmented
from fedjax_algos.models.registry import IMAGES, models, takes

Convolutions = Literal["auto", "patches", "lax"]  # those of `convolve` for layers of any shape


class ConvolutionalNetwork(nn.Module):
    """Convolutions without padding, each followed by max pooling and a ReLU, and a perceptron.

    Pooling precedes the ReLU, which gives the same values for a quarter of the ReLUs.
    """

    channels: tuple[int, ...]  # features of each convolution
    kernel: int  # height and width of the kernels
    widths: tuple[int, ...]  # of the dense layers
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
                **initialisers(self.initialisation, fan_in),
            )(x)
            x = nn.relu(max_pool(x, (2, 2), (2, 2)))
        return Perceptron(self.widths, self.initialisation)(x)


@models.register
@takes(IMAGES)
def cnn_fedgbo(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    initialisation: Initialisation = "flax",
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """FedGBO's network: 3x3 convolutions of 32 and 64 features, and a dense layer of 512.

    It has 870,334 parameters for FEMNIST and 1,250,852 for CIFAR-100.

    Args:
      example_shape: of one image, [height, width] or [height, width, channels].
      num_classes: number of labels.
      initialisation: distribution of the initial parameters, as in Flax or as in PyTorch.
      convolutions: implementation of the convolutions; see `convolve`.
      augmentation: preprocessing of the images; see `augmented`.
    """
    widths = (512, num_classes)
    module = ConvolutionalNetwork((32, 64), 3, widths, initialisation, convolutions)
    return augmented(classifier(module, example_shape), augmentation)


@models.register
@takes(IMAGES)
def lenet(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    initialisation: Initialisation = "flax",
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """GHBM's LeNet: 5x5 convolutions of 64 and 64 features, and dense layers of 384 and 192.

    It has 797,962 parameters for CIFAR-10.

    Args:
      example_shape: of one image, [height, width] or [height, width, channels].
      num_classes: number of labels.
      initialisation: distribution of the initial parameters, as in Flax or as in PyTorch.
      convolutions: implementation of the convolutions; see `convolve`.
      augmentation: preprocessing of the images; see `augmented`.
    """
    widths = (384, 192, num_classes)
    module = ConvolutionalNetwork((64, 64), 5, widths, initialisation, convolutions)
    return augmented(classifier(module, example_shape), augmentation)


@models.register
@takes(IMAGES)
def cnn_fedcompass(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    initialisation: Initialisation = "flax",
    convolutions: Convolutions = "auto",
    augmentation: Augmentation = "none",
) -> Problem:
    """FedCompass' network: 5x5 convolutions of 32 and 64 features, and a dense layer of 512.

    It has 582,026 parameters for MNIST.

    Args:
      example_shape: of one image, [height, width] or [height, width, channels].
      num_classes: number of labels.
      initialisation: distribution of the initial parameters, as in Flax or as in PyTorch.
      convolutions: implementation of the convolutions; see `convolve`.
      augmentation: preprocessing of the images; see `augmented`.
    """
    widths = (512, num_classes)
    module = ConvolutionalNetwork((32, 64), 5, widths, initialisation, convolutions)
    return augmented(classifier(module, example_shape), augmentation)
