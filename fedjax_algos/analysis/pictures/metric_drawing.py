"""How the figure of metrics is drawn; imported late, because matplotlib is slow to import."""

import io
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from fedjax_algos.analysis.pictures.axes import (
    COLUMN_WIDTH,
    MAX_CHARACTERS,
    TEXT_WIDTH,
    WHOLE,
    Column,
    PictureStyle,
    picture_style,
)
from fedjax_algos.analysis.pictures.curves import OUTSIDE, Curve, Grid, Style
from fedjax_algos.core.reprs import printable

_DOTS_IN_A_NOTEBOOK = 100  # per inch
_CHARACTERS = 125.0  # in an inch of type of one point
_MIN_TEXT = 0.5  # inches
_MAX_INSIDE = 6  # methods of a legend inside the axes
_MANY_POINTS = 12  # more of them do not all have a marker
_MARKER_DISTANCE = 0.1  # along a curve, in diagonals of the axes
_MARKER_SIZE = {"*": 7.5, "P": 5.8, "X": 5.8}  # points; other markers look larger


class MetricFigure(Figure):
    """A figure of metrics, which a notebook shows."""

    notes: list[str]  # what the figure does not show, one line for each method or axis

    def _repr_png_(self) -> bytes:
        with io.BytesIO() as file:
            self.savefig(file, format="png", dpi=_DOTS_IN_A_NOTEBOOK)
            return file.getvalue()


class Content(NamedTuple):
    """What is drawn in a panel."""

    title: str
    curves: dict[str, Curve]  # by label
    x: Column
    y: Column


def draw(
    contents: list[Content],
    grid: Grid,
    names: Mapping[str, str],
    styles: Mapping[str, Style],
    *,
    filled: bool,
    title: str,
    size: tuple[float, float] | None,
    style: PictureStyle,
) -> tuple[MetricFigure, list[str]]:
    """Draws a figure, and returns it with what it does not show.

    The panels are row by row, the names of the methods by label in the order of the legend. A size
    of None suits the panels and the legend.
    """
    several = len(contents) > 1
    width, height = size or _size(grid, several, style)
    with picture_style(style) as look:
        points = look.points if width / grid.columns >= look.narrow else look.small
        rcParams["font.size"] = points  # `picture_style` restores it
        figure = MetricFigure(figsize=(width, height), layout="constrained")
        axes_of_grid = figure.subplots(
            grid.rows,
            grid.columns,
            squeeze=False,
            sharex="col" if grid.share_x else "none",
            sharey="row" if grid.share_y else "none",
        )
        panels = axes_of_grid.ravel().tolist()
        for axes in panels[len(contents) :]:
            axes.remove()
        for axes, content in zip(panels, contents, strict=False):
            columns = content.x, content.y
            draw_curves(axes, content.curves, styles, columns, filled=filled, scale=look.lines)
            axes.tick_params(labelsize=points, labelfontfamily=rcParams["font.family"])
            _write_texts(axes, content, grid, width / grid.columns, points)
        states = _states(contents, panels)
        texts = {name: _with_state(text, states.get(name, [])) for name, text in names.items()}
        height += _draw_legend(figure, texts, styles, points, look.lines)
        if size is None:
            figure.set_size_inches(width, height)
        write = figure.suptitle if several else panels[0].set_title
        write(_wrapped(printable(title), width, points), fontsize=points, parse_math=False)
    hidden = [f"{names[name]}: {state}" for name in names for state in states.get(name, [])]
    hidden += [f"{_name(c, contents)}: none of the methods" for c in contents if not c.curves]
    return figure, hidden + _without_place(contents)


def _size(grid: Grid, several: bool, style: PictureStyle) -> tuple[float, float]:
    """Width and height in inches, without the legend."""
    if style == "paper":
        width = COLUMN_WIDTH if grid.columns == 1 else TEXT_WIDTH
        return width, 0.3 + 1.7 * grid.rows if several else 2.2
    return (0.6 + 3.6 * grid.columns, 0.8 + 3 * grid.rows) if several else (7.5, 4.6)


