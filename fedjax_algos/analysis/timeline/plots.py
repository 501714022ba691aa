"""The pictures of a plan: who trains when, and how stale contributions are."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_algos.analysis.timeline.summary import counted, require_server_steps
from fedjax_algos.asynchrony.arrival_groups import CompassTrace
from fedjax_algos.asynchrony.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 100  # at most
_MINUTES = 600  # seconds after which the axis is in minutes
_HISTOGRAM = 50  # bars at most


def plot_timeline(plan: Plan, path: str | Path, **options: Any) -> None:
    """Draws who trains when to a file whose suffix says the format; see `draw_timeline`."""
    draw_timeline(plan, **options).savefig(path, dpi=150)


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

    from fedjax_algos.analysis.timeline import layers

    if trace is not None and not np.array_equal(trace.plan.ended, plan.ended):
        raise ValueError("the trace is of another plan; give the trace's own plan, trace.plan")
    clients = _rows(plan, clients)
    end = layers.last_event(plan) if end is None else end
    if not 0 <= start < end < np.inf:
        raise ValueError(
            f"start={start} and end={end} are no interval; give 0 <= start < end, in seconds"
        )
    row_of = np.full(max(plan.client.max(), clients.max()) + 1, -1)
    row_of[clients] = np.arange(len(clients))
    group = _groups(plan, trace)
    height = min(0.45, max(0.14, 8 / len(clients)))
    figure = Figure(figsize=(layers.WIDTH, height * len(clients) + 1.6), layout="constrained")
    unit, unit_name = (60.0, "minutes") if end > _MINUTES else (1.0, "seconds")
    row = row_of[plan.client]
    axes = figure.add_subplot()
    scene = layers.Scene(axes, plan, start, end, unit, 72 * height, row, group)
    shown = (row >= 0) & (plan.started < end) & (plan.ended > start)
    if not shown.any():
        raise ValueError(
            f"none of the {counted(len(clients), 'client')} trains from start={start} to "
            f"end={end}; give another interval or other clients"
        )
    facts = {"client": len(clients), "server step": layers.draw_server_steps(scene)}
    layers.draw_visits(scene, shown)
    facts["arrival"], losses = layers.draw_ends(scene, None if trace is None else trace.late)
    facts |= {"lost visit": losses} if losses else {}
    title = ", ".join(counted(number, what) for what, number in facts.items())
    axes.set_title(title + "; numbers: local steps" * bool(axes.texts), fontsize=10)
    axes.set(
        xlabel=f"virtual {unit_name}",
        ylabel="client",
        xlim=(start / unit, end / unit),
        ylim=(len(clients) - 0.4, -0.6),
    )
    axes.set_yticks(range(len(clients)), clients.tolist(), fontsize=min(9, 0.85 * scene.height))
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    layers.draw_legend(figure, scene, group[shown], traced=trace is not None)
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

    require_server_steps(plan)
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
        f"{counted(len(plan.staleness), 'contribution')}, staleness: "
        f"mean {plan.staleness.mean():.3g}, maximum {most:,}",
        fontsize=10,
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


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
