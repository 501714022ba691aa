"""Draws a partition."""

from pathlib import Path

import numpy as np

from fedjax_algos.analysis.pictures import axes as shared
from fedjax_algos.analysis.pictures.axes import PictureStyle
from fedjax_algos.data.description import describe_partition
from fedjax_algos.data.partitioning import Partition

_MAX_BUBBLES = 40  # clients, and classes, of a picture with one bubble for each pair


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
    from matplotlib.figure import Figure  # slow to import; without pyplot's global state

    description = describe_partition(labels, partition)
    histogram = description.histogram
    small = max(histogram.shape) <= _MAX_BUBBLES
    with shared.picture_style(style):
        size = (8.5, 6.4) if style == "screen" else (shared.COLUMN_WIDTH, 2.8)
        figure = Figure(figsize=size, layout="constrained")
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
        ordered = np.sort(sizes)[::-1]
        axes.stairs(ordered, np.arange(len(sizes) + 1), fill=True, color=shared.BLUE)
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
    axes.set(
        xlabel=f"client (largest bubble: {number.max():,} examples)",
        ylabel="label",
        xlim=(-0.6, num_clients - 0.4),
        ylim=(-0.6, num_classes - 0.4),
    )
    _tick(axes.xaxis, num_clients)
    _tick(axes.yaxis, num_classes)
    axes.set_axisbelow(True)
    axes.grid(alpha=0.25)


def _draw_map(axes, histogram: np.ndarray) -> None:
    from matplotlib.colors import PowerNorm

    part = histogram / np.maximum(histogram.sum(axis=1, keepdims=True), 1)
    ranked = np.argsort(-part, axis=1, kind="stable")
    order = np.lexsort((-part.max(axis=1), ranked[:, min(1, part.shape[1] - 1)], ranked[:, 0]))
    image = axes.imshow(
        part[order].T,
        aspect="auto",
        origin="lower",
        cmap="Blues",
        norm=PowerNorm(0.5, vmin=0, vmax=1),  # makes a share of 1% visible
        interpolation="nearest",
        extent=(0, len(part), -0.5, part.shape[1] - 0.5),
    )
    axes.set(xlabel="clients, by their two most frequent labels", ylabel="label")
    _tick(axes.yaxis, part.shape[1])
    axes.figure.colorbar(image, ax=axes, label="share of the client's examples", pad=0.01)


def _tick(axis, number: int) -> None:
    """Sets ticks at whole numbers below `number`: at all of them if there are at most 20."""
    if number <= 20:
        axis.set_ticks(np.arange(number))
    else:
        axis.get_major_locator().set_params(integer=True)
