"""Statistics over seeds: estimates, paired differences, the best method, and costs to a target.

All tables and figures follow one rule. From five seeds on, they show the mean with its 95%
confidence interval by Student's t distribution. Below five seeds this interval is too wide to say
anything, so they show the lowest and the highest value, and for one or two seeds the values.
"""

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median_low
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.core.options import one_of

__all__ = [
    "CostToTarget",
    "Difference",
    "Estimate",
    "holm",
    "mark_best",
    "p_values_against_best",
    "paired_difference",
    "paired_p_value",
]

PREFIX = "test_"  # of the columns of an evaluation on test examples
CLIENTS = "client_accuracy_"  # of the columns of an evaluation of each client
METRIC = f"{PREFIX}accuracy"  # the default metric for comparing methods
MIN_SEEDS_OF_AN_INTERVAL = 5
MAX_SEEDS_OF_VALUES = 2
LEVEL = 0.05  # for all comparisons in a column together
_LOWER_IS_BETTER = {"loss", "error", "perplexity", "deviation"}  # words of a metric's name
_TOLERANCE = 1e-6  # 0.9 in float32 is below 0.9
Mark: TypeAlias = Literal["best", "not told", ""]


def diverged(quality: np.ndarray) -> np.ndarray:
    """Returns True for runs of float[..., evaluations] whose last model is not finite."""
    return np.isnan(quality[..., -1])


class Estimate(NamedTuple):
    """A quantity over seeds: its `values`, by seed; NaN for a seed that has diverged."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds; NaN if a value is NaN."""
        return float(np.mean(self.values))

    @property
    def interval(self) -> float:
        """Half the width of the 95% confidence interval of the mean; NaN below five seeds."""
        enough = len(self.values) >= MIN_SEEDS_OF_AN_INTERVAL
        return float(confidence_half_width(np.array(self.values))) if enough else math.nan

    def text(self, show: Callable[[float], str]) -> str:
        """Formats the estimate for tables, such as `95.5 ± 0.4`, `95.1..95.9` or `95.1, 95.9`.

        Args:
          show: formats a number.
        """
        seeds, lost = len(self.values), int((~np.isfinite(self.values)).sum())
        if lost:
            return "diverged" if lost == seeds else f"{lost}/{seeds} diverged"
        if seeds >= MIN_SEEDS_OF_AN_INTERVAL:
            return f"{show(self.mean)} ± {show(self.interval).lstrip('+')}"
        if seeds > MAX_SEEDS_OF_VALUES:
            return f"{show(min(self.values))}..{show(max(self.values))}"
        return ", ".join(map(show, self.values))

    def record(self, name: str) -> dict[str, float]:
        """Returns the estimate as numbers for a file, by column.

        Args:
          name: the column of the quantity.
        """
        return {
            name: self.mean,
            f"{name}_interval": self.interval,
            f"{name}_lowest": float(np.min(self.values)),
            f"{name}_highest": float(np.max(self.values)),
        }


def describe_estimates(seeds: int) -> str:
    """Explains the text of an `Estimate` over this many seeds, for a legend."""
    if seeds >= MIN_SEEDS_OF_AN_INTERVAL:
        return f"mean of {seeds} seeds ± half the 95% confidence interval"
    if seeds > MAX_SEEDS_OF_VALUES:
        return f"lowest..highest of {seeds} seeds"
    return f"of each of {seeds} seeds" if seeds > 1 else "of one seed"


def confidence_half_width(values: np.ndarray) -> np.ndarray:
    """Computes half the width, float[...], of the 95% interval of a mean of float[samples, ...]."""
    samples = len(values)
    if samples < 2:
        return np.full(values.shape[1:], np.nan)
    with np.errstate(invalid="ignore"):  # infinite values give NaN
        standard_error = values.std(axis=0, ddof=1) / np.sqrt(samples)
    from scipy import special

    return special.stdtrit(samples - 1, 0.975) * standard_error


class Difference(NamedTuple):
    """A method's quantity minus the reference's on the same seed.

    Runs of a seed share data, cohorts and batches, so differences vary less than the quantities
    themselves. The `estimate` is over the seeds where both are finite; `without` lists the others.
    """

    estimate: Estimate
    without: tuple[int, ...]

    def text(self, show: Callable[[float], str]) -> str:
        """Formats the difference for tables, such as `+0.5 ± 0.3 (without seed 7)`.

        Args:
          show: formats a number with its sign.
        """
        text = self.estimate.text(show) if self.estimate.values else "none"
        plural = "s" * (len(self.without) > 1)
        seeds = f" (without seed{plural} {', '.join(map(str, self.without))})"
        return text + seeds * bool(self.without)

    def record(self, name: str) -> dict[str, float | str]:
        """Returns the difference as numbers for a file, by column; `without` is a text.

        Args:
          name: the column of the quantity.
        """
        known = self.estimate if self.estimate.values else Estimate((math.nan,))
        return {
            **known.record(f"{name}_difference"),
            f"{name}_difference_seeds": len(self.estimate.values),
            f"{name}_difference_without": " ".join(map(str, self.without)),
        }


