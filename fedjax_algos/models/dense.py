"""Linear models and perceptrons."""

import flax.linen as nn

from fedjax_algos.core import Problem
from fedjax_algos.models.adapters import classifier
from fedjax_algos.models.layers.initialisation import Initialisation, starts
from fedjax_algos.models.registry import Width, models


class Perceptron(nn.Module):
    """Dense layers with ReLUs between them; the last one's inputs are sown as "features"."""

    widths: tuple[int, ...]
    initialisation: Initialisation = "flax"

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for width in self.widths[:-1]:
            x = nn.relu(nn.Dense(width, **starts(self.initialisation, x.shape[-1]))(x))
        self.sow("intermediates", "features", x)
        return nn.Dense(self.widths[-1], **starts(self.initialisation, x.shape[-1]))(x)


@models
def linear(
    example_shape: tuple[int, ...], num_classes: int, *, initialisation: Initialisation = "flax"
) -> Problem:
    """Multinomial logistic regression."""
    return classifier(Perceptron((num_classes,), initialisation), example_shape)


@models
def mlp(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    hidden: Width = 64,
    layers: Width = 1,
    initialisation: Initialisation = "flax",
) -> Problem:
    """A perceptron with ReLUs; FedLGA's for Fashion-MNIST is `mlp:hidden=400` (318,010)."""
    widths = (hidden,) * layers + (num_classes,)
    return classifier(Perceptron(widths, initialisation), example_shape)
