"""Tables of results as columns of values, which each format shows in its own way."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedjax_algos.analysis.statistics import Mark
from fedjax_algos.core.options import check_choice
from fedjax_algos.core.texts import si_prefix

MISSING = "-"
_MARKS = {"best": "*", "not told": "~", "": " "}  # in texts


class Column(NamedTuple):
    """A column with one value for each method."""

    heading: str
    values: Sequence[Any]  # texts, numbers, None, or what has a `text`, such as an `Estimate`
    form: str = "g"  # of a number
    scale: float = 1  # by which numbers are divided
    unit: str = ""
    marks: Sequence[Mark] = ()  # of the best value and those that cannot be told from it

    def cells(self, with_unit: bool = False) -> list[str]:
        """The texts of the values.

        Args:
          with_unit: whether each number has its unit; percentages and their points have none.
        """
        unit = f" {self.unit}" if with_unit and self.unit not in ("", "%", "points") else ""
        return [
            _cell(value, lambda v: f"{v / self.scale:{self.form}}{unit}") for value in self.values
        ]

    def text_cells(self) -> list[str]:
        """The texts of the values with units, followed by `*` and `~` where they are marked."""
        cells = self.cells(with_unit=True)
        if not any(self.marks):
            return cells
        return [f"{cell} {_MARKS[mark]}" for cell, mark in zip(cells, self.marks, strict=True)]

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
    marked: str = ""  # what marks mean, with {best} and {other} for their names

    def legend(self, best: str = _MARKS["best"], other: str = _MARKS["not told"]) -> list[str]:
        """The notes, and the meaning of the marks if there are any.

        Args:
          best: the name of the mark of the best value.
          other: that of values that cannot be told from it.
        """
        marked = any(mark for column in self.columns for mark in column.marks)
        return [*self.notes, *([self.marked.format(best=best, other=other)] if marked else [])]

    def choose(self, names: Sequence[str]) -> "ResultTable":
        """The table with the first column and those of the names that it has, in their order.

        Notes that explain other columns, as in `reached: seeds ...`, are left out.

        Args:
          names: headings.
        """
        first, *others = self.columns
        by_name = {column.heading: column for column in others}
        chosen = [first, *(by_name[name] for name in names if name in by_name)]
        notes = [note for note in self.notes if _explains(note, chosen, self.columns)]
        return self._replace(columns=chosen, notes=notes)


def choose_columns(tables: Sequence[ResultTable], names: Sequence[str]) -> list[ResultTable]:
    """Tables with some of their columns; one that has none of them is left out.

    Args:
      tables: of a comparison.
      names: headings, in the order of the columns; `_` stands for a space.

    Raises:
      ValueError: for a name that no table has.
    """
    known = dict.fromkeys(c.heading for table in tables for c in table.columns[1:])
    chosen = check_columns([name.replace("_", " ") for name in names], list(known))
    shown = [table.choose(chosen) for table in tables]
    return [table for table in shown if len(table.columns) > 1]


def check_columns(names: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """Names of columns, after a check that they exist and are different.

    Args:
      names: that are given.
      known: those of all columns.

    Raises:
      ValueError: for other names.
    """
    for index, name in enumerate(names):
        check_choice("columns", name, known)
        if name in names[:index]:
            raise ValueError(f"columns has {name!r} twice; give it once")
    return names


def _explains(note: str, chosen: Sequence[Column], columns: Sequence[Column]) -> bool:
    """Whether a note is about one of the chosen columns, or about none in particular."""
    names = re.sub(r" \(.*?\)", "", note.partition(": ")[0]).split(", ")

    def is_about(column: Column) -> bool:
        cells = column.cells(with_unit=True)
        return column.heading in names or any(name in cell for name in names for cell in cells)

    about = [column.heading for column in columns[1:] if is_about(column)]
    return not about or any(column.heading in about for column in chosen)


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


def percentages(
    heading: str, values: Sequence[Any], signed: bool = False, marks: Sequence[Mark] = ()
) -> Column:
    """A column of shares in percent.

    Args:
      heading: of the column.
      values: one for each method, from 0 to 1.
      signed: whether they are differences, in percentage points and with a sign.
      marks: one for each method.
    """
    form, unit = ("+z.1f", "points") if signed else ("z.1f", "%")
    return Column(heading, values, form, 0.01, unit, marks)


def _cell(value: Any, show: Callable[[float], str]) -> str:
    if value is None or isinstance(value, str):
        return MISSING if value is None else value
    if hasattr(value, "text"):
        return value.text(show)
    return show(value) if math.isfinite(value) else MISSING
