"""Linear models, perceptrons, and the small convolutional networks of the papers."""

import flax.linen as nn

from fedjax_algos.core import Problem
from fedjax_algos.core.options import Count, Layers
from fedjax_algos.models.adapters import IMAGES, NUMBERS, classifier, model_of
from fedjax_algos.models.layers.common import Initialisation, initialisers
from fedjax_algos.models.layers.convolution import Conv, Convolutions
from fedjax_algos.models.layers.native import Dense
from fedjax_algos.models.layers.shifted import max_pool
from fedjax_algos.models.preprocessing import Augmentation, augmented


class Perceptron(nn.Module):
    """Dense layers with ReLUs between them; the last layer's inputs are sown as "features"."""

    widths: tuple[int, ...]  # of the layers; the last is the number of classes
    initialisation: Initialisation = "flax"

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for width in self.widths[:-1]:
            x = nn.relu(Dense(width, **initialisers(self.initialisation, x.shape[-1]))(x))
        self.sow("intermediates", "features", x)
        return Dense(self.widths[-1], **initialisers(self.initialisation, x.shape[-1]))(x)


class ConvolutionalNetwork(nn.Module):
    """Convolutions without padding, each followed by max pooling and a ReLU, and a perceptron."""

    channels: tuple[int, ...]  # features of each convolution
    kernel: int  # height and width of the kernels
    widths: tuple[int, ...]  # of the dense layers
    initialisation: Initialisation = "flax"
    convolutions: Convolutions = "auto"

    @nn.compact
    def __call__(self, x):
        x = x[..., None] if x.ndim == 3 else x
        for features in self.channels:
            options = {"padding": "VALID", "pool": (2, 2), "implementation": self.convolutions}
            options |= initialisers(self.initialisation, self.kernel**2 * x.shape[-1])
            x = Conv(features, (self.kernel, self.kernel), **options)(x)
            x = nn.relu(max_pool(x, (2, 2), (2, 2)))  # this order needs a quarter of the ReLUs
        return Perceptron(self.widths, self.initialisation)(x)


@model_of(NUMBERS)
def linear(
    example_shape: tuple[int, ...], num_classes: int, *, initialisation: Initialisation = "flax"
) -> Problem:
    """Multinomial logistic regression.

    Args:
      example_shape, num_classes: shape of one example, numbers, and the number of labels.
      initialisation: distribution of the initial parameters, as in Flax or as in PyTorch.
    """
    return classifier(Perceptron((num_classes,), initialisation), example_shape)


@model_of(NUMBERS)
def mlp(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    hidden: Count = 64,
    layers: Layers = 1,
    initialisation: Initialisation = "flax",
) -> Problem:
    """A multilayer perceptron with ReLUs.

    FedLGA's network for Fashion-MNIST is `mlp:hidden=400` (318,010 parameters).

    Args:
      example_shape, num_classes, initialisation: as for `linear`.
      hidden, layers: width and number of the hidden layers, at least 1.
    """
    widths = (hidden,) * layers + (num_classes,)
    return classifier(Perceptron(widths, initialisation), example_shape)


@model_of(IMAGES)
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
      example_shape, num_classes: shape of one image, [height, width] or [height, width, channels],
        and the number of labels.
      initialisation: as for `linear`.
      convolutions: implementation of the convolutions, see `convolve`.
      augmentation: "normalised" uses CIFAR-10's means and standard deviations; "cifar" crops and
        flips each training image before that; "cifar_by_batch" uses one offset and one decision for
        a whole batch, as in FedGBO's and GHBM's code. "imagenet_normalised" uses ImageNet's means
        and standard deviations, which pretrained weights expect; "imagenet_flipped" flips training
        images before that; "imagenet_cropped" first cuts random boxes out of them and resizes
        these to the size of the image. "none" leaves images unchanged.
    """
    module = ConvolutionalNetwork((32, 64), 3, (512, num_classes), initialisation, convolutions)
    return augmented(classifier(module, example_shape), augmentation)


@model_of(IMAGES)
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
      example_shape, num_classes, initialisation, convolutions, augmentation: as for `cnn_fedgbo`.
    """
    widths = (384, 192, num_classes)
    module = ConvolutionalNetwork((64, 64), 5, widths, initialisation, convolutions)
    return augmented(classifier(module, example_shape), augmentation)


@model_of(IMAGES)
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
      example_shape, num_classes, initialisation, convolutions, augmentation: as for `cnn_fedgbo`.
    """
    module = ConvolutionalNetwork((32, 64), 5, (512, num_classes), initialisation, convolutions)
    return augmented(classifier(module, example_shape), augmentation)
