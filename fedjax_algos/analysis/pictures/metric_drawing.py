"""Draws the figure of metrics; imported late, because matplotlib is slow to import."""

import io
import itertools
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from fedjax_algos.analysis.labels import label_text
from fedjax_algos.analysis.pictures import axes as shared
from fedjax_algos.analysis.pictures.curves import OUTSIDE, Curve, Panel, Style
from fedjax_algos.base.reprs import printable

_MAX_BESIDE = 4  # panels in a line, of one metric or of one facet
_DOTS_IN_A_NOTEBOOK = 100  # per inch
_CHARACTERS = 125.0  # in an inch of type of one point
_MIN_TEXT = 0.5  # inches
_MAX_INSIDE = 6  # methods of a legend inside the axes
_MANY_POINTS = 12  # if there are more, not all have a marker
_MARKER_DISTANCE = 0.1  # along a curve, in diagonals of the axes
_STEPS = [1, 2, 2.5, 5, 10]  # of ticks
_MARKER_SIZE = {"*": 7.5, "P": 5.8, "X": 5.8}  # points; other markers look larger


class MetricFigure(Figure):
    """A figure of metrics that a notebook shows."""

    notes: list[str]  # what the figure does not show, one line for each method or axis

    def _repr_png_(self) -> bytes:
        with io.BytesIO() as file:
            self.savefig(file, format="png", dpi=_DOTS_IN_A_NOTEBOOK)
            return file.getvalue()


