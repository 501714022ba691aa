"""What the tables of the four papers share; `../paper_table.py` shows them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_algos.analysis.labels import display_names
from fedjax_algos.analysis.statistics import METRIC
from fedjax_algos.analysis.tables import Column, ResultTable, SeedCount
from fedjax_algos.cli.method_tables import quality_name

BEST = "best: each seed's highest {quality}, chosen on test data"
REACHED = "reached: seeds that reach the target."
LEFT_OUT = "*: without the seeds that do not reach the target, so that the mean over all is larger."


class Marked(NamedTuple):
    """A number with a mark if it does not count all seeds alike."""

    value: float
    mark: bool

    def text(self, show: Callable[[float], str]) -> str:
        """The number, with `*` if it is marked."""
        return show(self.value) + "*" * self.mark


def marked(lines: Sequence[Any], field: str) -> list[Marked | None]:
    """A field of each line, marked where some seeds do not reach the target."""
    values = [(getattr(line, field), line.seeds_reaching < line.seeds) for line in lines]
    return [None if value is None else Marked(value, mark) for value, mark in values]


def reached(lines: Sequence[Any]) -> Column:
    """The column of the seeds that reach the target."""
    return Column("reached", [SeedCount(line.seeds_reaching, line.seeds) for line in lines])


def paper_table(
    lines: Sequence[Any],
    columns: Sequence[Column],
    notes: Sequence[str],
    metric: str = METRIC,
    labels: Mapping[str, str] | None = None,
) -> ResultTable:
    """The table of a summary, without columns that have no value, and notes on absent marks.

    `lines` has an entry for each method, and `labels` replaces the labels of `display_names`.
    """
    names = display_names([line.label for line in lines], labels)
    shown = [c for c in columns if any(value is not None for value in c.values)]
    marks = any(isinstance(v, Marked) and v.mark for c in shown for v in c.values)
    if any(line.seeds_diverged for line in lines):
        shown.append(Column("diverged", [SeedCount(x.seeds_diverged, x.seeds) for x in lines]))
    told = [note for note in notes if marks or not note.startswith("*")]
    told = [note.format(quality=quality_name(metric)) for note in told]
    return ResultTable([Column("method", [*names.values()]), *shown], told)
