"""The layers of the picture of who trains when; imported late, as matplotlib is slow to import."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedjax_algos.asynchrony.plan import IN_FLIGHT, LOST, Plan

WIDTH, _INNER_WIDTH = 10, 9.2  # inches of the picture and, about, of its axes
_BAR = 0.74  # of a row's height
_VISIT, _OPEN, _LOST = "visit", "in no server step yet", "lost visit"
_PALE, _HATCH = 0.45, "/////"
# matplotlib's cycle, paler and without its grey, which is for visits of no group
_COLOURS = (
    "#6fa8d6",
    "#ffb067",
    "#7fc97f",
    "#e58a8a",
    "#b9a0d6",
    "#c49c85",
    "#eba6d6",
    "#d3d46f",
    "#74d3dd",
)
_NO_GROUP = "#c9c9c9"
_DARK, _LATE = "#303030", "#c00000"


class Scene(NamedTuple):
    """A plan, and where its dispatches are in a picture."""

    axes: Axes
    plan: Plan
    start: float
    end: float
    unit: float  # seconds
    height: float  # of a row, in points
    row: np.ndarray  # int[D], -1 for those of clients that are not drawn
    group: np.ndarray  # int[D], -1 for none


def last_event(plan: Plan) -> float:
    """What is planned goes at least so far."""
    ended = plan.ended[plan.fate != IN_FLIGHT]
    return float(max(times.max(initial=0) for times in (plan.started, ended, plan.time)))


def draw_server_steps(scene: Scene) -> int:
    times = scene.plan.time
    times = times[(times >= scene.start) & (times <= scene.end)]
    if len(times):
        scene.axes.vlines(
            times / scene.unit,
            0,
            1,
            transform=scene.axes.get_xaxis_transform(),
            colors="#606060",
            linewidth=min(0.8, max(0.1, 25 / len(times))),
            label="server step",
            clip_on=False,
            zorder=1,
        )
    return len(times)


def draw_visits(scene: Scene, shown: np.ndarray) -> None:
    plan = scene.plan
    left = np.maximum(plan.started, scene.start) / scene.unit
    right = np.minimum(plan.ended, scene.end) / scene.unit
    above, below = scene.row - _BAR / 2, scene.row + _BAR / 2
    corners = np.stack([left, above, left, below, right, below, right, above], axis=1)
    points = (right - left) * 72 * _INNER_WIDTH * scene.unit / (scene.end - scene.start)
    lost, in_flight = plan.fate == LOST, plan.fate == IN_FLIGHT
    for label, chosen, strength, hatch in (
        (_VISIT, shown & ~lost & ~in_flight, 1.0, None),
        (_OPEN, shown & in_flight, _PALE, None),
        (_LOST, shown & lost, _PALE, _HATCH),
    ):
        if chosen.any():
            bars = PolyCollection(
                corners[chosen].reshape(-1, 4, 2),
                facecolors=[_colour(group, strength) for group in scene.group[chosen]],
                edgecolors="white" if hatch is None else "#606060",
                linewidths=np.where(points[chosen] > 3, 0.4, 0) if hatch is None else 0,
                hatch=hatch,
                label=label,
                zorder=2,
            )
            scene.axes.add_collection(bars)
    size, number = min(8.5, 0.62 * _BAR * scene.height), plan.num_steps.astype(str)
    fits = shown & ~lost & (points > 0.64 * size * np.strings.str_len(number) + 8)
    for x, y, text in zip((left + right)[fits] / 2, scene.row[fits], number[fits], strict=True):
        scene.axes.text(x, y, text, fontsize=size, color=_DARK, ha="center", va="center_baseline")


def draw_ends(scene: Scene, late: np.ndarray | None) -> tuple[int, int]:
    """Marks what ends in the picture: the numbers of arrivals and of losses."""
    plan = scene.plan
    lost, in_flight = plan.fate == LOST, plan.fate == IN_FLIGHT
    last_visit = np.zeros(plan.client.max() + 1, int)
    np.maximum.at(last_visit, plan.client, plan.visit)
    over = (plan.ended < last_event(plan)) | (plan.visit < last_visit[plan.client])
    ends = (scene.row >= 0) & (plan.ended >= scene.start) & (plan.ended <= scene.end)
    arrived = ends & ~lost & (~in_flight | over)
    late = np.zeros_like(arrived) if late is None else late
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


def draw_legend(figure: Figure, scene: Scene, groups: np.ndarray, traced: bool) -> None:
    handles, labels = scene.axes.get_legend_handles_labels()
    marks = dict(zip(labels, handles, strict=True))
    entries: dict[str, Any] = {}
    columns = 6
    if len(np.unique(scene.group)) > 1:
        marks.pop(_VISIT, None)
        known = np.unique(groups[groups >= 0])
        for colour in dict.fromkeys(known % len(_COLOURS)):
            names = known[known % len(_COLOURS) == colour].astype(str)
            more = ", ..." if len(names) > 3 else ""
            entries["group " + ", ".join(names[:3]) + more] = Patch(color=_colour(colour))
            columns = 5 if len(names) > 1 else columns
        if traced and (groups < 0).any():
            entries["first visits"] = Patch(color=_colour(-1))
        if _OPEN in marks:
            marks[_OPEN] = Patch(color=_colour(-1, _PALE))
        if _LOST in marks:
            marks[_LOST] = Patch(
                facecolor=_colour(-1, _PALE), edgecolor="#606060", linewidth=0, hatch=_HATCH
            )
    entries |= marks
    by_column = [name for column in range(columns) for name in list(entries)[column::columns]]
    figure.legend(
        [entries[name] for name in by_column],
        by_column,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8.5,
    )


def _colour(group: int, strength: float = 1.0) -> Any:
    """Of a group, mixed with white. Not transparent, since there are lines behind."""
    pure = np.array(to_rgb(_NO_GROUP if group < 0 else _COLOURS[group % len(_COLOURS)]))
    return strength * pure + 1 - strength
