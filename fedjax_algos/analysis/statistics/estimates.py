"""What is said of a quantity that was measured on several seeds.

There is one rule for all tables and figures. From five seeds on it is the mean with its 95%
confidence interval, by Student's t distribution. Below five seeds this interval is too wide to say
anything (for two seeds it is 12.7 standard errors to each side), so there is none: it is the lowest
and the highest value, and for one or two seeds the values themselves. Methods are compared with the
best one by paired tests, with a correction for several comparisons.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from scipy import special

from fedjax_algos.core import Row

PREFIX = "test_"  # of the columns of an evaluation on test examples
METRIC = f"{PREFIX}accuracy"  # by which methods are compared, unless another one is named
MIN_SEEDS_OF_AN_INTERVAL = 5
MAX_SEEDS_OF_VALUES = 2
MIN_SEEDS_OF_A_TEST = 3
LEVEL = 0.05  # of all comparisons with the best together
Mark: TypeAlias = Literal["best", "not told", ""]


def finite_quality(row: Row, metric: str = METRIC) -> float:
    """The quality of an evaluation; NaN if its model is not finite.

    A model of NaN always predicts class 0, whose accuracy is finite, so the test loss decides as
    well. The train loss does not: it is also NaN if all updates of some rounds were left out.

    Args:
      row: the row of the evaluation; the test loss may be missing.
      metric: column of the quality.
    """
    quality, loss = row.get(metric), row.get("test_loss")
    finite = loss is None or math.isfinite(loss)
    return float(quality) if quality is not None and finite and math.isfinite(quality) else math.nan


def diverged(quality: np.ndarray) -> np.ndarray:
    """Whether runs have diverged: the model of the last evaluation is not finite.

    Args:
      quality: float[..., evaluations], as of `finite_quality`; also NaN after the end of a run
        that has stopped before the others.

    Returns:
      bool[...].
    """
    return np.isnan(quality[..., -1])


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
        lost = int((~np.isfinite(self.values)).sum())
        if lost:
            return "diverged" if lost == seeds else f"{lost}/{seeds} diverged"
        if seeds >= MIN_SEEDS_OF_AN_INTERVAL:
            return f"{show(self.mean)} ± {show(self.interval).lstrip('+')}"
        if seeds > MAX_SEEDS_OF_VALUES:
            return f"{show(self.lowest)}..{show(self.highest)}"
        return ", ".join(map(show, self.values))

    def record(self, name: str) -> dict[str, float]:
        """The estimate as numbers for a file, by column.

        Args:
          name: the column of the quantity.
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


class Difference(NamedTuple):
    """A method's quantity minus the reference's on the same seed.

    Seeds share data, cohorts and batches, so differences vary less than the quantities themselves.

    Attributes:
      estimate: the differences on the seeds where both are finite.
      without: the other seeds, on which one of the two has diverged.
    """

    estimate: Estimate
    without: tuple[int, ...]

    def text(self, show: Callable[[float], str]) -> str:
        """The difference as tables show it, such as `+0.5 ± 0.3 (without seed 7)`.

        Args:
          show: the text of a number with its sign.
        """
        text = self.estimate.text(show) if self.estimate.values else "none"
        if not self.without:
            return text
        plural = "s" * (len(self.without) > 1)
        return f"{text} (without seed{plural} {', '.join(map(str, self.without))})"

    def record(self, name: str) -> dict[str, float | str]:
        """The difference as numbers for a file, by column; the seeds left out are a text.

        Args:
          name: the column of the quantity.
        """
        known = self.estimate if self.estimate.values else Estimate((float("nan"),))
        return {
            **known.record(f"{name}_difference"),
            f"{name}_difference_seeds": len(self.estimate.values),
            f"{name}_difference_without": " ".join(map(str, self.without)),
        }


def paired_difference(
    values: np.ndarray, reference: np.ndarray, seeds: Sequence[int]
) -> Difference:
    """A method's values minus the reference's.

    Args:
      values: float[seeds]; NaN for a seed that has diverged, whatever the quantity.
      reference: float[seeds], likewise.
      seeds: their numbers.
    """
    differences = values - reference
    finite = np.isfinite(differences)
    return Difference(
        Estimate(tuple(differences[finite].tolist())),
        tuple(int(seed) for seed, known in zip(seeds, finite, strict=True) if not known),
    )


def paired_p_value(differences: Sequence[float] | np.ndarray) -> float:
    """The p-value of Student's two-sided t test that the mean of paired differences is 0.

    Args:
      differences: float[seeds], of at least two seeds, all finite.

    Returns:
      From 0 to 1; without any variance 1 if the differences are 0, and else 0.
    """
    values = np.asarray(differences, float)
    error = values.std(ddof=1) / np.sqrt(len(values))
    if error == 0:
        return float(values[0] == 0)
    return float(2 * special.stdtr(len(values) - 1, -abs(values.mean() / error)))


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """P-values with Holm's correction: those below a level reject so that no error is more likely.

    The probability that any true hypothesis is rejected is at most the level, whatever the
    dependence between the tests.

    Args:
      p_values: float[tests].

    Returns:
      float[tests], from 0 to 1, in the order of the tests.
    """
    values = np.asarray(p_values, float)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return corrected


def mark_best(values: Mapping[str, Sequence[float]]) -> dict[str, Mark]:
    """Marks the method with the highest mean, and those that cannot be told from it.

    A method cannot be told from the best one if Holm's correction of `paired_p_value`, over all
    methods that are compared with the best, is above 5%. Methods with a value that is not finite
    are not compared.

    Args:
      values: float[seeds] of each method by label, on the same seeds.

    Returns:
      A mark for each label; none is marked below three seeds.
    """
    finite = {label: np.array(own) for label, own in values.items() if np.isfinite(own).all()}
    marks: dict[str, Mark] = dict.fromkeys(values, "")
    if not finite or min(map(len, finite.values())) < MIN_SEEDS_OF_A_TEST:
        return marks
    best = max(finite, key=lambda label: finite[label].mean())
    others = [label for label in finite if label != best]
    corrected = holm([paired_p_value(finite[best] - finite[label]) for label in others])
    told: dict[str, Mark] = {
        label: "" if p <= LEVEL else "not told" for label, p in zip(others, corrected, strict=True)
    }
    return marks | {best: "best"} | told


def records(lines: Sequence[Any]) -> list[dict[str, Any]]:
    """The fields of named tuples by column; all have the same columns.

    A field that has a `record` of its own, such as an `Estimate`, takes several columns. Several
    numbers in one field are a text.

    Args:
      lines: named tuples of one kind, whose fields are texts, numbers, None, tuples of numbers, or
        such values.
    """
    parts = {name for line in lines for name, value in _fields(line) if hasattr(value, "record")}
    found: list[dict[str, Any]] = []
    for line in lines:
        record: dict[str, Any] = {}
        for name, value in _fields(line):
            if hasattr(value, "record"):
                record.update(value.record(name))
            elif isinstance(value, tuple):
                record[name] = " ".join(map(str, value))
            elif value is not None or name not in parts:
                record[name] = value
        found.append(record)
    columns = dict.fromkeys(name for record in sorted(found, key=len)[::-1] for name in record)
    return [{name: record.get(name) for name in columns} for record in found]


def _fields(line):
    return line._asdict().items()
