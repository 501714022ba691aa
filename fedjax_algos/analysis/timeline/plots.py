"""The figures of a plan: its timeline, and the staleness of its contributions."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_algos.analysis.timeline.summary import counted, require_server_steps
from fedjax_algos.asynchrony.compass import CompassTrace
from fedjax_algos.asynchrony.plan import Plan
from fedjax_algos.core.pictures import BLUE, COLUMN_WIDTH, PictureStyle, picture_style, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_CLIENTS = 100  # rows of a timeline
_MAX_SECONDS = 600  # of an axis in seconds; a longer one is in minutes
_MAX_BARS = 50  # of a histogram


def plot_timeline(plan: Plan, path: str | Path, **options: Any) -> None:
    """Writes the timeline of a plan to a file.

    Args:
      plan: the timeline.
      path: the file to write; its suffix says the format: .png, .pdf or .svg.
      **options: as for `draw_timeline`.
    """
    save_figure(draw_timeline(plan, **options), path, options.get("style", "screen"))


def draw_timeline(
    plan: Plan,
    *,
    start: float = 0.0,
    end: float | None = None,
    clients: Sequence[int] | np.ndarray | None = None,
    style: PictureStyle = "screen",
) -> "Figure":
    """Draws a row for each client and a bar for each dispatch, with its number of steps if it fits.

    Colours are FedCompass's arrival groups if the plan has a `CompassTrace`. Otherwise they are the
    groups of the server steps that use the updates, such as tiers, if there are several; grey bars
    have no group. Lost dispatches are hatched and have no number, because not all their steps are
    done. A client without a bar waits or is away. An arrival that no server step uses is marked
    only if the plan has later events: a plan does not store its horizon.

    Args:
      plan: the timeline.
      start: of the time axis, in simulated seconds.
      end: of the time axis, in simulated seconds; None is the last known event of the plan.
      clients: the rows from top to bottom, at most 100; None is all clients that are dispatched.
      style: "screen"; or "paper", which is as wide as two columns of a paper and has no title.

    Raises:
      ValueError: for another style; for more than 100 clients, none, or negative or repeated ones;
        for times that are no interval; for an interval in which none of the clients trains.
    """
    from matplotlib import rcParams
    from matplotlib.figure import Figure  # slow to import; no pyplot, so no global state

    from fedjax_algos.analysis.timeline import layers

    clients = _rows(plan, clients)
    end = layers.last_event(plan) if end is None else end
    if not 0 <= start < end < np.inf:
        raise ValueError(
            f"start={start} and end={end} are no interval; give 0 <= start < end, in seconds"
        )
    row_of = {client: row for row, client in enumerate(clients.tolist())}
    row = np.array([row_of.get(client, -1) for client in plan.client.tolist()])
    group = _groups(plan)
    unit, unit_name = (60.0, "minutes") if end > _MAX_SECONDS else (1.0, "seconds")
    visible = (row >= 0) & (plan.started < end) & (plan.ended > start)
    if not visible.any():
        raise ValueError(
            f"none of the {counted(len(clients), 'client')} trains from start={start} to "
            f"end={end}; give another interval or other clients"
        )
    with picture_style(style) as look:
        height = min(0.45, max(0.14, 8 / len(clients))) * look.lines
        width = layers.WIDTHS[style]
        size = width, height * len(clients) + 1.6 * look.lines
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        scene = layers.Scene(axes, plan, start, end, unit, 72 * height, row, group, look, width)
        facts = {"client": len(clients), "server step": layers.draw_server_steps(scene)}
        layers.draw_dispatches(scene, visible)
        facts["arrival"], losses = layers.draw_ends(scene)
        facts |= {"lost dispatch": losses} if losses else {}
        title = ", ".join(counted(number, noun) for noun, number in facts.items())
        if style == "screen":
            axes.set_title(title + "; numbers: local steps" * bool(axes.texts), fontsize=10)
        axes.set(
            xlabel=f"simulated {unit_name}",
            ylabel="client",
            xlim=(start / unit, end / unit),
            ylim=(len(clients) - 0.4, -0.6),
        )
        axes.tick_params(labelfontfamily=rcParams["font.family"])
        points = min(0.9 * look.points, 0.85 * scene.height)
        axes.set_yticks(range(len(clients)), clients.tolist(), fontsize=points)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        layers.draw_legend(figure, scene, group[visible])
    return figure


def plot_staleness(plan: Plan, path: str | Path, style: PictureStyle = "screen") -> None:
    """Writes the histogram of `draw_staleness` to a file.

    Args:
      plan: the timeline.
      path: the file to write; its suffix says the format: .png, .pdf or .svg.
      style: as for `draw_staleness`.
    """
    save_figure(draw_staleness(plan, style), path, style)


def draw_staleness(plan: Plan, style: PictureStyle = "screen") -> "Figure":
    """Draws a histogram of the contributions by staleness, as the schedule counts it.

    Args:
      plan: the timeline.
      style: "screen"; or "paper", which is as wide as one column of a paper and has no title.

    Raises:
      ValueError: for a plan without server steps, or another style.
    """
    from matplotlib import rcParams
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    require_server_steps(plan)
    largest = int(plan.staleness.max())
    bar_values = largest // _MAX_BARS + 1
    counts = np.bincount(plan.staleness // bar_values)
    centres = np.arange(len(counts)) * bar_values + (bar_values - 1) / 2
    with picture_style(style):
        size = (7.5, 4.2) if style == "screen" else (COLUMN_WIDTH, 1.9)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        axes.bar(centres, counts, width=0.85 * bar_values, color=BLUE)
        bars = f" ({bar_values} values per bar)" if bar_values > 1 else ""
        axes.set(xlabel=f"staleness, server steps{bars}", ylabel="contributions")
        axes.set_xlim(-0.7, max(largest, 4) + 0.7)
        if style == "screen":
            axes.set_title(
                f"{counted(len(plan.staleness), 'contribution')}, staleness: "
                f"mean {plan.staleness.mean():.3g}, maximum {largest:,}",
                fontsize=10,
            )
        axes.tick_params(labelfontfamily=rcParams["font.family"])
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _rows(plan: Plan, clients: Sequence[int] | np.ndarray | None) -> np.ndarray:
    rows = np.unique(plan.client) if clients is None else np.atleast_1d(clients)
    if len(rows) > _MAX_CLIENTS:
        raise ValueError(
            f"{len(rows)} clients are too many for a figure; choose up to {_MAX_CLIENTS}, such as "
            f"clients=range({_MAX_CLIENTS})"
        )
    if not len(rows) or rows.dtype.kind not in "iu" or rows.min() < 0:
        raise ValueError(f"clients={clients} cannot be drawn; give whole numbers from 0")
    if len(np.unique(rows)) < len(rows):
        raise ValueError(f"clients={clients} contains clients twice; give each once")
    return rows


def _groups(plan: Plan) -> np.ndarray:
    """The group of each dispatch, -1 for none."""
    if isinstance(plan.trace, CompassTrace):
        return np.where(plan.trace.arrival_group > 0, plan.trace.arrival_group, -1)
    if len(np.unique(plan.group)) < 2:
        return np.zeros(len(plan.client), int)
    group = np.full(len(plan.client), -1)
    group[plan.dispatch] = plan.group[plan.step]
    return group
