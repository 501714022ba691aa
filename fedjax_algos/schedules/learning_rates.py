"""Client rates that change: functions of t, which counts from 0 what `Local.rate_by` says.

By "round", t is the round (the server step); by "visit", the client's own number of earlier turns.
Each function maps an int or an array of them to floats of the same shape.
"""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from fedjax_algos.core.registry import NonNegative, Positive, Range, Registry

Rate = Callable[[Any], np.ndarray]

rates = Registry("rate schedule")


@rates
def constant(rate: float) -> Rate:
    """`rate` at every count."""
    return lambda t: np.full(np.shape(t), rate, float)


@rates
def exponential(rate: float, *, decay: Annotated[float, Range(0, 1, low_open=True)]) -> Rate:
    """`rate decay^t`: each count multiplies it by `decay`.

    Where a paper has eta <- (1 - gamma) eta after each round, as FedLGA's, `decay` is 1 - gamma.
    """
    return lambda t: rate * decay ** np.asarray(t, float)


@rates
def step(rate: float, *, factor: Positive, every: Annotated[int, Range(1)]) -> Rate:
    """`rate factor^floor(t / every)`: each `every` counts multiply it by `factor`."""
    return lambda t: rate * factor ** (np.asarray(t) // every).astype(float)


@rates
def inverse(rate: float, *, decay: NonNegative = 1.0) -> Rate:
    """`rate / (1 + decay t)`: halved after 1 / `decay` counts."""
    return lambda t: rate / (1 + decay * np.asarray(t, float))