def _write_texts(axes: Axes, content: Content, grid: Grid, width: float, points: float) -> None:
    """The title of a panel and the labels of its axes; shared axes have one label."""
    place: Any = axes.get_subplotspec()
    texts = dict.fromkeys(("title", "xlabel", "ylabel"), "")
    if place.is_first_row() or not grid.share_x:
        texts["title"] = content.title
    if place.is_last_row() or not grid.share_x:
        texts["xlabel"] = content.x.label
    if place.is_first_col() or not grid.share_y:
        texts["ylabel"] = content.y.label
    for name, text in texts.items():
        shown = _wrapped(printable(text, longest=MAX_CHARACTERS), width, points)
        getattr(axes, f"set_{name}")(shown, fontsize=points, parse_math=False)


def _states(contents: list[Content], panels: list[Axes]) -> dict[str, list[str]]:
    """What the panels do not show of each method; with the name of the panel if they differ."""
    by_label: dict[str, dict[str, str]] = {}
    for content, axes in zip(contents, panels, strict=False):
        for label, curve in content.curves.items():
            state = state_of(curve, axes, (content.x, content.y))
            by_label.setdefault(label, {})[_name(content, contents)] = state
    return {
        label: [states[0]]
        if len(states := [*dict.fromkeys(by_panel.values())]) == 1 and states[0]
        else [f"{state} in {name}" for name, state in by_panel.items() if state]
        for label, by_panel in by_label.items()
    }


def _name(content: Content, contents: list[Content]) -> str:
    """The parts of a panel's title and columns that distinguish it from the others."""
    parts = [(c.title, c.y.name, c.x.name) for c in contents]
    own = (content.title, content.y.name, content.x.name)
    differing = [len(set(values)) > 1 for values in zip(*parts, strict=True)]
    return ", ".join(part for part, differs in zip(own, differing, strict=True) if differs)


def _with_state(text: str, states: list[str]) -> str:
    text = printable(text, longest=MAX_CHARACTERS)
    return text + f" ({'; '.join(states)})" * bool(states)


def _without_place(contents: list[Content]) -> list[str]:
    """One line for each logarithmic axis on which some points have no place."""
    lines = []
    for axis, values in (("x", "x"), ("y", "mean")):
        points = sum(
            int(((getattr(curve, values) <= 0) & np.isfinite(curve.x + curve.mean)).sum())
            for content in contents
            for curve in content.curves.values()
            if getattr(content, axis).logarithmic
        )
        if points:
            noun = "point" if points == 1 else "points"
            lines.append(f"{points} {noun} at 0 or below: no place on the logarithmic {axis} axis")
    return lines


