"""What a person sees of a plan: its timeline, the staleness of its contributions, idle clients."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_algos.schedules.arrival_groups import CompassTrace
from fedjax_algos.schedules.plan import IN_FLIGHT, LOST, Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROWS = 100  # at most
_MINUTES = 600  # seconds after which the axis is in minutes
_WIDTH, _INNER_WIDTH = 10, 9.2  # inches of the picture and, about, of its axes
_BAR = 0.74  # of a row's height
_HISTOGRAM = 50  # bars at most
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


class PlanSummary(NamedTuple):
    """A plan in numbers, up to its last server step."""

    server_steps: int
    arrivals: int  # updates that are in a server step
    lost: int  # visits
    in_flight: int  # visits in flight at the horizon, or arrived and in no server step
    mean_staleness: float
    max_staleness: int
    mean_idle_share: float
    seconds: float  # of virtual time


def summarise_plan(plan: Plan, num_clients: int) -> PlanSummary:
    """Counts, staleness and idle time, see `idle_share`. Staleness is as the schedule counts it.

    Raises:
      ValueError: for a plan without server steps, or that dispatches more clients.
    """
    fates = np.bincount(plan.fate, minlength=3)
    idle = idle_share(plan, num_clients)
    return PlanSummary(
        server_steps=len(plan.time),
        arrivals=len(plan.dispatch),
        lost=int(fates[LOST]),
        in_flight=int(fates[IN_FLIGHT]),
        mean_staleness=float(plan.staleness.mean()),
        max_staleness=int(plan.staleness.max()),
        mean_idle_share=float(idle.mean()),
        seconds=float(plan.time[-1]),
    )


def idle_share(plan: Plan, num_clients: int, end: float | None = None) -> np.ndarray:
    """float64[num_clients]: the share of virtual time in which each client does not train.

    Communication counts as training, as it is part of a visit, and so do lost visits until the
    client leaves. The time that a client is away counts as idle.

    Args:
      plan: a timeline.
      num_clients: m; those who are never dispatched have 1.
      end: of the time that is looked at, from 0, in seconds; None is the last server step. The
        plan should reach it: nobody trains after what is planned.

    Raises:
      ValueError: for a plan without server steps if there is no `end`, for an `end` that is not
        above 0, or a plan that dispatches more clients.
    """
    if end is None:
        _require_server_steps(plan, ", or give end")
        end = float(plan.time[-1])
    if not 0 < end < np.inf:
        raise ValueError(f"end={end} is out of range; give a number of seconds above 0")
    if plan.client.max(initial=-1) >= num_clients:
        raise ValueError(
            f"the plan dispatches client {plan.client.max()}, but num_clients={num_clients}; give "
            "the number that the plan was made for"
        )
    seconds = np.minimum(plan.ended, end) - np.minimum(plan.started, end)
    training = np.bincount(plan.client, seconds, minlength=num_clients)
    return np.maximum(1 - training / end, 0)  # a sum may exceed the whole by rounding


def plot_timeline(
    plan: Plan,
    path: str | Path,
    *,
    trace: CompassTrace | None = None,
    start: float = 0.0,
    end: float | None = None,
    clients: Sequence[int] | np.ndarray | None = None,
) -> None:
    """Draws who trains when to a file whose suffix says the format; see `draw_timeline`."""
    draw_timeline(plan, trace=trace, start=start, end=end, clients=clients).savefig(path, dpi=150)


def draw_timeline(
    plan: Plan,
    *,
    trace: CompassTrace | None = None,
    start: float = 0.0,
    end: float | None = None,
    clients: Sequence[int] | np.ndarray | None = None,
) -> "Figure":
    """A row for each client and a bar for each visit, with its number of steps where it fits.

    Colours are arrival groups if there is a trace, and else the groups of the server steps that
    updates are part of, such as tiers, if there are several. Grey is for visits of no group. Lost
    visits are hatched and have no number, as their steps are not all made. Blank is time in which
    a client waits or is away. An arrival that no server step uses is marked only if the plan goes
    on after it, as plans do not say where they end.

    Args:
      plan: a timeline.
      trace: of the same plan, from `compass(...).trace`; it also says who is late.
      start: of the picture, in virtual seconds.
      end: of the picture; None is the last thing that is known to happen.
      clients: the rows from above, at most 100; None is all that are dispatched.

    Raises:
      ValueError: for more clients, none, negative or repeated ones, a trace of another plan, times
        that are no interval, or an interval in which none of the clients trains.
    """
    from matplotlib.figure import Figure  # slow to import; no pyplot, so no global state

    if trace is not None and not np.array_equal(trace.plan.ended, plan.ended):
        raise ValueError("the trace is of another plan; give the trace's own plan, trace.plan")
    clients = _rows(plan, clients)
    end = _last_event(plan) if end is None else end
    if not 0 <= start < end < np.inf:
        raise ValueError(
            f"start={start} and end={end} are no interval; give 0 <= start < end, in seconds"
        )
    row_of = np.full(max(plan.client.max(), clients.max()) + 1, -1)
    row_of[clients] = np.arange(len(clients))
    group = _groups(plan, trace)
    height = min(0.45, max(0.14, 8 / len(clients)))
    figure = Figure(figsize=(_WIDTH, height * len(clients) + 1.6), layout="constrained")
    unit, unit_name = (60.0, "minutes") if end > _MINUTES else (1.0, "seconds")
    scene = _Scene(figure.add_subplot(), start, end, unit, 72 * height, row_of[plan.client], group)
    shown = (scene.row >= 0) & (plan.started < end) & (plan.ended > start)
    if not shown.any():
        raise ValueError(
            f"none of the {_counted(len(clients), 'client')} trains from start={start} to "
            f"end={end}; give another interval or other clients"
        )
    steps = _draw_server_steps(scene, plan)
    _draw_visits(scene, plan, shown)
    arrivals, losses = _draw_ends(scene, plan, None if trace is None else trace.late)

    axes = scene.axes
    facts = [
        _counted(len(clients), "client"),
        _counted(steps, "server step"),
        _counted(arrivals, "arrival"),
    ]
    if losses:
        facts.append(_counted(losses, "lost visit"))
    numbers = "; numbers: local steps" if axes.texts else ""
    axes.set_title(", ".join(facts) + numbers, fontsize=10)
    axes.set(
        xlabel=f"virtual {unit_name}",
        ylabel="client",
        xlim=(start / unit, end / unit),
        ylim=(len(clients) - 0.4, -0.6),
    )
    axes.set_yticks(range(len(clients)), clients.tolist(), fontsize=min(9, 0.85 * scene.height))
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    first_visits = trace is not None and bool((group[shown] < 0).any())
    _draw_legend(figure, scene, group[shown], first_visits)
    return figure


def plot_staleness(plan: Plan, path: str | Path) -> None:
    """Draws how often each staleness occurs to a file; its suffix says the format."""
    draw_staleness(plan).savefig(path, dpi=150)


def draw_staleness(plan: Plan) -> "Figure":
    """Contributions by staleness, as the schedule counts it.

    Raises:
      ValueError: for a plan without server steps.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    _require_server_steps(plan)
    most = int(plan.staleness.max())
    each = most // _HISTOGRAM + 1
    counts = np.bincount(plan.staleness // each)
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.bar(np.arange(len(counts)) * each + (each - 1) / 2, counts, width=0.85 * each)
    bars = f" ({each} values a bar)" if each > 1 else ""
    axes.set(xlabel=f"staleness, server steps{bars}", ylabel="contributions")
    axes.set_xlim(-0.7, max(most, 4) + 0.7)
    axes.set_title(
        f"{_counted(len(plan.staleness), 'contribution')}, staleness: "
        f"mean {plan.staleness.mean():.3g}, maximum {most:,}",
        fontsize=10,
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


class _Scene(NamedTuple):
    """Where dispatches are in a picture."""

    axes: "Axes"
    start: float
    end: float
    unit: float  # seconds
    height: float  # of a row, in points
    row: np.ndarray  # int[D], -1 for those of clients that are not drawn
    group: np.ndarray  # int[D], -1 for none


def _rows(plan: Plan, clients: Sequence[int] | np.ndarray | None) -> np.ndarray:
    rows = np.unique(plan.client) if clients is None else np.atleast_1d(clients)
    if len(rows) > _ROWS:
        raise ValueError(
            f"{len(rows)} clients are too many for a picture; choose up to {_ROWS}, such as "
            f"clients=range({_ROWS})"
        )
    if not len(rows) or rows.dtype.kind not in "iu" or rows.min() < 0:
        raise ValueError(f"clients={clients} cannot be drawn; give whole numbers from 0")
    if len(np.unique(rows)) < len(rows):
        raise ValueError(f"clients={clients} names clients twice; give each once")
    return rows


def _groups(plan: Plan, trace: CompassTrace | None) -> np.ndarray:
    """Each dispatch's group, -1 for none."""
    if trace is not None:
        return np.where(trace.arrival_group > 0, trace.arrival_group, -1)
    if len(np.unique(plan.group)) < 2:
        return np.zeros(len(plan.client), int)
    group = np.full(len(plan.client), -1)
    group[plan.dispatch] = plan.group[plan.step]
    return group


def _last_event(plan: Plan) -> float:
    """What is planned goes at least so far."""
    ended = plan.ended[plan.fate != IN_FLIGHT]
    return float(max(times.max(initial=0) for times in (plan.started, ended, plan.time)))


def _draw_server_steps(scene: _Scene, plan: Plan) -> int:
    times = plan.time[(plan.time >= scene.start) & (plan.time <= scene.end)]
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


def _draw_visits(scene: _Scene, plan: Plan, shown: np.ndarray) -> None:
    from matplotlib.collections import PolyCollection

    left = np.maximum(plan.started, scene.start) / scene.unit
    right = np.minimum(plan.ended, scene.end) / scene.unit
    above, below = scene.row - _BAR / 2, scene.row + _BAR / 2
    corners = np.stack([left, above, left, below, right, below, right, above], axis=1)
    points = (right - left) * 72 * _INNER_WIDTH * scene.unit / (scene.end - scene.start)
    wide = points > 3
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
                linewidths=np.where(wide[chosen], 0.4, 0) if hatch is None else 0,
                hatch=hatch,
                label=label,
                zorder=2,
            )
            scene.axes.add_collection(bars)
    size = min(8.5, 0.62 * _BAR * scene.height)
    for i in np.flatnonzero(shown & ~lost):
        number = str(plan.num_steps[i])
        if points[i] > 0.64 * size * len(number) + 8:
            centre = (left[i] + right[i]) / 2
            scene.axes.text(
                centre,
                scene.row[i],
                number,
                fontsize=size,
                color=_DARK,
                horizontalalignment="center",
                verticalalignment="center_baseline",
                zorder=3,
            )


def _draw_ends(scene: _Scene, plan: Plan, late: np.ndarray | None) -> tuple[int, int]:
    """Marks what ends in the picture: the numbers of arrivals and of losses."""
    lost, in_flight = plan.fate == LOST, plan.fate == IN_FLIGHT
    last_visit = np.zeros(plan.client.max() + 1, int)
    np.maximum.at(last_visit, plan.client, plan.visit)
    over = (plan.ended < _last_event(plan)) | (plan.visit < last_visit[plan.client])
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


def _draw_legend(figure: "Figure", scene: _Scene, groups: np.ndarray, first_visits: bool) -> None:
    from matplotlib.patches import Patch

    handles, labels = scene.axes.get_legend_handles_labels()
    marks = dict(zip(labels, handles, strict=True))
    entries: dict[str, Any] = {}
    columns = 6
    if len(np.unique(scene.group)) > 1:
        marks.pop(_VISIT, None)
        numbers: dict[int, list[str]] = {}  # that have the same colour
        for group in np.unique(groups[groups >= 0]).tolist():
            numbers.setdefault(group % len(_COLOURS), []).append(str(group))
        for colour, names in numbers.items():
            more = ", ..." if len(names) > 3 else ""
            entries["group " + ", ".join(names[:3]) + more] = Patch(color=_colour(colour))
            columns = 5 if len(names) > 1 else columns
        if first_visits:
            entries["first visits"] = Patch(color=_colour(-1))
        if _OPEN in marks:
            marks[_OPEN] = Patch(color=_colour(-1, _PALE))
        if _LOST in marks:
            marks[_LOST] = Patch(
                facecolor=_colour(-1, _PALE), edgecolor="#606060", linewidth=0, hatch=_HATCH
            )
    names = [*entries, *marks]
    by_column = [name for column in range(columns) for name in names[column::columns]]
    entries.update(marks)
    figure.legend(
        [entries[name] for name in by_column],
        by_column,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8.5,
    )


def _colour(group: int, strength: float = 1.0) -> tuple[float, float, float]:
    """Of a group, mixed with white. Not transparent, since there are lines behind."""
    from matplotlib.colors import to_rgb

    parts = to_rgb(_NO_GROUP if group < 0 else _COLOURS[group % len(_COLOURS)])
    red, green, blue = (strength * part + 1 - strength for part in parts)
    return red, green, blue


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _require_server_steps(plan: Plan, otherwise: str = "") -> None:
    if not len(plan.time):
        raise ValueError(f"the plan has no server step; plan more arrivals or seconds{otherwise}")