def paired_difference(
    values: np.ndarray, reference: np.ndarray, seeds: Sequence[int]
) -> Difference:
    """Subtracts the reference's values from a method's, seed by seed.

    Args:
      values: float[seeds]; NaN for a seed that has diverged, whatever the quantity.
      reference: float[seeds], likewise.
      seeds: the seeds, in the same order.
    """
    differences = values - reference
    finite = np.isfinite(differences)
    without = tuple(int(seed) for seed, known in zip(seeds, finite, strict=True) if not known)
    return Difference(Estimate(tuple(differences[finite].tolist())), without)


def paired_p_value(differences: Sequence[float] | np.ndarray) -> Any:
    """Computes the p-value of Student's two-sided t test that paired differences have mean 0.

    Without any variance it is 1 if the differences are 0, and 0 otherwise.

    Args:
      differences: float[seeds, ...] of at least two seeds, all finite.

    Returns:
      The p-values, float[...].
    """
    from scipy import special

    values = np.asarray(differences, float)
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    with np.errstate(divide="ignore", invalid="ignore"):
        p_values = 2 * special.stdtr(len(values) - 1, -abs(values.mean(axis=0) / error))
    return np.where(error == 0, values[0] == 0, p_values)[()]


def holm(p_values: Sequence[float] | np.ndarray, most_left: int | None = None) -> np.ndarray:
    """Applies Holm's correction to p-values; float[tests] from 0 to 1, in the order of the tests.

    The probability that any true hypothesis has a p-value below a level is at most the level,
    whatever the dependence between the tests.

    Args:
      p_values: float[tests].
      most_left: the most hypotheses that can be true if one is false; None for all others.
    """
    values = np.asarray(p_values, float)
    order = np.argsort(values, kind="stable")
    left = np.arange(len(values), 0, -1)
    left[1:] = np.minimum(left[1:], len(values) if most_left is None else most_left)
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * left), 1)
    return corrected


