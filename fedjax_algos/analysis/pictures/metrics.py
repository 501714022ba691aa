"""Draws the figure of one or more metrics: prepares its rows and panels, and writes its file."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fedjax_algos.analysis.labels import check_names, display_names
from fedjax_algos.analysis.pictures import axes as shared
from fedjax_algos.analysis.pictures import curves
from fedjax_algos.analysis.pictures.axes import NO_LIMITS, Limits, PictureStyle
from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import printable
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice, is_number, unknown

if TYPE_CHECKING:
    from fedjax_algos.analysis.pictures.metric_drawing import MetricFigure

History: TypeAlias = Sequence[Row]  # the rows of one run
Histories: TypeAlias = History | Mapping[str, History | Sequence[History]]
ONE_RUN = ""  # the label of a run without a label
_MAX_CHARACTERS = 60  # of a wrong value in a message
LOG_AXES = ("none", "x", "y", "both")
_MIN_INCHES, _MAX_INCHES = 1, 20  # of a figure
_MAX_PANELS = 24


def plot_metric(rows: Histories, path: str | Path | None = None, **options: Any) -> "MetricFigure":
    """Draws the figure of `draw_metric`, which a notebook shows, and may write it to a file.

    Its `notes` list what it does not show, one line for each method or axis.

    Args:
      rows: as for `draw_metric`; `plot_metric(history)` suffices.
      path: the file to write, as for `save_figure`; None writes nothing.
      **options: as for `draw_metric`.

    Raises:
      TypeError, ValueError: as for `draw_metric` and `save_figure`.
    """
    figure, _ = draw_metric(rows, **options)
    if path is not None:
        shared.save_figure(figure, path, options.get("style", "screen"))
    return figure


def draw_metric(
    rows: Histories,
    *,
    metric: str | Sequence[str] = "test_accuracy",
    x: str | Sequence[str] = "round",
    facet: str | None = None,
    methods: Sequence[str] | None = None,
    band: Literal["none", "interval", "range", "seeds"] | None = None,
    log: Literal["none", "x", "y", "both"] = "none",
    x_limits: Limits = NO_LIMITS,
    y_limits: Limits = NO_LIMITS,
    labels: Mapping[str, str] | None = None,
    title: str | None = None,
    x_label: str | None = None,
    y_label: str | None = None,
    size: tuple[float, float] | None = None,
    style: PictureStyle = "screen",
) -> tuple["MetricFigure", list[str]]:
    """Draws metrics of all methods: the mean over seeds, and a band around it.

    `method_styles` gives the styles. Positions on the x axis are also means over the seeds. A curve
    ends where a seed's value is not finite, and the legend says so.

    Args:
      rows: the second result of `simulate`, or several such lists by label, as in `{"FedAvg":
        history, "FedGBO": other}`; a label may have a list of them, one for each seed. Or the rows
        of a comparison, with `method` and `seed`; the methods of a panel have the same seeds.
      metric: the column of the y axis; each of several columns has a panel.
      x: the column of the x axis, one of `AXES`; each of several columns has a panel.
      facet: a column with texts, or "seed"; each of its values has a panel.
      methods: labels of the methods to draw, in the order of the legend; None for all.
      band: "none", "interval" (the 95% confidence interval of the mean, from five seeds on),
        "range" (from the lowest to the highest value) or "seeds" (a thin line for each). None is
        "interval" from five seeds on, and "range" for two to four.
      log: the logarithmic axes.
      x_limits: the lower and the upper limit, in bytes, FLOPs or seconds if the column is; None for
        the default.
      y_limits: likewise. By default they fit the curves and bands after the first tenth of the
        evaluations; in simulated time, all evaluations.
      labels: texts that replace labels of methods and values of the facet. By default the package's
        algorithms are spelled as in their papers: `FedAvg` for `fedavg`.
      title: replaces the number of seeds and the meaning of the band; "" for none.
      x_label: replaces the name of the column and its unit.
      y_label: likewise.
      size: width and height in inches, from 1 to 20.
      style: "screen"; or "paper", which is as wide as one column of a paper (3.25 inches) or, with
        panels side by side, as two (6.75 inches), with a Times font, small type and thin lines.
        There the default title is left out of the figure and returned, for the caption.

    Returns:
      The figure, and notes on what it does not show, one line for each method or axis.

    Raises:
      TypeError: for anything other than rows.
      ValueError: for columns that not all rows have, a value other than those above, two methods
        with the same label, or limits without any curve.
    """
    from fedjax_algos.analysis.pictures.metric_drawing import draw  # slow to import

    rows, labels = _as_rows(rows), labels or {}
    names = _choose_methods(rows, methods, labels, facet)
    metrics, columns = ([v] if isinstance(v, str) else list(v) for v in (metric, x))
    titles = {**names, **labels} if facet == "method" else labels
    facets = _facets_of(rows, metrics, columns, facet, titles)
    check_choice("log", log, LOG_AXES)
    log_x, log_y = log in ("x", "both"), log in ("y", "both")
    shared.check_limits("x_limits", x_limits, log_x)
    shared.check_limits("y_limits", y_limits, log_y)
    _check_size(size)
    _check_single(columns, x_limits=x_limits, x_label=x_label)
    _check_single(metrics, y_limits=y_limits, y_label=y_label)
    seeds = sorted({len({row["seed"] for row in part}) for _, part in facets})
    drawn = curves.choose_band(band, seeds[0])
    places = [  # in the order of the figure
        (title, name, column, curves.curves_of(part, name, column, drawn, names))
        for name, (title, part), column in itertools.product(metrics, facets, columns)
    ]
    axes = shared.axes_of({name for row in rows for name in row})

    def curves_with(part: int, name: str) -> list[curves.Curve]:
        """Returns the curves of all panels with a metric or a column of the x axis."""
        return [curve for place in places if place[part] == name for curve in place[3].values()]

    def x_axis(name: str) -> shared.Axis:
        values = [curve.x for curve in curves_with(2, name)]
        return shared.column_of(axes, name, values, x_limits, x_label, log_x)

    def y_axis(name: str) -> shared.Axis:
        of_metric, whole = curves_with(1, name), "simulated_seconds" in columns
        limits = curves.fit_y_limits(of_metric, y_limits, x_limits, logarithmic=log_y, whole=whole)
        return shared.column_of(axes, name, [c.mean for c in of_metric], limits, y_label, log_y)

    panels = [curves.Panel(t, by_label, x_axis(c), y_axis(m)) for t, m, c, by_label in places]
    number = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    meaning = "one seed" if seeds[-1] == 1 else f"mean of {number} seeds{curves.BANDS[drawn]}"
    meaning = "one seed in each panel" if facet == "seed" else meaning
    captions = [f"for the caption: {meaning}"] if title is None and style == "paper" else []
    title = ("" if captions else meaning) if title is None else title
    styles = curves.method_styles(str(row["method"]) for row in rows)
    figure = draw(panels, names, styles, drawn in curves.SPREADS, title, size, style)
    outside = {f"{name}: {curves.OUTSIDE}" for name in names.values()}
    fix = "give limits in the unit of the column; an accuracy is from 0 to 1"
    seen = not names or not outside <= {*figure.notes}
    require(seen, f"no curve is within x_limits={x_limits} and y_limits={y_limits}; {fix}")
    figure.notes[:0] = captions
    return figure, figure.notes


def _check_size(size: tuple[float, float] | None) -> None:
    sides: Any = size if isinstance(size, tuple | list) and len(size) == 2 else [None]
    fits = [is_number(side, float) and _MIN_INCHES <= side <= _MAX_INCHES for side in sides]
    fix = f"give the width and the height in inches, from {_MIN_INCHES} to {_MAX_INCHES}"
    require(size is None or all(fits), f"size={size!r} is out of range; {fix}")


def _check_single(columns: list[str], **given: Any) -> None:
    for name, value in given.items():
        found = f"{name} is for one column, but there are {len(columns)}"
        single = len(columns) == 1 or value in (None, NO_LIMITS)
        require(single, f"{found}; leave it out, or make a figure for each column")


def _as_rows(histories: Histories) -> list[Row]:
    """Adds `method` and `seed` to the rows of a figure; a single run without a seed gets 0."""
    if not histories or not isinstance(histories, Mapping):
        rows = [{"method": ONE_RUN, **row} for row in _rows("", histories)]
    else:
        rows = []
        for label, runs in histories.items():
            several = isinstance(runs, Sequence) and runs and not isinstance(runs[0], Mapping)
            for seed, history in enumerate(runs if several else [runs]):
                number = {"seed": seed} if several else {}
                rows += [{**row, "method": label, **number} for row in _rows(label, history)]
    seen: set[tuple[str, int]] = set()
    for row in rows:
        place = row["method"], row.get("round", 0)
        found = f"the rows of {place[0]!r} have the round {place[1]} twice and no seed"
        fix = "give {label: [rows, rows]}, or add the column seed"
        require("seed" in row or place not in seen, f"{found}; {fix}")
        seen.add(place)
    return [{"seed": 0, **row} for row in rows]


def _rows(label: Any, history: Any) -> list[Row]:
    fits = isinstance(label, str) and isinstance(history, Sequence) and len(history) > 0
    if not fits or not all(isinstance(row, Mapping) for row in history):
        found = f"the rows of {label!r} are {printable(repr(history), _MAX_CHARACTERS)}"
        raise TypeError(f"{found}; give the rows that simulate returns second or {{'label': rows}}")
    return list(history)


def _facets_of(rows, metrics, axes, facet, labels):
    """Returns the titles and rows of the facets; `labels` replace a facet's value."""
    measured = [name for name in rows[0] if all(name in row for row in rows)]
    texts = [name for name in measured if isinstance(rows[0][name], str)]
    check_names("metric", metrics, [name for name in measured if name not in (*texts, "seed")])
    check_names("x", axes, [name for name in measured if name in shared.AXES])
    parts = {}
    if facet is not None:
        check_choice("facet", facet, [*texts, "seed"])
        for row in rows:
            parts.setdefault(str(row[facet]), []).append(row)
    number = len(metrics) * len(axes) * max(len(parts), 1)
    text = f"{number} panels are too many for a figure; choose at most {_MAX_PANELS}"
    require(number <= _MAX_PANELS, text)
    if len(parts) < 2:
        return [(labels.get("", ""), rows)]
    prefix = "seed " if facet == "seed" else ""
    return [(labels.get(name, prefix * bool(name) + name), part) for name, part in parts.items()]


def _choose_methods(rows, methods, labels, facet):
    """Returns the names of methods in a figure, by label, in the order of the legend."""
    known = list(dict.fromkeys(str(row["method"]) for row in rows))
    chosen = known if methods is None else check_names("methods", methods, known)
    values = [] if facet is None else list(dict.fromkeys(str(row.get(facet)) for row in rows))
    for name in labels:
        require(name in [*known, *values], unknown("label", name, [*known, *values]))
    return display_names(chosen, labels)
