"""Linear models and multilayer perceptrons."""

import flax.linen as nn

from fedjax_algos.core import Problem
from fedjax_algos.core.options import Count, Layers
from fedjax_algos.models.adapters import classifier
from fedjax_algos.models.layers.initialisation import Initialisation, initialisers
from fedjax_algos.models.registry import NUMBERS, models, takes


class Perceptron(nn.Module):
    """Dense layers with ReLUs between them; the inputs of the last one are sown as "features"."""

    widths: tuple[int, ...]  # of the layers, the last one the number of classes
    initialisation: Initialisation = "flax"

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for width in self.widths[:-1]:
            x = nn.relu(nn.Dense(width, **initialisers(self.initialisation, x.shape[-1]))(x))
        self.sow("intermediates", "features", x)
        return nn.Dense(self.widths[-1], **initialisers(self.initialisation, x.shape[-1]))(x)


@models.register
@takes(NUMBERS)
def linear(
    example_shape: tuple[int, ...], num_classes: int, *, initialisation: Initialisation = "flax"
) -> Problem:
    """Multinomial logistic regression.

    Args:
      example_shape: of one example; it is flattened.
      num_classes: number of labels.
      initialisation: distribution of the initial parameters, as in Flax or as in PyTorch.
    """
    return classifier(Perceptron((num_classes,), initialisation), example_shape)


@models.register
@takes(NUMBERS)
def mlp(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    hidden: Count = 64,
    layers: Layers = 1,
    initialisation: Initialisation = "flax",
) -> Problem:
    """A multilayer perceptron with ReLUs.

    FedLGA's for Fashion-MNIST is `mlp:hidden=400` (318,010 parameters).

    Args:
      example_shape: of one example; it is flattened.
      num_classes: number of labels.
      hidden: width of the hidden layers, at least 1.
      layers: number of hidden layers, at least 1.
      initialisation: distribution of the initial parameters, as in Flax or as in PyTorch.
    """
    widths = (hidden,) * layers + (num_classes,)
    return classifier(Perceptron(widths, initialisation), example_shape)
