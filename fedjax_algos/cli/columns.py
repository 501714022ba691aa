"""Tables of results as columns of values, which each format shows in its own way."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedjax_algos.core.texts import si_prefix

MISSING = "-"


class Column(NamedTuple):
    """A column with one value for each method."""

    heading: str
    values: Sequence[Any]  # texts, numbers, None, or what has a `text`, such as an `Estimate`
    form: str = "g"  # of a number
    scale: float = 1  # by which numbers are divided
    unit: str = ""

    def cells(self, with_unit: bool = False) -> list[str]:
        """The texts of the values.

        Args:
          with_unit: whether each number has its unit; percentages and their points have none.
        """
        unit = f" {self.unit}" if with_unit and self.unit not in ("", "%", "points") else ""
        return [
            _cell(value, lambda v: f"{v / self.scale:{self.form}}{unit}") for value in self.values
        ]

    def title(self) -> str:
        """The heading with the unit, if there is one."""
        return f"{self.heading} ({self.unit})" if self.unit else self.heading

    def is_text(self) -> bool:
        """Whether the values are names and not numbers."""
        return all(isinstance(value, str) for value in self.values)


class ResultTable(NamedTuple):
    """Columns with one line for each method, and what they mean."""

    columns: list[Column]
    notes: list[str]  # sentences
    title: str = ""


class Marked(NamedTuple):
    """A number with a mark if it does not count all seeds alike."""

    value: float | None
    mark: bool

    def text(self, show: Callable[[float], str]) -> str:
        """The number, with `*` if it is marked.

        Args:
          show: the text of a number.
        """
        return MISSING if self.value is None else show(self.value) + "*" * self.mark


class Share(NamedTuple):
    """A number of seeds out of all, such as `9/10`."""

    part: int
    whole: int

    def text(self, show: Callable[[float], str]) -> str:
        """The two numbers.

        Args:
          show: not used: both are counts.
        """
        return f"{self.part}/{self.whole}"


def amounts(heading: str, values: Sequence[Any], unit: str) -> Column:
    """A column of bytes or operations, with the largest prefix that leaves no value below 1.

    Args:
      heading: of the column.
      values: one for each method.
      unit: such as "B".
    """
    seen: list[float] = []

    def collect(number: float) -> str:
        seen.append(number)
        return ""

    for value in values:
        _cell(value, collect)
    smallest = min((each for each in seen if each >= 1 and math.isfinite(each)), default=1)
    factor, prefix = si_prefix(smallest)
    return Column(heading, values, ".1f", factor, prefix + unit)


def percentages(heading: str, values: Sequence[Any], signed: bool = False) -> Column:
    """A column of shares in percent.

    Args:
      heading: of the column.
      values: one for each method, from 0 to 1.
      signed: whether they are differences, in percentage points and with a sign.
    """
    form, unit = ("+z.1f", "points") if signed else ("z.1f", "%")
    return Column(heading, values, form, 0.01, unit)


def _cell(value: Any, show: Callable[[float], str]) -> str:
    if value is None or isinstance(value, str):
        return MISSING if value is None else value
    if hasattr(value, "text"):
        return value.text(show)
    return show(value) if math.isfinite(value) else MISSING
