"""Feature shift: the inputs of each client change in its own way, after the partition."""

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.core.checks import check_seed
from fedjax_algos.core.options import Count, Positive
from fedjax_algos.core.registry import Registry
from fedjax_algos.data.partitioning.base import Partition

shifts = Registry[np.ndarray]("shift", np.ndarray)

_ROWS = 1000  # of noise that are drawn at once
_NOISE = 21  # beside the seed, so that no other draw has the same numbers


def _clients_of(inputs: np.ndarray, partition: Partition, seed: int) -> np.ndarray:
    """Returns the client of each example, int[examples]; -1 if no client has it."""
    check_seed(seed)
    clients = np.full(len(inputs), -1)
    clients[partition.indices] = np.repeat(np.arange(partition.num_clients), partition.counts())
    held = len(np.unique(partition.indices))
    fix = "give a partition without shared examples"
    require(held == len(partition.indices), f"shift: clients share examples; {fix}")
    return clients


@shifts.register
def noise(
    inputs: np.ndarray, partition: Partition, seed: int, *, level: Positive = 0.5
) -> np.ndarray:
    """Adds Gaussian noise to the inputs, whose deviation grows from client to client.

    Client i of N has the deviation `level i / (N - 1)`. Whole numbers, such as pixels of 8 bits,
    are in units of 1/255: their noise is multiplied by 255, and the sum is rounded and limited to 0
    to 255. In the code of Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022,
    https://arxiv.org/abs/2102.02079, the last client has no noise, and nothing is limited.

    Args:
      inputs: [examples, ...].
      partition, seed: which examples each client has, and the seed of the noise.
      level: the deviation of the last client, above 0.

    Raises:
      ValueError: if clients share examples.
    """
    clients = _clients_of(inputs, partition, seed)
    deviations = level * np.maximum(clients, 0) / max(partition.num_clients - 1, 1)
    rng, shifted = np.random.default_rng([seed, _NOISE]), inputs.copy()
    whole = inputs.dtype.kind in "iu"
    for start in range(0, len(inputs), _ROWS):
        part = slice(start, start + _ROWS)
        drawn = rng.standard_normal(inputs[part].shape, np.float32)
        scale = deviations[part].reshape(-1, *[1] * (inputs.ndim - 1))
        moved = inputs[part] + drawn * scale * (255 if whole else 1)
        shifted[part] = np.clip(np.rint(moved), 0, 255) if whole else moved
    return shifted


@shifts.register
def rotation(
    inputs: np.ndarray, partition: Partition, seed: int, *, groups: Count = 4
) -> np.ndarray:
    """Rotates the images of each group of clients by its own angle.

    Client i is in the group i mod Q of Q groups, and group q turns its images by q 360 / Q degrees.
    Ghosh et al., "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020,
    https://arxiv.org/abs/2006.04088, have four groups of rotated MNIST.

    Args:
      inputs: [examples, side, side, ...], square images.
      partition, seed: which examples each client has; the seed is not used.
      groups: Q, which is 1, 2 or 4, so that no pixel is interpolated.

    Raises:
      ValueError: for another number of groups, for inputs that are not square images, or if clients
        share examples.
    """
    require(groups in (1, 2, 4), f"rotation: groups={groups!r}; give 1, 2 or 4")
    square = inputs.ndim >= 3 and inputs.shape[1] == inputs.shape[2]
    fix = "give a data set of square images"
    require(square, f"rotation: the inputs have shape {inputs.shape[1:]}; {fix}")
    clients, shifted = _clients_of(inputs, partition, seed), inputs.copy()
    for group in range(1, groups):
        rows = (clients >= 0) & (clients % groups == group)
        shifted[rows] = np.rot90(inputs[rows], group * 4 // groups, axes=(1, 2))
    return shifted