def p_values_against_best(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Computes the p-value of each method's difference from the method with the highest mean.

    Each is a `paired_p_value` with Holm's correction over all pairs of methods, because the same
    values choose the best method. If two of k methods differ, at most (k - 1)(k - 2) / 2 pairs can
    be equal. This bounds the later factors of the correction (Shaffer, "Modified Sequentially
    Rejective Multiple Test Procedures", JASA 1986,
    https://doi.org/10.1080/01621459.1986.10478341). So if all methods are equal, the probability of
    any p-value below 5% is at most 5%.

    Args:
      values: float[seeds] of each method by label, on the same seeds.

    Returns:
      The p-values; the best method has 1. They are NaN below five seeds, and for methods with a
      value that is not finite, which are not compared.
    """
    unknown = dict.fromkeys(values, math.nan)
    finite = {label: np.array(own) for label, own in values.items() if np.isfinite(own).all()}
    if not finite or min(map(len, finite.values())) < MIN_SEEDS_OF_AN_INTERVAL:
        return unknown
    labels = sorted(finite, key=lambda label: -finite[label].mean())  # the best is the first
    pairs = [finite[a] - finite[b] for a, b in itertools.combinations(labels, 2)]
    others = len(labels) - 1
    p_values = paired_p_value(np.transpose(pairs)) if pairs else ()
    corrected = holm(p_values, most_left=others * (others - 1) // 2)
    return unknown | dict(zip(labels, [1.0, *corrected[:others].tolist()], strict=True))


def mark_best(values: Mapping[str, Sequence[float]]) -> dict[str, Mark]:
    """Marks the best method, by mean, and methods not distinguishable from it, by label.

    A method is not distinguishable from the best one if its `p_values_against_best` is above 5%.
    Nothing is marked below five seeds.

    Args:
      values: float[seeds] of each method by label, on the same seeds.
    """
    p_values = p_values_against_best(values)
    marks: dict[str, Mark] = {name: "not told" if p > LEVEL else "" for name, p in p_values.items()}
    compared = [label for label, p_value in p_values.items() if not math.isnan(p_value)]
    best = max(compared, key=lambda label: np.mean(values[label]), default=None)
    return marks if best is None else {**marks, best: "best"}


class CostToTarget(NamedTuple):
    """A cost up to the first evaluation at a target, over n seeds.

    A seed that does not reach the target is censored: its cost is only known to be larger than
    its horizon, the cost of its whole run. The cost of a diverged seed is infinite.

    The lower median is the cost of rank ceil(n / 2). It does not fall if a cost rises. So it is at
    least the median with each censored cost at its horizon (`at_least`), and at most the median
    with all of them infinite (`at_most`). Censored costs can come arbitrarily close to both bounds,
    so the median is known if and only if the bounds are equal.

    For each seed with a target, `costs` has the cost, infinite if the target is not reached, and
    `horizons` has the horizon, NaN if the seed has diverged.
    """

    costs: tuple[float, ...]
    horizons: tuple[float, ...]

    @property
    def median(self) -> float | None:
        """The lower median over seeds, a measured cost; None if it is not known."""
        return self.at_least if self.at_least == self.at_most else None

    @property
    def at_least(self) -> float | None:
        """The lower bound of the median; None if it is infinite."""
        return _lower_median(np.fmin(self.costs, self.horizons).tolist())

    @property
    def at_most(self) -> float | None:
        """The upper bound of the median; None if it is infinite."""
        return _lower_median(self.costs)

    def text(self, show: Callable[[float], str]) -> str:
        """Formats the cost for tables: the values of one or two seeds, the lower median of more.

        A censored value shows its horizon, such as `> 100`. A median that is not known shows its
        bounds: `> 100`, `≥ 100`, or both such as `80..100`.

        Args:
          show: formats a number.
        """
        if not self.costs:
            return "-"
        if len(self.costs) <= MAX_SEEDS_OF_VALUES:
            ends = ["diverged" if math.isnan(end) else f"> {show(end)}" for end in self.horizons]
            pairs = zip(self.costs, ends, strict=True)
            return ", ".join(show(cost) if math.isfinite(cost) else end for cost, end in pairs)
        lowest, highest = self.at_least, self.at_most
        if lowest is None:
            return "diverged"
        if highest is None:  # a censored seed lies at the bound only if its horizon is below it
            costs, horizons = np.array(self.costs), np.array(self.horizons)
            possible = ((horizons < lowest) | (costs <= lowest)).sum()
            return f"{'≥' if possible > (len(self.costs) - 1) // 2 else '>'} {show(lowest)}"
        return show(lowest) if lowest == highest else f"{show(lowest)}..{show(highest)}"

    def record(self, name: str) -> dict[str, float | None]:
        """Returns the lower median and its bounds as numbers for a file, by column.

        Args:
          name: the column of the cost.
        """
        bounds = {f"{name}_at_least": self.at_least, f"{name}_at_most": self.at_most}
        return {name: self.median, **bounds}


def _lower_median(values: Collection[float]) -> float | None:
    """Returns the value of rank ceil(n / 2); None if it is infinite or there are no values."""
    middle = median_low(values) if values else np.inf
    return middle if np.isfinite(middle) else None


def describe_costs(seeds: int) -> str:
    """Explains the text of a `CostToTarget` over this many seeds, for a legend; "" for one."""
    if seeds > MAX_SEEDS_OF_VALUES:
        return "the lower median over seeds"
    return f"of each of {seeds} seeds" if seeds > 1 else ""


def check_target_metric(name: str, measured: Collection[str] | None = None) -> None:
    """Checks that a metric is measured and is higher for better models."""
    fix = f"choose one that is higher, or measure a custom one, such as 1 / (1 + {name})"
    is_higher = isinstance(name, str) and not _falls(name)
    require(is_higher, f"target_metric={name!r} is lower for better models, or not a text; {fix}")
    known = [other for other in measured or () if not _falls(other)]
    choice = f"choose {one_of(known)}, or " if known else ""
    text = f"target_metric={name!r} is not measured; {choice}add it to metrics"
    require(measured is None or name in measured, text)


def metric_column(target_metric: str) -> str:
    """Returns the column of a target metric: of test examples, or of each client's evaluation."""
    return target_metric if target_metric.startswith(CLIENTS) else PREFIX + target_metric


def _falls(name):
    return not _LOWER_IS_BETTER.isdisjoint(name.split("_"))


def first_at(quality: np.ndarray, target: float) -> int | None:
    """Returns the index of the first evaluation that reaches the target, or None."""
    return next((i for i, each in enumerate(quality) if each >= target - _TOLERANCE), None)
