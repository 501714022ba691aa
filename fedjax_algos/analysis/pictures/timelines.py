"""Draws a plan's timeline, and counts its numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.analysis.pictures import axes as shared
from fedjax_algos.analysis.pictures.axes import PictureStyle
from fedjax_algos.asynchrony.compass import CompassTrace
from fedjax_algos.asynchrony.plan import IN_FLIGHT, LOST, Plan
from fedjax_algos.base.errors import require
from fedjax_algos.core.checks import check_whole

_MAX_CLIENTS = 100  # rows of a timeline
_MAX_SECONDS = 600  # of an axis in seconds; a longer one is in minutes
_WIDTHS = {"screen": 10.0, "paper": shared.TEXT_WIDTH}  # inches of the figure
_AXES_WIDTH = 0.92  # of the figure's width, about
_BAR_HEIGHT = 0.74  # of a row's height
_DISPATCH, _UNUSED, _LOST = "dispatch", "in no server step yet", "lost dispatch"  # labels
_PALE, _HATCH = 0.45, "/////"
# the colours of `curves.py`, paler and without black; neighbours differ in grey
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


class PlanSummary(NamedTuple):
    """The numbers of a plan, up to its last server step.

    It counts `server_steps`, the `arrivals` that are part of one, `lost` dispatches, and dispatches
    that are `in_flight` at the horizon or arrived and in no server step. It also has the
    `mean_staleness` and `max_staleness` of the arrivals; `mean_idle_share`, the mean over clients
    of their `idle_share`; and the simulated `seconds`.
    """

    server_steps: int
    arrivals: int
    lost: int
    in_flight: int
    mean_staleness: float
    max_staleness: int
    mean_idle_share: float
    seconds: float


def summarise_plan(plan: Plan, num_clients: int) -> PlanSummary:
    """Summarises counts, staleness (as the planner counts it) and idle time of a plan.

    Args:
      plan: the timeline.
      num_clients: the number of clients that the plan was made for.

    Raises:
      ValueError: for a plan without server steps, or one that dispatches other clients.
    """
    idle = idle_share(plan, num_clients)  # checks the plan
    return PlanSummary(
        server_steps=len(plan.time),
        arrivals=len(plan.dispatch),
        lost=int((plan.fate == LOST).sum()),
        in_flight=int((plan.fate == IN_FLIGHT).sum()),
        mean_staleness=float(plan.staleness.mean()),
        max_staleness=int(plan.staleness.max()),
        mean_idle_share=float(idle.mean()),
        seconds=float(plan.time[-1]),
    )


def idle_share(plan: Plan, num_clients: int, end: float | None = None) -> np.ndarray:
    """Returns each client's share of simulated time without training, float64[num_clients].

    A dispatch counts as training from its start to its arrival, communication included, or until
    the client leaves. The time while a client is away counts as idle.

    Args:
      plan, num_clients: as for `summarise_plan`.
      end: the end of the time considered, in simulated seconds; None is the last server step.

    Raises:
      ValueError: for a plan without server steps if `end` is None, an `end` that is not above 0, or
        a plan that dispatches other clients.
    """
    end = float(plan.time.max(initial=0)) if end is None else end
    fix = "give a number of seconds above 0, and a plan with server steps if you give none"
    require(0 < end < np.inf, f"end={end} is out of range; {fix}")
    check_whole("num_clients", num_clients, int(plan.client.max(initial=-1)) + 1)
    seconds = np.minimum(plan.ended, end) - np.minimum(plan.started, end)
    training = np.bincount(plan.client, seconds, minlength=num_clients)
    return np.maximum(1 - training / end, 0)  # rounding can make a sum exceed the whole


def plot_timeline(plan: Plan, path: str | Path, **options: Any) -> None:
    """Writes the timeline of a plan to a file.

    Args:
      plan: the timeline.
      path: the file to write, .png, .pdf or .svg.
      **options: as for `draw_timeline`.
    """
    shared.save_figure(draw_timeline(plan, **options), path, options.get("style", "screen"))


def draw_timeline(
    plan: Plan,
    *,
    start: float = 0.0,
    end: float | None = None,
    clients: Sequence[int] | np.ndarray | None = None,
    style: PictureStyle = "screen",
) -> Any:
    """Draws a row for each client and a bar for each dispatch, with its number of steps if it fits.

    Colours are FedCompass's arrival groups if the plan has a `CompassTrace`, else the groups of the
    server steps that use the updates, such as tiers, if there are several; grey bars have no group.
    Lost dispatches are hatched. A client without a bar waits or is away. An arrival that no server
    step uses is marked only if the plan has later events: a plan does not store its horizon.

    Args:
      plan: the timeline.
      start: where the time axis starts, in simulated seconds.
      end: where it ends; None is the last known event of the plan.
      clients: the rows from top to bottom, at most 100; None is all clients that are dispatched.
      style: "screen"; or "paper", which is as wide as two columns of a paper and has no title.

    Raises:
      ValueError: for another style; for more than 100 clients, none, or negative or repeated ids;
        for times that are not an interval; for an interval when none of the clients trains.
    """
    clients = _rows(plan, clients)
    end = _last_event(plan) if end is None else end
    row_of = {client: row for row, client in enumerate(clients.tolist())}
    row = np.array([row_of.get(client, -1) for client in plan.client.tolist()])
    visible = (row >= 0) & (plan.started < end) & (plan.ended > start)
    count = shared.counted(len(clients), "client")
    fix = "give 0 <= start < end in seconds, or other clients"
    text = f"none of the {count} trains from start={start} to end={end}; {fix}"
    require(0 <= start < end < np.inf and visible.any(), text)
    unit, unit_name = (60.0, "minutes") if end > _MAX_SECONDS else (1.0, "seconds")
    start, end = start / unit, end / unit
    times = {name: getattr(plan, name) / unit for name in ("started", "ended", "time")}
    plan, group = plan._replace(**times), _groups(plan)
    with shared.picture_style(style) as look:
        height = min(0.45, max(0.14, 8 / len(clients))) * look.lines
        figure = shared.new_figure((_WIDTHS[style], height * len(clients) + 1.6 * look.lines))
        axes = figure.add_subplot()
        axes.set(xlabel=f"simulated {unit_name}", ylabel="client")
        axes.set(xlim=(start, end), ylim=(len(clients) - 0.4, -0.6))
        steps = plan.time[(plan.time >= start) & (plan.time <= end)]
        if len(steps):
            line: Any = {"colors": _LINE, "clip_on": False, "zorder": 1, "label": "server step"}
            line["linewidth"] = min(0.8, max(0.1, 25 / len(steps))) * look.lines
            axes.vlines(steps, 0, 1, transform=axes.get_xaxis_transform(), **line)
        row_points = 72 * height
        _draw_dispatches(axes, plan, row, group, visible, row_points, look)
        arrivals, losses = _draw_ends(axes, plan, row, row_points)
        facts = {"client": len(clients), "server step": len(steps), "arrival": arrivals}
        facts |= {"lost dispatch": losses} if losses else {}
        title = ", ".join(shared.counted(number, noun) for noun, number in facts.items())
        title += "; numbers: local steps" * bool(axes.texts)
        shared.finish_axes(axes, style, title)
        points = min(0.9 * look.points, 0.85 * row_points)
        axes.set_yticks(range(len(clients)), clients.tolist(), fontsize=points)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        _draw_legend(axes, plan, group, visible, look)
    return figure


def _rows(plan: Plan, clients: Sequence[int] | np.ndarray | None) -> np.ndarray:
    rows = np.unique(plan.client) if clients is None else np.atleast_1d(clients)
    are_ids = rows.dtype.kind in "iu" and rows.min(initial=0) >= 0
    differ = 0 < len(np.unique(rows)) == len(rows) <= _MAX_CLIENTS
    fix = f"give 1 to {_MAX_CLIENTS} different ids, such as clients=range({_MAX_CLIENTS})"
    require(are_ids and differ, f"the {len(rows)} rows of clients={clients} cannot be drawn; {fix}")
    return rows


def _groups(plan: Plan) -> np.ndarray:
    """Returns the group of each dispatch; -1 means none."""
    if isinstance(plan.trace, CompassTrace):
        return np.where(plan.trace.arrival_group > 0, plan.trace.arrival_group, -1)
    if len(np.unique(plan.group)) < 2:
        return np.zeros(len(plan.client), int)
    group = np.full(len(plan.client), -1)
    group[plan.dispatch] = plan.group[plan.step]
    return group


def _last_event(plan: Plan) -> float:
    """Returns the time of the last known event of a plan."""
    ended = plan.ended[plan.fate != IN_FLIGHT]
    return float(max(times.max(initial=0) for times in (plan.started, ended, plan.time)))


def _draw_dispatches(axes, plan, row, group, visible, row_points, look):
    """Draws a bar for each visible dispatch, with its number of steps if it fits."""
    from matplotlib.collections import PolyCollection

    start, end = axes.get_xlim()
    left, right = np.maximum(plan.started, start), np.minimum(plan.ended, end)
    above, below = row - _BAR_HEIGHT / 2, row + _BAR_HEIGHT / 2
    corners = np.stack([left, above, left, below, right, below, right, above], axis=1)
    width = 72 * _AXES_WIDTH * axes.figure.get_figwidth()
    points = (right - left) * width / (end - start)
    lost, in_flight = plan.fate == LOST, plan.fate == IN_FLIGHT
    for label, chosen, strength, hatch in (
        (_DISPATCH, visible & ~lost & ~in_flight, 1.0, None),
        (_UNUSED, visible & in_flight, _PALE, None),
        (_LOST, visible & lost, _PALE, _HATCH),
    ):
        if chosen.any():
            fill = [_colour(each, strength) for each in group[chosen]]
            border = {"edgecolors": _LINE, "linewidths": 0, "hatch": hatch, "zorder": 2}
            if hatch is None:
                border |= {"edgecolors": "white", "linewidths": 0.4 * (points[chosen] > 3)}
            bars = corners[chosen].reshape(-1, 4, 2)
            axes.add_collection(PolyCollection(bars, facecolors=fill, label=label, **border))
    size = min(0.85 * look.points, 0.62 * _BAR_HEIGHT * row_points)
    number = plan.num_steps.astype(str)
    fits = visible & ~lost & (points > 0.64 * size * np.strings.str_len(number) + 8)
    for x, y, text in zip((left + right)[fits] / 2, row[fits], number[fits], strict=True):
        axes.text(x, y, text, fontsize=size, color=_DARK, ha="center", va="center_baseline")


def _draw_ends(axes, plan, row, row_points):
    """Marks arrivals and lost dispatches, and returns their numbers."""
    start, end = axes.get_xlim()
    lost, in_flight = plan.fate == LOST, plan.fate == IN_FLIGHT
    last_dispatch = np.zeros(plan.client.max() + 1, int)
    np.maximum.at(last_dispatch, plan.client, plan.number)
    over = (plan.ended < _last_event(plan)) | (plan.number < last_dispatch[plan.client])
    ends = (row >= 0) & (plan.ended >= start) & (plan.ended <= end)
    arrived = ends & ~lost & (~in_flight | over)
    late = plan.trace.late if isinstance(plan.trace, CompassTrace) else np.zeros_like(arrived)
    size = min(5.0, 0.3 * row_points)
    for label, chosen, marker, colour, relative in (
        ("arrival", arrived & ~late, "o", _DARK, 0.8),
        ("late arrival", arrived & late, "D", _LATE, 1.0),
        ("client leaves", ends & lost, "X", _LATE, 1.3),
    ):
        if chosen.any():
            look = {"markeredgecolor": "white", "markeredgewidth": 0.08 * size, "zorder": 4}
            look |= {"color": colour, "markersize": size * relative, "clip_on": False}
            axes.plot(plan.ended[chosen], row[chosen], marker, label=label, **look)
    return int(arrived.sum()), int((ends & lost).sum())


def _draw_legend(axes, plan, group, visible, look):
    """Draws the legend below the axes: the colours of groups, and the marks."""
    from matplotlib.patches import Patch

    handles, labels = axes.get_legend_handles_labels()
    marks, entries, columns = dict(zip(labels, handles, strict=True)), {}, 6
    if len(np.unique(group)) > 1:
        marks.pop(_DISPATCH, None)
        names = {}  # of groups, by colour
        for number in np.unique(group[visible & (group >= 0)]).tolist():
            names.setdefault(number % len(_COLOURS), []).append(str(number))
        for colour, groups in names.items():
            text = ", ".join([*groups[:3], *["..."] * (len(groups) > 3)])
            entries[f"group {text}"] = Patch(color=_colour(colour))
        columns = 5 if max(map(len, names.values()), default=0) > 1 else columns
        if isinstance(plan.trace, CompassTrace) and (group[visible] < 0).any():
            entries["first dispatches"] = Patch(color=_colour(-1))
        if _UNUSED in marks:
            marks[_UNUSED] = Patch(color=_colour(-1, _PALE))
        if _LOST in marks:
            hatched = {"edgecolor": _LINE, "linewidth": 0, "hatch": _HATCH}
            marks[_LOST] = Patch(facecolor=_colour(-1, _PALE), **hatched)
    entries |= marks
    by_column = [name for column in range(columns) for name in list(entries)[column::columns]]
    chosen = [entries[name] for name in by_column]
    style = {"frameon": False, "fontsize": 0.85 * look.points, "ncols": columns}
    axes.figure.legend(chosen, by_column, loc="outside lower center", **style)


def _colour(group: int, strength: float = 1.0) -> Any:
    """Mixes the colour of a group with white; it is opaque, because there are lines behind it."""
    from matplotlib.colors import to_rgb

    pure = np.array(to_rgb(_NO_GROUP if group < 0 else _COLOURS[group % len(_COLOURS)]))
    return strength * pure + 1 - strength