def draw(
    panels: list[Panel],
    names: Mapping[str, str],
    styles: Mapping[str, Style],
    filled: bool,
    title: str,
    size: tuple[float, float] | None,
    style: shared.PictureStyle,
) -> MetricFigure:
    """Draws a figure with notes on what it does not show.

    The panels are row by row. A column of a grid shares the x axis, and a row of a grid or of one
    metric the y axis.
    """
    metrics = len({panel.y.name for panel in panels})
    is_grid = 1 < metrics < len(panels)  # a row for each metric
    columns = len(panels) // metrics if is_grid else min(len(panels), _MAX_BESIDE)
    share_x, share_y = is_grid, is_grid or metrics == 1
    num_rows, several = -(-len(panels) // columns), len(panels) > 1
    width, height = size or _size(columns, num_rows, several, style)
    with shared.picture_style(style) as look:
        points = look.points if width / columns >= look.narrow else look.small
        rcParams["font.size"] = points  # `picture_style` restores it
        figure = MetricFigure(figsize=(width, height), layout="constrained")
        common: Any = {"sharex": share_x and "col", "sharey": share_y and "row", "squeeze": False}
        axes_of_grid = figure.subplots(num_rows, columns, **common).ravel()
        for axes in axes_of_grid[len(panels) :]:
            axes.remove()
        for axes, panel in zip(axes_of_grid, panels, strict=False):
            _draw_curves(axes, panel, styles, filled, look.lines)
            axes.tick_params(labelsize=points, labelfontfamily=rcParams["font.family"])
            place = axes.get_subplotspec()  # shared axes have one label
            texts = {
                "title": panel.title * (place.is_first_row() or not share_x),
                "xlabel": panel.x.label * (place.is_last_row() or not share_x),
                "ylabel": panel.y.label * (place.is_first_col() or not share_y),
            }
            for name, text in texts.items():
                lines = _wrapped(label_text(text), width / columns, points)
                getattr(axes, f"set_{name}")(lines, fontsize=points, parse_math=False)
        # the parts of the panels' titles and columns that distinguish them
        parts = zip(*[(panel.title, panel.y.name, panel.x.name) for panel in panels], strict=True)
        differing = [texts for texts in parts if len(set(texts)) > 1]
        panel_names = list(map(", ".join, zip(*differing, strict=True))) or [""] * len(panels)
        drawn = list(zip(panel_names, panels, axes_of_grid, strict=False))
        states = {label: _states(label, drawn) for label in names}
        ends = {label: f" ({'; '.join(texts)})" * bool(texts) for label, texts in states.items()}
        entries = {label: label_text(text) + ends[label] for label, text in names.items()}
        height += _draw_legend(figure, entries, styles, points, look.lines)
        if size is None:
            figure.set_size_inches(width, height)
        write = figure.suptitle if several else axes_of_grid[0].set_title
        write(_wrapped(printable(title), width, points), fontsize=points, parse_math=False)
    figure.notes = [f"{names[name]}: {state}" for name in names for state in states[name]]
    figure.notes += [f"{name}: none of the methods" for name, panel, _ in drawn if not panel.curves]
    figure.notes += _without_place(panels)
    return figure


def _size(columns, rows, several, style):
    """Returns width and height in inches, without the legend."""
    if style == "paper":
        width = shared.COLUMN_WIDTH if columns == 1 else shared.TEXT_WIDTH
        return width, 0.3 + 1.7 * rows if several else 2.2
    return (0.6 + 3.6 * columns, 0.8 + 3 * rows) if several else (7.5, 4.6)


def _states(label: str, drawn: list[tuple[str, Panel, Axes]]) -> list[str]:
    """Describes what the panels do not show of a method, by panel if they differ."""
    with_curve = [entry for entry in drawn if label in entry[1].curves]
    states = {name: _state_of(panel.curves[label], axes, panel) for name, panel, axes in with_curve}
    if len({*states.values()}) == 1:
        return [state for state in states.values() if state][:1]
    return [f"{state} in {name}" for name, state in states.items() if state]


def _without_place(panels: list[Panel]) -> list[str]:
    """Writes a line for each logarithmic axis that cannot show some points."""
    lines = []
    for axis, values in (("x", "x"), ("y", "mean")):
        of_axis = [panel.curves.values() for panel in panels if getattr(panel, axis).logarithmic]
        drawn = itertools.chain(*of_axis)
        below = [(getattr(c, values) <= 0) & np.isfinite(c.x + c.mean) for c in drawn]
        if points := sum(int(each.sum()) for each in below):
            number = f"{points} point" + "s" * (points > 1)
            lines.append(f"{number} at 0 or below: no place on the logarithmic {axis} axis")
    return lines


def _draw_legend(figure, texts, styles, points, scale):
    """Draws the legend and returns its height in inches, 0 if it is inside the only panel."""
    if not any(texts.values()):  # one run without a label
        return 0.0
    renderer = FigureCanvasAgg(figure).get_renderer()
    width, height = figure.get_size_inches()
    wrapped = [_wrapped(text, width - 0.5, points) for text in texts.values()]
    handles = [Line2D([], [], **_line_options(styles[name], scale)) for name in texts]
    numbers = list(map(str, range(len(handles))))  # matplotlib skips labels that begin with _

    def add(owner: Any, where: str, columns: int) -> tuple[Any, float, float]:
        look = {"frameon": False, "fontsize": points, "handlelength": 2.8, "columnspacing": 1.4}
        legend = owner.legend(handles, numbers, loc=where, ncols=columns, **look)
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
    """Wraps a text into lines of a width in inches."""
    return textwrap.fill(text, max(10, int((width - 0.4) * _CHARACTERS / points)))


def _line_options(style, scale):
    """Returns a method's style as options of a line, with its width and marker scaled."""
    return {
        "color": style.colour,
        "marker": style.marker,
        "linestyle": style.line,
        "linewidth": 1.4 * scale,
        "markersize": _MARKER_SIZE.get(style.marker, 4.5) * scale,
        "markeredgewidth": 0.0,
    }


def _draw_curves(axes, panel, styles, filled, scale):
    """Draws the curves of a panel with their bands, and sets its scales and limits."""
    columns = {"x": panel.x, "y": panel.y}

    def in_unit(values: np.ndarray, column: shared.Axis) -> np.ndarray:
        """Returns values in the column's unit; NaN if a logarithmic axis cannot show them."""
        return np.where((values > 0) | (not column.logarithmic), values, np.nan) / column.unit

    # a model stays as it is until the next evaluation in simulated time
    steps = "post" if panel.x.name == "simulated_seconds" else None
    jumps = {"drawstyle": "steps-post"} if steps else {}
    for index, (label, curve) in enumerate(panel.curves.items()):
        style = styles[label]
        x, mean = in_unit(curve.x, panel.x), in_unit(curve.mean, panel.y)
        if filled:  # a band below a logarithmic axis ends at its edge
            low, high = curve.low / panel.y.unit, curve.high / panel.y.unit
            band = {"color": style.colour, "alpha": 0.13, "linewidth": 0, "step": steps}
            axes.fill_between(x, low, high, **band)
        thin = {"color": style.colour, "alpha": 0.4, "linewidth": 0.5 * scale, **jumps}
        for own_x, own_y in curve.lines:
            axes.plot(in_unit(own_x, panel.x), in_unit(own_y, panel.y), **thin)
        start = 0.02 * (index % 5)  # markers of different methods do not overlap
        places = None if len(x) <= _MANY_POINTS else (start, _MARKER_DISTANCE)
        axes.plot(x, mean, markevery=places, **_line_options(style, scale), **jumps)
    axes.set(**{f"{name}scale": "log" for name, c in columns.items() if c.logarithmic})
    for name, column in columns.items():
        ends = [None if end is None else end / column.unit for end in column.limits]
        getattr(axes, f"set_{name}lim")(*ends)
        axis = getattr(axes, f"{name}axis")
        if column.logarithmic:
            _label_logarithmic(axis)
        elif column.name == "round":  # a whole number
            axis.set_major_locator(MaxNLocator("auto", steps=_STEPS, integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)


def _label_logarithmic(axis: Axis) -> None:
    """Writes numbers such as 0.5 on the axis, unless it spans many powers of ten."""
    low, high = axis.get_view_interval()
    if not 0 < low < high <= 1e4 * low:
        return
    narrow = MaxNLocator(5, steps=_STEPS)
    axis.set_major_locator(narrow if high < 10 * low else LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def _state_of(curve: Curve, axes: Axes, panel: Panel) -> str:
    """Describes what a finished panel does not show of a curve; "" if it shows all of it."""
    x, y = curve.x / panel.x.unit, curve.mean / panel.y.unit
    (left, right), (below, above) = axes.get_xlim(), axes.get_ylim()
    if not np.isfinite(x + y).any():
        return "no finite value"
    if not ((x >= left) & (x <= right) & (y >= below) & (y <= above)).any():
        return OUTSIDE
    if curve.lost:
        return "not finite" + f" on {curve.lost} of {curve.seeds} seeds" * (curve.seeds > 1)
    return ""
