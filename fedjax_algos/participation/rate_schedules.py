"""Learning rate schedules of the clients: functions of a count t, which starts at 0.

`Local.rate_by` selects the count: the round, the dispatch of the client, or the local step.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_algos.core.options import Count, NonNegative, Positive, PositiveShare
from fedjax_algos.core.registry import Registry

RateSchedule = Callable[[Any], np.ndarray]  # int[...] -> float[...]

rate_schedules = Registry[RateSchedule]("rate schedule", Callable)


@rate_schedules.register
def constant(rate: float) -> RateSchedule:
    """`rate` for every count.

    Args:
      rate: eta, the learning rate, above 0.
    """
    return lambda t: np.full(np.shape(t), rate, float)


@rate_schedules.register
def exponential(rate: float, *, decay: PositiveShare) -> RateSchedule:
    """`rate decay^t`: each count multiplies the rate by `decay`.

    A paper's eta <- (1 - gamma) eta after each round, as FedLGA's, is a `decay` of 1 - gamma.

    Args:
      rate: eta, the learning rate at count 0, above 0.
      decay: the factor of each count, above 0 and at most 1.
    """
    return lambda t: rate * decay ** (1.0 * t)


@rate_schedules.register
def step(rate: float, *, factor: Positive, every: Count) -> RateSchedule:
    """`rate factor^floor(t / every)`: each `every` counts multiply the rate by `factor`.

    Args:
      rate: eta, the learning rate at count 0, above 0.
      factor: the factor of each change, above 0.
      every: number of counts between changes, at least 1.
    """
    return lambda t: rate * factor ** (1.0 * (t // every))


@rate_schedules.register
def inverse(rate: float, *, decay: NonNegative = 1.0) -> RateSchedule:
    """`rate / (1 + decay t)`, which is half of `rate` after 1 / `decay` counts.

    Args:
      rate: eta, the learning rate at count 0, above 0.
      decay: the growth of the denominator per count, at least 0.
    """
    return lambda t: rate / (1 + decay * t)
