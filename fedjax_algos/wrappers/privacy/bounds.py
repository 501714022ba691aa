"""Bounds on epsilon: of one Gaussian release, of known cohorts, and of sampled steps."""

import functools
import math
from typing import Any

import numpy as np


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Returns the exact epsilon of one Gaussian release.

    It is the smallest at least 0 with `Phi(a - eps z) - exp(eps) Phi(-a - eps z) <= delta` for
    `a = 1 / (2 z)`: Balle and Wang, ICML 2018, https://arxiv.org/abs/1805.06530, Theorem 8.

    Args:
      noise: z, the standard deviation divided by the sensitivity, above 0.
      delta: delta.
    """
    return _smallest(lambda epsilon: _gaussian_delta(noise, epsilon), delta)


def gaussian_noise(epsilon: float, delta: float) -> float:
    """Returns the smallest z of one Gaussian release with this epsilon; see `gaussian_epsilon`.

    Args:
      epsilon: epsilon, above 0.
      delta: delta.
    """
    from scipy import optimize

    def excess(log_noise):
        return _gaussian_delta(math.exp(log_noise), epsilon) - delta

    return math.exp(optimize.brentq(excess, -20, 20, xtol=1e-13))


def _gaussian_delta(noise, epsilon):
    from scipy import special

    upper = special.ndtr(0.5 / noise - epsilon * noise)
    return upper - np.exp(epsilon + special.log_ndtr(-0.5 / noise - epsilon * noise))


def _smallest(delta_of, delta):
    """Returns the smallest epsilon with `delta_of(epsilon) <= delta`, for a falling function."""
    from scipy import optimize

    if delta_of(0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(high) > delta:
        high *= 2
    return float(optimize.brentq(lambda e: delta_of(e) - delta, 0, high, xtol=1e-12, rtol=1e-12))


@functools.lru_cache(maxsize=4096)
def conditional(noise: float, rounds: int, chance: float, delta: float) -> float:
    """Returns epsilon if all cohorts are known: k of a client's rounds are binomial."""
    from scipy import stats

    number = np.arange(1, rounds + 1)
    weight, noises = stats.binom.pmf(number, rounds, chance), noise / np.sqrt(number)
    return _smallest(lambda epsilon: (weight * _gaussian_delta(noises, epsilon)).sum(), delta)


@functools.lru_cache(maxsize=4096)
def with_overflow(
    one: Any, rounds: int, chance: float, total: int, slots: int, delta: float
) -> float:
    """Returns epsilon of clients with memory, in Poisson cohorts with few slots.

    A client changes which others take part only in a round where it comes and the others fill all
    slots. tau is the probability of such a round, and delta grows by (1 + exp(epsilon)) tau.
    """
    from scipy import special

    tau = rounds * chance * special.bdtrc(slots - 1, total - 1, chance)
    least = composed_epsilon(one, rounds, delta)
    if least == math.inf:
        return least
    composed = one.self_compose(rounds)
    for epsilon in least * np.geomspace(1, 10, 400):
        if composed.get_delta_for_epsilon(epsilon) + (1 + np.exp(epsilon)) * tau <= delta:
            return float(epsilon)
    return math.inf


@functools.lru_cache(maxsize=64)
def one_step(
    law: str, noise: float, probability: float = 1.0, total: int = 0, slots: int = 0
) -> Any:
    """Returns the PLD of a step; `total` clients come with this probability if `slots` are left.

    Returns None if the losses are too large for floats.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    try:
        # losses grow as 1 / z, or 1 / z^2, so little noise has larger steps between them
        interval = 1e-4 * max(1, 0.5 / noise) ** (1 if law == "laplace" else 2)
        options = {"value_discretization_interval": interval}
        if law == "laplace":
            return pld.from_laplace_mechanism(noise, sampling_prob=probability, **options)
        if slots == total:
            return pld.from_gaussian_mechanism(noise, sampling_prob=probability, **options)
        return pld.from_truncated_subsampled_gaussian_mechanism(
            dataset_size=total,
            sampling_probability=probability,
            truncated_batch_size=slots,
            noise_multiplier=noise,
            **options,
        )
    except OverflowError:
        return None


@functools.lru_cache(maxsize=4096)
def composed_epsilon(one: Any, rounds: int, delta: float) -> float:
    """Returns the epsilon of several equal steps, or infinity for the step None."""
    if one is None:
        return math.inf
    return float(one.self_compose(rounds).get_epsilon_for_delta(delta))
