"""The panels of a figure: which rows and columns each shows, and where it stands."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedjax_algos.analysis.labels import display_names
from fedjax_algos.analysis.plots.columns import AXES
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice, unknown

_MAX_PANELS = 24
_MAX_BESIDE = 4  # panels in a line, of one metric or of one facet


class Panel(NamedTuple):
    """What one panel shows."""

    title: str  # "" if there is one facet only
    rows: list[Row]
    metric: str
    x: str


class Grid(NamedTuple):
    """The panels of a figure, row by row."""

    panels: list[Panel]
    columns: int
    share_x: bool  # each column of panels has one x axis
    share_y: bool  # each row of panels has one metric

    @property
    def rows(self) -> int:
        """The number of rows of panels."""
        return -(-len(self.panels) // self.columns)


def grid_of(
    rows: list[Row],
    metrics: Sequence[str],
    axes: Sequence[str],
    facet: str | None,
    labels: Mapping[str, str],
) -> Grid:
    """The panels of a figure: one for each metric, column of the x axis and value of the facet.

    Several metrics of several facets or x axes are the rows of a grid. Other panels stand in lines
    of at most four.

    Args:
      rows: of all methods.
      metrics: columns of the y axes.
      axes: columns of the x axes.
      facet: a column, each of whose values has panels of its own.
      labels: texts that replace the values of the facet.

    Raises:
      ValueError: for a column that not all rows have, or too many panels.
    """
    measured = [name for name in rows[0] if all(name in row for row in rows)]
    texts = [name for name in measured if isinstance(rows[0][name], str)]
    for name in _different("metric", metrics):
        check_choice("metric", name, [n for n in measured if n not in (*texts, "seed")])
    for name in _different("x", axes):
        check_choice("x", name, [n for n in measured if n in AXES])
    parts: dict[str, list[Row]] = {}
    if facet is not None:
        check_choice("facet", facet, [*texts, "seed"])
        for row in rows:
            parts.setdefault(str(row[facet]), []).append(row)
    names = {"": rows} if len(parts) < 2 else parts
    number = len(metrics) * len(axes) * len(names)
    if number > _MAX_PANELS:
        raise ValueError(f"{number} panels are too many for a figure; choose at most {_MAX_PANELS}")
    prefix = "seed " if facet == "seed" else ""
    panels = [
        Panel(labels.get(name, prefix * bool(name) + name), own, metric, x)
        for metric in metrics
        for name, own in names.items()
        for x in axes
    ]
    beside = len(axes) * len(names)
    if len(metrics) == 1 or beside == 1:
        return Grid(panels, min(number, _MAX_BESIDE), False, len(metrics) == 1)
    return Grid(panels, beside, True, True)


def choose_methods(
    rows: list[Row], methods: Sequence[str] | None, labels: Mapping[str, str], facet: str | None
) -> dict[str, str]:
    """The methods of a figure in their order, and what they are called in it.

    Args:
      rows: of all methods.
      methods: labels, in the order of the legend; None for all, in the order of the rows.
      labels: texts that replace labels of methods or values of the facet.
      facet: a column, if each of its values has panels of its own.

    Raises:
      ValueError: for an unknown label, or two methods that would be called the same.
    """
    known = list(dict.fromkeys(str(row["method"]) for row in rows))
    chosen = known if methods is None else _different("methods", methods)
    for name in chosen:
        if name not in known:
            raise ValueError(unknown("method", name, known))
    values = [] if facet is None else list(dict.fromkeys(str(row[facet]) for row in rows))
    for name in labels:
        if name not in known and name not in values:
            raise ValueError(unknown("label", name, [*known, *values]))
    return display_names(chosen, labels)


def _different(name: str, values: Sequence[str]) -> Sequence[str]:
    if not values:
        raise ValueError(f"{name} is empty; give at least one")
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        raise ValueError(f"{name} has {twice[0]!r} twice; give it once")
    return values
