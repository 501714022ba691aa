"""Costs to reach a target, where some seeds may not reach it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

TOLERANCE = 1e-6  # 0.9 in float32 is below 0.9


class CostToTarget(NamedTuple):
    """A cost up to the first evaluation at a target, over seeds.

    A seed that does not reach the target is censored: its cost is only known to be larger than
    that of its whole run.

    Attributes:
      costs: of each seed; infinite for a censored one.
      horizon: the smallest cost of a whole run among the censored seeds; None if no seed is
        censored, or if all of these have diverged.
    """

    costs: tuple[float, ...]
    horizon: float | None

    @property
    def median(self) -> float | None:
        """The lower median over seeds; None if more than half of the seeds are censored."""
        middle = sorted(self.costs)[(len(self.costs) - 1) // 2]
        return middle if np.isfinite(middle) else None

    def text(self, show: Callable[[float], str]) -> str:
        """The median as tables show it; `> 100` if it is censored, with the horizon.

        Args:
          show: the text of a number.
        """
        if self.median is not None:
            return show(self.median)
        return "diverged" if self.horizon is None else f"> {show(self.horizon)}"

    def record(self, name: str) -> dict[str, float | None]:
        """The median, and the horizon of censored seeds, as numbers for a file, by column.

        Args:
          name: of the cost.
        """
        return {name: self.median, f"{name}_horizon": self.horizon}


def first_at(quality: np.ndarray, target: float) -> int | None:
    """The index of the first evaluation that reaches the target, None if there is none.

    Args:
      quality: float[evaluations].
      target: the quality to reach, up to `TOLERANCE`.
    """
    hits = np.flatnonzero(quality >= target - TOLERANCE)
    return int(hits[0]) if len(hits) else None


def ratio_on_common_seeds(costs: np.ndarray, reference: np.ndarray) -> tuple[float | None, int]:
    """The mean cost of a method divided by that of the reference, over their common seeds.

    Common seeds are those on which both reach the target. Means over the seeds that each of the two
    reaches by itself would be of different seeds, and a method that reaches the target on easy
    seeds only would look fast.

    Args:
      costs: float[seeds]; not finite for a seed that does not reach the target.
      reference: float[seeds], likewise, of the same seeds.

    Returns:
      The ratio, None without common seeds or if the reference's mean is 0, and their number.
    """
    common = np.isfinite(costs) & np.isfinite(reference)
    total = float(reference[common].sum())
    ratio = float(costs[common].sum()) / total if total else None
    return ratio, int(common.sum())
