"""Draws distributions: partitions, accuracies and dispatches of clients, and staleness."""

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_algos.analysis.labels import display_names, label_text
from fedjax_algos.analysis.pictures import axes as shared
from fedjax_algos.analysis.pictures.axes import PictureStyle
from fedjax_algos.analysis.pictures.curves import method_styles
from fedjax_algos.analysis.rows import rows_by_run
from fedjax_algos.asynchrony.plan import Plan
from fedjax_algos.base.errors import require
from fedjax_algos.core import Row
from fedjax_algos.data.description import describe_partition
from fedjax_algos.data.partitioning import Partition

_MAX_BUBBLES = 40  # clients, and classes, of a picture with one bubble for each pair
_POINTS = 201  # of a line
_MAX_COLUMNS = 6  # of the legend
_MAX_BARS = 50  # of a histogram


def plot_partition(
    labels: np.ndarray, partition: Partition, path: str | Path, style: PictureStyle = "screen"
) -> None:
    """Draws the number of examples of each client and label, and the sizes, to a file.

    Up to 40 clients and classes, each pair is a bubble whose area is the number of examples. Larger
    partitions are a map of each client's shares of labels, with the clients sorted by their two
    most frequent labels. The sizes above the map are sorted separately.

    Args:
      labels: int[examples], from 0.
      partition: the examples of each client.
      path: the file to write; its suffix says the format: .png, .pdf or .svg.
      style: "screen"; or "paper", which is as wide as one column of a paper and has no title.

    Raises:
      ValueError: as for `describe_partition`, and for another format or style.
    """
    description = describe_partition(labels, partition)
    histogram = description.histogram
    small = max(histogram.shape) <= _MAX_BUBBLES
    with shared.picture_style(style):
        figure = shared.new_figure((8.5, 6.4) if style == "screen" else (shared.COLUMN_WIDTH, 2.8))
        above, below = figure.subplots(2, 1, height_ratios=(1, 3), sharex=small)
        _draw_sizes(above, histogram.sum(axis=1), small)
        (_draw_bubbles if small else _draw_map)(below, histogram)
        title = f"{description.examples:,} examples, {description.clients:,} clients "
        title += f"(dotted: the mean), {histogram.shape[1]} labels"
        shared.finish_axes(above, style, title)
        shared.finish_axes(below, style)
    shared.save_figure(figure, path, style)


def _draw_sizes(axes, sizes: np.ndarray, small: bool) -> None:
    if small:
        axes.bar(np.arange(len(sizes)), sizes, width=0.7, color=shared.BLUE)
    else:
        axes.stairs(np.sort(sizes)[::-1], np.arange(len(sizes) + 1), fill=True, color=shared.BLUE)
        axes.set(xlabel="clients, by size", xlim=(0, len(sizes)))
    axes.axhline(sizes.mean(), color="black", linewidth=0.8, linestyle=":")
    axes.set(ylabel="examples", ylim=(0, None))


def _draw_bubbles(axes, histogram: np.ndarray) -> None:
    num_clients, num_classes = histogram.shape
    client, label = np.nonzero(histogram)
    number = histogram[client, label]
    width, height = 72 * axes.get_figure().get_size_inches()
    places = 0.7 * width / max(num_clients, 6), 0.65 * height / max(num_classes, 4)
    diameter = 0.95 * min(places)  # in points
    area = diameter**2 * number / number.max()
    axes.scatter(client, label, s=area, linewidths=0, color=shared.BLUE)
    axes.set(xlabel=f"client (largest bubble: {number.max():,} examples)", ylabel="label")
    axes.set(xlim=(-0.6, num_clients - 0.4), ylim=(-0.6, num_classes - 0.4))
    _tick(axes.xaxis, num_clients)
    _tick(axes.yaxis, num_classes)
    axes.set_axisbelow(True)
    axes.grid(alpha=0.25)


def _draw_map(axes, histogram: np.ndarray) -> None:
    part = histogram / np.maximum(histogram.sum(axis=1, keepdims=True), 1)
    ranked = np.argsort(-part, axis=1, kind="stable")
    order = np.lexsort((-part.max(axis=1), ranked[:, min(1, part.shape[1] - 1)], ranked[:, 0]))
    look = {"aspect": "auto", "origin": "lower", "cmap": "Blues", "interpolation": "nearest"}
    from matplotlib.colors import PowerNorm

    norm = PowerNorm(0.5, vmin=0, vmax=1)  # makes a share of 1% visible
    extent = 0, len(part), -0.5, part.shape[1] - 0.5
    image = axes.imshow(part[order].T, norm=norm, extent=extent, **look)
    axes.set(xlabel="clients, by their two most frequent labels", ylabel="label")
    _tick(axes.yaxis, part.shape[1])
    axes.figure.colorbar(image, ax=axes, label="share of the client's examples", pad=0.01)


