"""What is drawn in a panel; imported late, because matplotlib is slow to import."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from fedjax_algos.analysis.plots.columns import WHOLE, Column
from fedjax_algos.analysis.plots.curves import OUTSIDE, Curve
from fedjax_algos.analysis.plots.styles import Style

_MANY_POINTS = 12  # more of them do not all have a marker
_MARKER_DISTANCE = 0.1  # along a curve, in diagonals of the axes
_MARKER_SIZE = {"*": 7.5, "P": 5.8, "X": 5.8}  # points; other markers look larger


def line_options(style: Style, scale: float) -> dict[str, Any]:
    """The style of a method as options of a line.

    Args:
      style: of the method.
      scale: factor of the width of the line and the size of the marker.
    """
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
    """Draws the curves of a panel with their bands, and sets its scales and limits.

    Args:
      axes: of the panel.
      curves: by label, in the order in which they are drawn.
      styles: by label.
      columns: of the x and of the y axis.
      filled: whether the band is a filled one.
      scale: factor of the widths of lines and the sizes of markers.
    """
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
    """What a panel does not show of a method; "" if it shows the whole curve.

    Args:
      curve: of the method.
      axes: with all curves.
      columns: of the x and of the y axis.
    """
    x, y = curve.x / columns[0].unit, curve.mean / columns[1].unit
    (left, right), (below, above) = axes.get_xlim(), axes.get_ylim()
    if not np.isfinite(x + y).any():
        return "no finite value"
    if not ((x >= left) & (x <= right) & (y >= below) & (y <= above)).any():
        return OUTSIDE
    if curve.lost:
        return "not finite" + f" on {curve.lost} of {curve.seeds} seeds" * (curve.seeds > 1)
    return ""
