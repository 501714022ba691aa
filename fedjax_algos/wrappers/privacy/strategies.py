"""Noise that is correlated over rounds, so that its sum over many rounds is smaller.

Round t adds the t-th row of `C^-1 Z`, where the rows of Z are independent, and C is a lower
triangular matrix. A client's part in the rounds is as private as in one release of `C X + Z`, where
X has the clipped sums. So epsilon depends on the sensitivity of C: the largest norm of the sum of
its columns for the rounds of one client.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Strategy(NamedTuple):
    """A matrix C in the form of a stream.

    Attributes:
      sensitivity: `(rounds, separation) -> s` for a client that takes part once at most in any
        `separation` consecutive rounds.
      first: `zeros -> memory`, from zeros like a leaf of the noise.
      step: `(z, memory, number) -> (noise, memory)` of a leaf in a round, whose number begins at 0.
        A memory is one array.
    """

    sensitivity: Callable[[int, int], float]
    first: Callable[[jax.Array], jax.Array]
    step: Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def toeplitz_coefficients(number: int) -> np.ndarray:
    """Returns the first column of the C with the smallest largest error of prefix sums.

    `c_0 = 1` and `c_j = c_(j-1) (2 j - 1) / (2 j)`: Fichtenberger et al., "Constant Matters", ICML
    2023, https://arxiv.org/abs/2202.11205.

    Args:
      number: the number of rounds, or of bands, at least 1.
    """
    j = np.arange(1, number)
    return np.cumprod(np.append(1.0, (2 * j - 1) / (2 * j)))


def toeplitz_sensitivity(column: Sequence[float], rounds: int, separation: int) -> float:
    """Returns the sensitivity of a Toeplitz matrix with a column that falls and is at least 0.

    The worst client takes part in the rounds 0, b, 2 b, ... for the separation b: Dvijotham et al.,
    https://arxiv.org/abs/2404.16706.

    Args:
      column: the first column of C; entries after its end are 0.
      rounds: the number of rounds.
      separation: b, at least 1.
    """
    whole = np.zeros(rounds)
    whole[: len(column)] = column[:rounds]
    total = np.zeros(rounds)
    for start in range(0, rounds, separation):
        total[start:] += whole[: rounds - start]
    return float(np.linalg.norm(total))


def banded(bands: int) -> Strategy:
    """A Toeplitz matrix with the first entries of the best column; keeps `bands - 1` noises.

    One band is independent noise.

    Choquette-Choo et al., "(Amplified) Banded Matrix Factorization", NeurIPS 2023,
    https://arxiv.org/abs/2306.08153.

    Args:
      bands: the number of diagonals, at least 1.
    """
    column = toeplitz_coefficients(bands)

    def first(zeros):
        return jnp.zeros((bands - 1, *zeros.shape), zeros.dtype)

    def step(z, memory, number):
        noise = z - jnp.tensordot(jnp.asarray(column[1:], z.dtype), memory, 1)
        return noise, jnp.concatenate([noise[None], memory])[: bands - 1]

    def sensitivity(rounds, separation):
        return toeplitz_sensitivity(column, rounds, separation)

    return Strategy(sensitivity, first, step)


def buffered(theta: Sequence[float], omega: Sequence[float]) -> Strategy:
    """A buffered linear Toeplitz matrix (BLT): `c_j = sum_i omega_i theta_i^(j-1)`, c_0 = 1.

    Dvijotham et al., "Efficient and Near-Optimal Noise Generation for Streaming Differential
    Privacy", FOCS 2024, https://arxiv.org/abs/2404.16706.

    Args:
      theta: decays of the buffers, between 0 and 1.
      omega: their weights, at least 0, with a sum of at most 1.
    """
    decay, weight = np.asarray(theta, float), np.asarray(omega, float)

    def first(zeros):
        return jnp.zeros((len(decay), *zeros.shape), zeros.dtype)

    def step(z, memory, number):
        noise = z - jnp.tensordot(jnp.asarray(weight, z.dtype), memory, 1)
        old = jnp.asarray(decay, z.dtype).reshape(-1, *[1] * z.ndim) * memory
        return noise, old + noise[None]

    def sensitivity(rounds, separation):
        powers = decay[None] ** np.arange(max(rounds - 1, 0))[:, None]
        return toeplitz_sensitivity(np.append(1.0, powers @ weight), rounds, separation)

    return Strategy(sensitivity, first, step)


def fitted_buffers(rounds: int) -> Strategy:
    """Returns the BLT whose column is closest to the best one, with decays `1 - 4^-i`.

    Args:
      rounds: the number of rounds; the number of buffers is its logarithm to the base 4.
    """
    from scipy import optimize

    number = max(1, math.ceil(math.log(max(rounds, 2), 4)))
    theta = 1 - 4.0 ** -np.arange(1, number + 1)
    powers = theta[None] ** np.arange(max(rounds - 1, 1))[:, None]
    omega, _ = optimize.nnls(powers, toeplitz_coefficients(max(rounds, 2))[1:])
    return buffered(theta.tolist(), omega.tolist())


def tree(rounds: int) -> Strategy:
    """The noise of binary trees over rounds: prefix sums have the noise of a few nodes.

    The first t rounds have the noise of the nodes in t's binary expansion, and a round adds the
    difference of two of these sums. Keeps a noise for each level.

    Kairouz et al., "Practical and Private (Deep) Learning without Sampling or Shuffling", ICML
    2021, https://arxiv.org/abs/2103.00039.

    Args:
      rounds: the largest number of rounds.
    """
    levels = rounds.bit_length()

    def first(zeros):
        return jnp.zeros((levels, *zeros.shape), zeros.dtype)

    def step(z, memory, number):
        bits = (number + 1) >> jnp.arange(levels) & 1
        level = jnp.argmax(bits)  # the lowest bit that is 1; the nodes below it end
        place = jnp.arange(levels).reshape(-1, *[1] * z.ndim)
        new = jnp.where(place == level, z, jnp.where(place < level, 0, memory))
        return new.sum(0) - memory.sum(0), new

    most = rounds

    def sensitivity(rounds, separation):
        squares = [math.inf] * (rounds > most)  # later rounds have no nodes of their own
        for start in range(min(separation, rounds)):
            there = (np.arange(rounds) - start) % separation == 0
            counts = [there[: rounds >> level << level].reshape(-1, 1 << level).sum(1)
                      for level in range(rounds.bit_length())]  # fmt: skip
            squares.append(sum((each**2).sum() for each in counts))
        return math.sqrt(max(squares, default=0))

    return Strategy(sensitivity, first, step)
