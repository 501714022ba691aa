"""What is said of a quantity that was measured on several seeds.

There is one rule for all tables and figures. From five seeds on it is the mean with its 95%
confidence interval, by Student's t distribution. Below five seeds this interval is too wide to say
anything (for two seeds it is 12.7 standard errors to each side), so there is none: it is the lowest
and the highest value, and for one or two seeds the values themselves.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

MIN_SEEDS_OF_AN_INTERVAL = 5
MAX_SEEDS_OF_VALUES = 2


class Estimate(NamedTuple):
    """A quantity over seeds.

    Attributes:
      values: one for each seed, in the order of the seeds; NaN for a seed that has none because it
        has diverged. The highest quality of such a seed is its highest one before.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds; NaN if a value is, as the next three."""
        return float(np.mean(self.values))

    @property
    def interval(self) -> float:
        """Half the width of the 95% confidence interval of the mean; NaN below five seeds."""
        if len(self.values) < MIN_SEEDS_OF_AN_INTERVAL:
            return float("nan")
        return float(confidence_half_width(np.array(self.values)))

    @property
    def lowest(self) -> float:
        """The lowest value."""
        return float(np.min(self.values))

    @property
    def highest(self) -> float:
        """The highest value."""
        return float(np.max(self.values))

    def text(self, show: Callable[[float], str]) -> str:
        """The estimate as tables show it, such as `95.5 ± 0.4`, `95.1..95.9` or `95.1, 95.9`.

        Args:
          show: the text of a number.
        """
        seeds = len(self.values)
        diverged = int((~np.isfinite(self.values)).sum())
        if diverged:
            return "diverged" if diverged == seeds else f"{diverged}/{seeds} diverged"
        if seeds >= MIN_SEEDS_OF_AN_INTERVAL:
            return f"{show(self.mean)} ± {show(self.interval).lstrip('+')}"
        if seeds > MAX_SEEDS_OF_VALUES:
            return f"{show(self.lowest)}..{show(self.highest)}"
        return ", ".join(map(show, self.values))

    def record(self, name: str) -> dict[str, float]:
        """The estimate as numbers for a file, by column.

        Args:
          name: of the quantity.
        """
        return {
            name: self.mean,
            f"{name}_interval": self.interval,
            f"{name}_lowest": self.lowest,
            f"{name}_highest": self.highest,
        }


def describe_estimates(seeds: int) -> str:
    """What the text of an `Estimate` is, for a legend.

    Args:
      seeds: their number.
    """
    if seeds >= MIN_SEEDS_OF_AN_INTERVAL:
        return f"mean of {seeds} seeds ± half the 95% confidence interval"
    if seeds > MAX_SEEDS_OF_VALUES:
        return f"lowest..highest of {seeds} seeds"
    return f"of each of {seeds} seeds" if seeds > 1 else "of one seed"


SPREADS = {"interval": "95% confidence interval", "range": "lowest to highest"}


def choose_spread(seeds: int) -> str:
    """Which of `SPREADS` figures draw around a mean over seeds.

    Args:
      seeds: their number.
    """
    return "interval" if seeds >= MIN_SEEDS_OF_AN_INTERVAL else "range"


def spread(values: np.ndarray, kind: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper end of what figures draw around a mean over seeds.

    Args:
      values: float[seeds, ...].
      kind: one of `SPREADS`; None is the interval from five seeds on, and the range below.

    Returns:
      Two float[...], NaN where a value is NaN.
    """
    if (kind or choose_spread(len(values))) == "range":
        return values.min(axis=0), values.max(axis=0)
    mean, half_width = values.mean(axis=0), confidence_half_width(values)
    return mean - half_width, mean + half_width


def confidence_half_width(values: np.ndarray) -> np.ndarray:
    """Half the width of the 95% confidence interval of the mean, by Student's t distribution.

    Args:
      values: float[samples, ...].

    Returns:
      float[...]; NaN for a single sample.
    """
    samples = len(values)
    if samples < 2:
        return np.full(values.shape[1:], np.nan)
    with np.errstate(invalid="ignore"):  # infinite values give NaN
        standard_error = values.std(axis=0, ddof=1) / np.sqrt(samples)
    return special.stdtrit(samples - 1, 0.975) * standard_error
