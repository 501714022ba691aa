"""The perceptron and the partition in the released code of power of choice, for its claims.

COMMAND   python experiments/papers/claims.py run power_of_choice/figure_4_rounds
EXPECTED  those of the claims
TIME      those of the claims
"""

import flax.linen as nn
import numpy as np

from fedjax_algos.core import Problem
from fedjax_algos.core.options import Positive
from fedjax_algos.data.partitioning import base
from fedjax_algos.data.partitioning.base import Partition
from fedjax_algos.data.partitioning.by_labels import draw_balanced_table
from fedjax_algos.models import classifier
from fedjax_algos.models.layers.common import initialisers
from fedjax_algos.models.preprocessing import normalise

LEAST = 10  # examples of a client; a table with fewer is drawn again
NORMALISED = normalise((0.1307,), (0.3081,))  # those of MNIST, also for Fashion-MNIST


class Perceptron(nn.Module):
    """Hidden layers of 64 and 30 units with ReLUs, and dropout of a half before the last layer."""

    num_classes: int

    @nn.compact
    def __call__(self, x, training):
        x = x.reshape(x.shape[0], -1)
        for width in (64, 30):
            x = nn.relu(nn.Dense(width, **initialisers("torch", x.shape[-1]))(x))
        x = nn.Dropout(0.5, deterministic=not training)(x)
        return nn.Dense(self.num_classes, **initialisers("torch", x.shape[-1]))(x)


def perceptron(example_shape: tuple[int, ...], num_classes: int) -> Problem:
    """The network of the released code, with 52,500 parameters for Fashion-MNIST."""

    def inputs(x):
        return NORMALISED(x[..., None], None, False)

    return classifier(Perceptron(num_classes), example_shape, inputs=inputs)


def dirichlet_capped(
    labels: np.ndarray, num_clients: int, seed: int, *, alpha: Positive = 2.0
) -> Partition:
    """One class after another by a draw of Dir(alpha 1_N), without the shares of large clients.

    Large are clients that already have 1/N of all examples. It is drawn again until every client
    has at least ten.

    Args:
      labels, num_clients, seed: as for other partitions.
      alpha: concentration, above 0.
    """
    labels, rng = base.checked(labels, num_clients, seed, LEAST)
    _, classes, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    while True:
        table = draw_balanced_table(per_class, num_clients, alpha, rng)
        if table.sum(axis=1).min() >= LEAST:
            return base.partition_by_table(classes, table, rng)
