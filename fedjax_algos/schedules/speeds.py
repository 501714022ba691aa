"""Clients' speeds: the distributions of the mean time of a client's local step, and their draws.

A draw depends on the seed and the client alone. Therefore algorithms that are compared have the
same fast and slow clients, in rounds with a deadline as on the virtual clock.
"""

import functools
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fedjax_algos.core.options import Range

Speeds = Literal["homogeneous", "normal", "exponential"]
TimeFloor = Annotated[float, Range(0, 1)]

_SPEEDS = 12  # tag of the stream of NumPy's generators; those of local work are beside it
CLIENTS_IN_BLOCK = 4096  # clients whose speeds are drawn in one call


class SpeedDistribution(NamedTuple):
    """The distribution of t_i, the mean time of a local step of client i, in units of its mean mu.

    "homogeneous" is 1; "normal" is N(1, 0.3^2), drawn again while it is at most 0.05;
    "exponential" has mean 1. An exponential draw may be so near zero that one client makes almost
    all server steps: the ratio of the slowest to the fastest of m clients has no mean. So draws can
    be binned, `t <- (floor(t / b) + 1/2) b`, and then raised to the floor, `t <- max(t, floor)`.

    FedCompass (https://arxiv.org/abs/2309.14675) draws from Exp and says nothing about values near
    zero. An early driver, `examples/flamby_async_mpi_update.py` of https://github.com/APPFL/APPFL,
    has the option `exp_bin_size`, "width of the bin when discretizing the client time-per-batch in
    exponential distribution", which is 0.1 s where the average is 0.15 s (b = 0.667). The code that
    read the option was not found in what is released. The middle of the bin is chosen here because
    it keeps the mean, up to a factor of about 1 + b^2 / 12.

    Attributes:
      name: of the distribution.
      floor: the least t_i; 0 for none.
      bin_width: b, or None for draws that are not binned. It is only for "exponential".
    """

    name: Speeds
    floor: float = 0.01
    bin_width: float | None = None

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """float[shape]: independent draws of t_i / mu.

        Args:
          rng: the generator.
          shape: of the result.
        """
        if self.name == "homogeneous":
            times = np.ones(shape)
        elif self.name == "exponential":
            times = rng.standard_exponential(shape)
        else:
            times = rng.normal(1, 0.3, shape)
            while (low := times <= 0.05).any():
                times[low] = rng.normal(1, 0.3, low.sum())
        if self.bin_width is not None:
            times = (np.floor(times / self.bin_width) + 0.5) * self.bin_width
        return np.maximum(times, self.floor)


def speed_distribution(
    name: Speeds, floor: float, bin_width: float | None, owner: str
) -> SpeedDistribution:
    """The distribution of the options `speeds`, `time_floor` and `time_bin`.

    Args:
      name: of the distribution.
      floor: the least t_i / mu.
      bin_width: b / mu, or None.
      owner: whose options they are, for the message.

    Raises:
      ValueError: for bins of another distribution than "exponential".
    """
    if bin_width is not None and name != "exponential":
        raise ValueError(
            f"{owner}: time_bin={bin_width} is for exponential speeds, but speeds={name}; leave "
            "time_bin out, or give speeds=exponential"
        )
    return SpeedDistribution(name, floor, bin_width)


def relative_times(distribution: SpeedDistribution, seed: int, num_clients: int) -> np.ndarray:
    """float[num_clients]: t_i / mu; each depends on (seed, client) alone.

    Args:
      distribution: of the times.
      seed: of the run.
      num_clients: N, the number of clients.
    """
    blocks = range(-(-num_clients // CLIENTS_IN_BLOCK))
    drawn = [block_of_times(distribution, seed, block) for block in blocks]
    return np.concatenate(drawn)[:num_clients]


@functools.lru_cache(maxsize=256)
def block_of_times(distribution: SpeedDistribution, seed: int, block: int) -> np.ndarray:
    """float[CLIENTS_IN_BLOCK]: t_i / mu of the clients from `block * CLIENTS_IN_BLOCK` on.

    Args:
      distribution: of the times.
      seed: of the run.
      block: number of the block of clients, from 0.
    """
    return distribution.draw(np.random.default_rng([seed, _SPEEDS, block]), (CLIENTS_IN_BLOCK,))