def _tick(axis, number: int) -> None:
    """Sets ticks at whole numbers below `number`: at each, if there are at most 20."""
    if number <= 20:
        axis.set_ticks(np.arange(number))
    else:
        axis.get_major_locator().set_params(integer=True)


def plot_clients(rows: list[Row], path: str | Path, style: PictureStyle = "screen") -> None:
    """Draws the distribution over clients of their accuracy and dispatches to a file.

    Each line is a quantile function: at the share s of clients, the value that this share does not
    exceed. It is the mean of the quantile functions of all seeds. Equal clients give a level line.
    A method without values on a seed, such as the dispatches of cohorts that were chosen among
    candidates, has no line.

    Args:
      rows: the rows of `clients.csv`, with `method`, `seed`, `accuracy` and `participations`.
      path: the file to write; its suffix says the format: .png, .pdf or .svg.
      style: "screen"; or "paper", which is as wide as two columns of a paper and has no titles.

    Raises:
      ValueError: for another format or style.
    """
    runs, shares = rows_by_run(rows), np.linspace(0, 1, _POINTS)
    names, styles = display_names(runs), method_styles(runs)
    with shared.picture_style(style) as look:
        figure = shared.new_figure((8.5, 3.6) if style == "screen" else (shared.TEXT_WIDTH, 2.6))
        panels = figure.subplots(1, 2, sharex=True)
        titles = "Accuracy of each client", "Dispatches of each client"
        for axes, column, title in zip(panels, ("accuracy", "participations"), titles, strict=True):
            for label, by_seed in runs.items():
                seeds = [np.array([row[column] for row in run], float) for run in by_seed.values()]
                known = [values[~np.isnan(values)] for values in seeds]
                if not all(map(len, known)):
                    continue
                mean = np.mean([np.quantile(values, shares) for values in known], 0)
                options = {"color": styles[label].colour, "linestyle": styles[label].line}
                options |= {"label": label_text(names[label]), "linewidth": 1.6 * look.lines}
                axes.plot(shares, mean, **options)
            axes.set(xlabel="share of clients, from the lowest value", xlim=(0, 1))
            axes.set(ylabel=column, ylim=(0, 1) if column == "accuracy" else (0, None))
            axes.grid(alpha=0.25)
            shared.finish_axes(axes, style, title)
        if len(runs) > 1:
            entries = panels[0].get_legend_handles_labels()
            form: Any = {"loc": "outside lower center", "ncols": min(len(runs), _MAX_COLUMNS)}
            figure.legend(*entries, frameon=False, fontsize=look.small, **form)
    shared.save_figure(figure, path, style)


def plot_staleness(plan: Plan, path: str | Path, style: PictureStyle = "screen") -> None:
    """Writes the histogram of `draw_staleness` to a file.

    Args:
      plan, style: as for `draw_staleness`.
      path: the file to write, .png, .pdf or .svg.
    """
    shared.save_figure(draw_staleness(plan, style), path, style)


def draw_staleness(plan: Plan, style: PictureStyle = "screen") -> Any:
    """Draws a histogram of the contributions by staleness, as the planner counts it.

    Args:
      plan: the timeline.
      style: "screen"; or "paper", which is as wide as one column of a paper and has no title.

    Raises:
      ValueError: for a plan without server steps, or another style.
    """
    require(len(plan.time), "the plan has no server step; plan more arrivals or seconds")
    largest = int(plan.staleness.max())
    bar_values = largest // _MAX_BARS + 1
    counts = np.bincount(plan.staleness // bar_values)
    centres = np.arange(len(counts)) * bar_values + (bar_values - 1) / 2
    from matplotlib.ticker import MaxNLocator

    with shared.picture_style(style):
        figure = shared.new_figure((7.5, 4.2) if style == "screen" else (shared.COLUMN_WIDTH, 1.9))
        axes = figure.add_subplot()
        axes.bar(centres, counts, width=0.85 * bar_values, color=shared.BLUE)
        bars = f" ({bar_values} values per bar)" if bar_values > 1 else ""
        axes.set(xlabel=f"staleness, server steps{bars}", ylabel="contributions")
        axes.set_xlim(-0.7, max(largest, 4) + 0.7)
        number = shared.counted(len(plan.staleness), "contribution")
        title = f"{number}, staleness: mean {plan.staleness.mean():.3g}, maximum {largest:,}"
        shared.finish_axes(axes, style, title)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    return figure
