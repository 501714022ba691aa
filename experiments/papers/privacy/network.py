"""TF Privacy's network for MNIST, for the claims on differential privacy."""

import flax.linen as nn

from fedjax_algos.core import Problem
from fedjax_algos.models import classifier


class Network(nn.Module):
    """Two convolutions, 8x8 and 4x4, and a dense layer of 32: 26,010 parameters."""

    num_classes: int

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(16, (8, 8), (2, 2), "SAME")(x[..., None]))
        x = nn.max_pool(x, (2, 2), (1, 1))
        x = nn.relu(nn.Conv(32, (4, 4), (2, 2), "VALID")(x))
        x = nn.max_pool(x, (2, 2), (1, 1))
        x = nn.relu(nn.Dense(32)(x.reshape(len(x), -1)))
        return nn.Dense(self.num_classes)(x)


def tf_privacy(example_shape: tuple[int, ...], num_classes: int) -> Problem:
    """The network of tutorials/mnist_dpsgd_tutorial.py in tensorflow/privacy at 03035d5.

    Args:
      example_shape: of one image, [height, width].
      num_classes: number of labels.
    """
    return classifier(Network(num_classes), example_shape)
