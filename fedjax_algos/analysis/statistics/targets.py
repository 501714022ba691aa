"""Costs to reach a target, where some seeds may not reach it."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.statistics.estimates import MAX_SEEDS_OF_VALUES
from fedjax_algos.core.options import one_of

_LOWER_IS_BETTER = {"loss", "error", "perplexity"}  # words of a metric's name
TOLERANCE = 1e-6  # 0.9 in float32 is below 0.9


class CostToTarget(NamedTuple):
    """A cost up to the first evaluation at a target, over n seeds.

    A seed that does not reach the target is censored: its cost is only known to be larger than
    its horizon, the cost of its whole run. A seed that has diverged never reaches the target, so
    its cost is infinite.

    The lower median is the cost of rank ceil(n / 2). Each cost is c_i, or is censored and may have
    any value above h_i, infinity included. An order statistic does not fall if one of its values
    rises, so the median is at least that of the values c_i and h_i (`at_least`), and at most that
    of the values c_i and infinity (`at_most`). Costs that are just above their horizons come
    arbitrarily close to the first bound, and infinite ones attain the second. So the median is
    known if and only if both bounds are equal: no censored seed with a horizon below the stated
    median could change it. If horizons differ, it may be unknown although few seeds are censored.

    Attributes:
      costs: the cost of each seed that has a target; infinite if it does not reach it.
      horizons: the horizon of each of these seeds; NaN if it has diverged.
    """

    costs: tuple[float, ...]
    horizons: tuple[float, ...]

    @property
    def median(self) -> float | None:
        """The lower median over seeds, a cost that was measured; None if it is not known.

        The mean of the two middle costs could be one of a censored seed, which is not known.
        """
        return self.at_least if self.at_least == self.at_most else None

    @property
    def at_least(self) -> float | None:
        """The largest number that is not above the median, whatever the censored costs are.

        None without seeds, and if so many have diverged that the median is infinite.
        """
        return _lower_median(self._lowest())

    @property
    def at_most(self) -> float | None:
        """The smallest number that is not below the median; None if the median may be infinite."""
        return _lower_median(self.costs)

    def _lowest(self) -> list[float]:
        """c_i, or h_i for a censored seed."""
        pairs = zip(self.costs, self.horizons, strict=True)
        return [cost if np.isfinite(cost) or np.isnan(end) else end for cost, end in pairs]

    def _is_above(self, bound: float) -> bool:
        """Whether the median is larger than `at_least`, and not equal to it."""
        pairs = zip(self.costs, self._lowest(), strict=True)
        # a censored seed may lie at the bound only if its horizon is below it
        possible = sum(low < bound or cost == bound for cost, low in pairs)
        return possible <= (len(self.costs) - 1) // 2

    def text(self, show: Callable[[float], str]) -> str:
        """The cost as tables show it: of one or two seeds the values, of more the lower median.

        A censored one is its horizon, such as `> 100`. A median that is not known is what is known
        of it: `> 100`, `≥ 100`, or its bounds such as `80..100`.

        Args:
          show: the text of a number.
        """
        if not self.costs:
            return "-"
        if len(self.costs) <= MAX_SEEDS_OF_VALUES:
            pairs = zip(self.costs, self.horizons, strict=True)
            return ", ".join(_cost(*pair, show) for pair in pairs)
        lowest, highest = self.at_least, self.at_most
        if lowest is None:
            return "diverged"
        if highest is None:
            return f"{'>' if self._is_above(lowest) else '≥'} {show(lowest)}"
        return show(lowest) if lowest == highest else f"{show(lowest)}..{show(highest)}"

    def record(self, name: str) -> dict[str, float | None]:
        """The lower median and its bounds as numbers for a file, by column.

        Args:
          name: the column of the cost.
        """
        bounds = {f"{name}_at_least": self.at_least, f"{name}_at_most": self.at_most}
        return {name: self.median, **bounds}


def _lower_median(values: Collection[float]) -> float | None:
    """The value of rank ceil(n / 2); None if it is infinite, or there are no values."""
    middle = sorted(values)[(len(values) - 1) // 2] if values else np.inf
    return middle if np.isfinite(middle) else None


def describe_costs(seeds: int) -> str:
    """What the text of a `CostToTarget` is, for a legend; an empty text for one seed.

    Args:
      seeds: the number of those that have a target.
    """
    if seeds > MAX_SEEDS_OF_VALUES:
        return "the lower median over seeds"
    return f"of each of {seeds} seeds" if seeds > 1 else ""


def _cost(cost: float, horizon: float, show: Callable[[float], str]) -> str:
    if np.isfinite(cost):
        return show(cost)
    return f"> {show(horizon)}" if np.isfinite(horizon) else "diverged"


def check_target_metric(name: str, measured: Collection[str] | None = None) -> None:
    """Checks that a metric may have a target: it is measured, and a better model has a higher one.

    Args:
      name: such as "dice_score", without the `test_` of its column.
      measured: the names of the metrics that are measured; None: not known yet.

    Raises:
      ValueError: for another value than a text, such as that of a damaged file; for a loss, an
        error or a perplexity, which the name says; and for a metric that is not measured.
    """
    if not isinstance(name, str):
        raise ValueError(f"target_metric={name!r} is no text; give the name of a metric")
    if _falls(name):
        raise ValueError(
            f"target_metric={name!r} is lower for better models, and targets are reached from "
            f"below; choose another metric, or measure one of your own, such as 1 / (1 + {name})"
        )
    if measured is not None and name not in measured:
        known = [other for other in measured if not _falls(other)]
        raise ValueError(
            f"target_metric={name!r} is not measured; "
            f"{f'choose {one_of(known)}, or ' if known else ''}name it in metrics too"
        )


def _falls(name):
    return not _LOWER_IS_BETTER.isdisjoint(name.split("_"))


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