def _draw_legend(
    figure: Figure,
    texts: Mapping[str, str],
    styles: Mapping[str, Style],
    points: float,
    scale: float,
) -> float:
    """Draws the legend, and returns its height in inches if it is below the panels, else 0.

    A small one of a single panel is in the axes, where it hides least of the curves.
    """
    if not any(texts.values()):  # one run without a label
        return 0.0
    renderer = FigureCanvasAgg(figure).get_renderer()
    width, height = figure.get_size_inches()
    wrapped = [_wrapped(text, width - 0.5, points) for text in texts.values()]
    handles = [Line2D([], [], **line_options(styles[name], scale)) for name in texts]

    def add(owner: Any, where: str, columns: int) -> tuple[Any, float, float]:
        legend = owner.legend(
            handles,
            list(map(str, range(len(handles)))),  # a label with _ in front would be left out
            loc=where,
            ncols=columns,
            frameon=False,
            fontsize=points,
            handlelength=2.8,
            columnspacing=1.4,
        )
        for text, content in zip(legend.get_texts(), wrapped, strict=True):
            text.set(text=content, parse_math=False)  # as it is, also with $
        extent = legend.get_window_extent(renderer)
        return legend, extent.width / figure.dpi, extent.height / figure.dpi

    if len(figure.axes) == 1 and len(texts) <= _MAX_INSIDE:
        legend, own_width, own_height = add(figure.axes[0], "best", 1)
        if own_width <= 0.4 * width and own_height <= 0.28 * height:
            return 0.0
        legend.remove()
    rows, text_width = 0, width - 0.5
    while True:  # until it is narrow enough
        rows += 1
        columns = -(-len(texts) // rows)
        legend, own_width, own_height = add(figure, "outside lower center", columns)
        if own_width <= width or text_width < _MIN_TEXT:
            return own_height
        legend.remove()
        if columns == 1:
            text_width *= 0.8
            wrapped = [_wrapped(text, text_width, points) for text in texts.values()]


def _wrapped(text: str, width: float, points: float) -> str:
    """A text in lines that fit into a width in inches."""
    return textwrap.fill(text, max(10, int((width - 0.4) * _CHARACTERS / points)))


def line_options(style: Style, scale: float) -> dict[str, Any]:
    """The style of a method as options of a line, whose width and marker are scaled."""
    return {
        "color": style.colour,
        "marker": style.marker,
        "linestyle": style.line,
        "linewidth": 1.4 * scale,
        "markersize": _MARKER_SIZE.get(style.marker, 4.5) * scale,
        "markeredgewidth": 0.0,
    }


def draw_curves(
    axes: Axes,
    curves: Mapping[str, Curve],
    styles: Mapping[str, Style],
    columns: tuple[Column, Column],
    *,
    filled: bool,
    scale: float,
) -> None:
    """Draws the curves of a panel with their bands, and sets its scales and limits."""
    x_unit, y_unit = (column.unit for column in columns)
    for index, (label, curve) in enumerate(curves.items()):
        style = styles[label]
        x = curve.x / x_unit
        if filled:
            low, high = curve.low / y_unit, curve.high / y_unit
            axes.fill_between(x, low, high, color=style.colour, alpha=0.13, linewidth=0)
        for own_x, own_y in curve.lines:
            thin: dict[str, Any] = {"alpha": 0.4, "linewidth": 0.5 * scale}
            axes.plot(own_x / x_unit, own_y / y_unit, color=style.colour, **thin)
        start = 0.02 * (index % 5)  # markers of different methods are at different places
        axes.plot(
            x,
            curve.mean / y_unit,
            markevery=None if len(x) <= _MANY_POINTS else (start, _MARKER_DISTANCE),
            **line_options(style, scale),
        )
    axes.set(
        **{f"{name}scale": "log" for name, c in zip("xy", columns, strict=True) if c.logarithmic}
    )
    for name, column in zip("xy", columns, strict=True):
        ends = [None if end is None else end / column.unit for end in column.limits]
        getattr(axes, f"set_{name}lim")(*ends)
    for axis, column in zip((axes.xaxis, axes.yaxis), columns, strict=True):
        if column.logarithmic:
            _label_logarithmic(axis)
        elif column.name in WHOLE:
            steps = [1, 2, 2.5, 5, 10]
            axis.set_major_locator(MaxNLocator("auto", steps=steps, integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)


def _label_logarithmic(axis: Axis) -> None:
    """Writes numbers such as 0.5 on the axis, unless it spans many powers of ten."""
    low, high = axis.get_view_interval()
    if not 0 < low < high <= 1e4 * low:
        return
    narrow = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
    axis.set_major_locator(narrow if high < 10 * low else LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def state_of(curve: Curve, axes: Axes, columns: tuple[Column, Column]) -> str:
    """What a panel with all curves does not show of one; "" if it shows the whole curve."""
    x, y = curve.x / columns[0].unit, curve.mean / columns[1].unit
    (left, right), (below, above) = axes.get_xlim(), axes.get_ylim()
    if not np.isfinite(x + y).any():
        return "no finite value"
    if not ((x >= left) & (x <= right) & (y >= below) & (y <= above)).any():
        return OUTSIDE
    if curve.lost:
        return "not finite" + f" on {curve.lost} of {curve.seeds} seeds" * (curve.seeds > 1)
    return ""
