"""The layers of a timeline's figure; imported late, because matplotlib is slow to import."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedjax_algos.asynchrony.compass import CompassTrace
from fedjax_algos.asynchrony.plan import IN_FLIGHT, LOST, Plan
from fedjax_algos.core.pictures import TEXT_WIDTH, Look

WIDTHS = {"screen": 10.0, "paper": TEXT_WIDTH}  # inches of the figure
_AXES_WIDTH = 0.92  # of the figure's width, about
_BAR_HEIGHT = 0.74  # of a row's height
_DISPATCH, _UNUSED, _LOST = "dispatch", "in no server step yet", "lost dispatch"  # labels
_PALE, _HATCH = 0.45, "/////"
# the colours of `analysis/plots/styles.py`, paler and without black; neighbours differ in grey
_COLOURS = (
    "#6d9df1",  # blue
    "#ffb8aa",  # salmon
    "#9f61ab",  # purple
    "#70dbff",  # light blue
    "#81946d",  # green
    "#c1bf4c",  # olive
    "#ee7eb0",  # pink
)
_NO_GROUP, _LINE, _DARK, _LATE = "#c9c9c9", "#606060", "#303030", "#c00000"


class Scene(NamedTuple):
    """A plan, and the positions of its dispatches in a figure."""

    axes: Axes
    plan: Plan
    start: float
    end: float
    unit: float  # of the time axis, in seconds
    height: float  # of a row, in points
    row: np.ndarray  # int[D], -1 for clients that are not drawn
    group: np.ndarray  # int[D], -1 for none
    look: Look
    width: float  # of the figure, in inches


def last_event(plan: Plan) -> float:
    """The time of the last event that the plan is known to contain, in simulated seconds.

    Args:
      plan: the timeline.
    """
    ended = plan.ended[plan.fate != IN_FLIGHT]
    return float(max(times.max(initial=0) for times in (plan.started, ended, plan.time)))


def draw_server_steps(scene: Scene) -> int:
    """Draws a vertical line at each server step and returns their number.

    Args:
      scene: the figure.
    """
    times = scene.plan.time
    times = times[(times >= scene.start) & (times <= scene.end)]
    if len(times):
        scene.axes.vlines(
            times / scene.unit,
            0,
            1,
            transform=scene.axes.get_xaxis_transform(),
            colors=_LINE,
            linewidth=min(0.8, max(0.1, 25 / len(times))) * scene.look.lines,
            label="server step",
            clip_on=False,
            zorder=1,
        )
    return len(times)


def draw_dispatches(scene: Scene, visible: np.ndarray) -> None:
    """Draws a bar for each visible dispatch, with its number of steps if it fits.

    Args:
      scene: the figure.
      visible: bool[D].
    """
    plan = scene.plan
    left = np.maximum(plan.started, scene.start) / scene.unit
    right = np.minimum(plan.ended, scene.end) / scene.unit
    above, below = scene.row - _BAR_HEIGHT / 2, scene.row + _BAR_HEIGHT / 2
    corners = np.stack([left, above, left, below, right, below, right, above], axis=1)
    width = 72 * _AXES_WIDTH * scene.width
    points = (right - left) * width * scene.unit / (scene.end - scene.start)
    lost, in_flight = plan.fate == LOST, plan.fate == IN_FLIGHT
    for label, chosen, strength, hatch in (
        (_DISPATCH, visible & ~lost & ~in_flight, 1.0, None),
        (_UNUSED, visible & in_flight, _PALE, None),
        (_LOST, visible & lost, _PALE, _HATCH),
    ):
        if chosen.any():
            bars = PolyCollection(
                corners[chosen].reshape(-1, 4, 2),
                facecolors=[_colour(group, strength) for group in scene.group[chosen]],
                edgecolors="white" if hatch is None else _LINE,
                linewidths=np.where(points[chosen] > 3, 0.4, 0) if hatch is None else 0,
                hatch=hatch,
                label=label,
                zorder=2,
            )
            scene.axes.add_collection(bars)
    size = min(0.85 * scene.look.points, 0.62 * _BAR_HEIGHT * scene.height)
    number = plan.num_steps.astype(str)
    fits = visible & ~lost & (points > 0.64 * size * np.strings.str_len(number) + 8)
    for x, y, text in zip((left + right)[fits] / 2, scene.row[fits], number[fits], strict=True):
        scene.axes.text(x, y, text, fontsize=size, color=_DARK, ha="center", va="center_baseline")


def draw_ends(scene: Scene) -> tuple[int, int]:
    """Marks arrivals and lost dispatches, and returns their numbers.

    Args:
      scene: the figure.
    """
    plan = scene.plan
    lost, in_flight = plan.fate == LOST, plan.fate == IN_FLIGHT
    last_dispatch = np.zeros(plan.client.max() + 1, int)
    np.maximum.at(last_dispatch, plan.client, plan.number)
    over = (plan.ended < last_event(plan)) | (plan.number < last_dispatch[plan.client])
    ends = (scene.row >= 0) & (plan.ended >= scene.start) & (plan.ended <= scene.end)
    arrived = ends & ~lost & (~in_flight | over)
    late = plan.trace.late if isinstance(plan.trace, CompassTrace) else np.zeros_like(arrived)
    size = min(5.0, 0.3 * scene.height)
    for label, chosen, marker, colour, relative in (
        ("arrival", arrived & ~late, "o", _DARK, 0.8),
        ("late arrival", arrived & late, "D", _LATE, 1.0),
        ("client leaves", ends & lost, "X", _LATE, 1.3),
    ):
        if chosen.any():
            scene.axes.plot(
                plan.ended[chosen] / scene.unit,
                scene.row[chosen],
                marker,
                color=colour,
                markersize=size * relative,
                markeredgecolor="white",
                markeredgewidth=0.08 * size,
                clip_on=False,
                label=label,
                zorder=4,
            )
    return int(arrived.sum()), int((ends & lost).sum())


def draw_legend(figure: Figure, scene: Scene, groups: np.ndarray) -> None:
    """Draws the legend below the axes: the colours of groups, and the marks.

    Args:
      figure: that the legend is added to.
      scene: the figure's axes, with all other layers drawn.
      groups: int[visible dispatches], -1 for none.
    """
    handles, labels = scene.axes.get_legend_handles_labels()
    marks = dict(zip(labels, handles, strict=True))
    entries: dict[str, Any] = {}
    columns = 6
    if len(np.unique(scene.group)) > 1:
        marks.pop(_DISPATCH, None)
        known = np.unique(groups[groups >= 0])
        for colour in dict.fromkeys(known % len(_COLOURS)):
            names = known[known % len(_COLOURS) == colour].astype(str)
            more = ", ..." if len(names) > 3 else ""
            entries["group " + ", ".join(names[:3]) + more] = Patch(color=_colour(colour))
            columns = 5 if len(names) > 1 else columns
        if isinstance(scene.plan.trace, CompassTrace) and (groups < 0).any():
            entries["first dispatches"] = Patch(color=_colour(-1))
        if _UNUSED in marks:
            marks[_UNUSED] = Patch(color=_colour(-1, _PALE))
        if _LOST in marks:
            marks[_LOST] = Patch(
                facecolor=_colour(-1, _PALE), edgecolor=_LINE, linewidth=0, hatch=_HATCH
            )
    entries |= marks
    by_column = [name for column in range(columns) for name in list(entries)[column::columns]]
    figure.legend(
        [entries[name] for name in by_column],
        by_column,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=0.85 * scene.look.points,
    )


def _colour(group: int, strength: float = 1.0) -> Any:
    """The colour of a group, mixed with white; opaque, because there are lines behind it."""
    pure = np.array(to_rgb(_NO_GROUP if group < 0 else _COLOURS[group % len(_COLOURS)]))
    return strength * pure + 1 - strength
