"""What a partition looks like: numbers, a table for the terminal, and a picture."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Group
from rich.table import Table

from fedjax_algos.data.partitioning import Partition

BLOCKS = " ▁▂▃▄▅▆▇█"
BARS = 50
BUBBLES = 40  # up to so many clients (and as many classes), each is drawn apart


class Spread(NamedTuple):
    """Order statistics of one number for each client."""

    min: int
    median: float
    mean: float
    max: int

    @classmethod
    def of(cls, values: np.ndarray) -> "Spread":
        return cls(
            int(values.min()), float(np.median(values)), float(values.mean()), int(values.max())
        )


class Description(NamedTuple):
    """A partition in numbers."""

    clients: int
    examples: int  # held by clients
    left_out: int  # held by none
    sizes: Spread  # examples of a client
    classes: Spread  # different labels of a client
    histogram: np.ndarray  # int[num_clients, num_classes]: examples of each label
    digest: str  # of the partition


def describe_partition(labels: np.ndarray, partition: Partition) -> Description:
    """Sizes, classes and label histograms of all clients.

    Args:
      labels: int[examples], from 0.
      partition: which examples each client holds.

    Raises:
      ValueError: for labels that are not whole numbers from 0, and for a partition without
        examples or with some that have no label.
    """
    labels = np.asarray(labels)
    countable = labels.ndim == 1 and labels.dtype.kind in "biuf" and len(labels) > 0
    if not countable or (labels < 0).any() or (labels % 1 != 0).any():
        raise ValueError(
            f"labels of type {labels.dtype} and shape {labels.shape} cannot be counted; give a "
            "whole number from 0 for each example"
        )
    if not len(partition.indices):
        raise ValueError(
            f"the {partition.num_clients} clients hold no example; there is nothing to describe"
        )
    low, high = partition.indices.min(), partition.indices.max()
    if low < 0 or high >= len(labels):
        raise ValueError(
            f"the partition names example {low if low < 0 else high}, but there are {len(labels)} "
            "labels; give the labels that it was made from"
        )
    num_classes = int(labels.max()) + 1
    sizes = partition.counts()
    clients = np.repeat(np.arange(len(sizes)), sizes)
    cells = clients * num_classes + labels[partition.indices].astype(int)
    histogram = np.bincount(cells, minlength=len(sizes) * num_classes).reshape(-1, num_classes)
    return Description(
        clients=len(sizes),
        examples=len(partition.indices),
        left_out=len(labels) - len(np.unique(partition.indices)),
        sizes=Spread.of(sizes),
        classes=Spread.of((histogram > 0).sum(axis=1)),
        histogram=histogram,
        digest=partition.digest(),
    )


def partition_table(description: Description, *, shown: int = 10) -> Group:
    """For `rich.print`: clients with bars for their labels, and the numbers of all clients.

    Bars are relative to a client's longest. More than 50 labels share 50 bars or fewer.

    Args:
      description: of the partition.
      shown: how many clients have a line, from the largest to the smallest at even distances.
    """
    histogram, sizes = description.histogram, description.histogram.sum(axis=1)
    num_classes = histogram.shape[1]
    labels_each = -(-num_classes // BARS)
    bars = np.add.reduceat(histogram, np.arange(0, num_classes, labels_each), axis=1)
    heights = np.ceil(bars / np.maximum(bars.max(axis=1, keepdims=True), 1) * 8).astype(int)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("client", "examples", "classes"):
        table.add_column(heading, justify="right", no_wrap=True)
    each = f", {labels_each} a bar" if labels_each > 1 else ""
    table.add_column(f"labels 0 to {num_classes - 1}{each}", no_wrap=True)
    order = np.argsort(-sizes, kind="stable")
    lines = np.linspace(0, len(order) - 1, min(shown, len(order))).round().astype(int)
    for i in order[lines]:
        classes = np.count_nonzero(histogram[i])
        table.add_row(str(i), f"{sizes[i]:,}", str(classes), "".join(BLOCKS[h] for h in heights[i]))
    left_out = f", {description.left_out:,} on none" if description.left_out else ""
    facts = [
        f"{description.examples:,} examples on {description.clients:,} clients{left_out}",
        f"examples per client: {_told(description.sizes)}",
        f"classes per client: {_told(description.classes)}",
        f"digest {description.digest[:12]}",
    ]
    return Group(table, "", *facts)


def _told(spread: Spread) -> str:
    return f"{spread.min:,} to {spread.max:,}, median {spread.median:,.4g}, mean {spread.mean:,.4g}"


def plot_partition(labels: np.ndarray, partition: Partition, path: str | Path) -> None:
    """Draws who holds how much of which label, and the sizes, to a file.

    Up to 40 clients and classes are bubbles whose area is the number of examples. More are a map
    of each client's shares of labels; its clients are sorted by their two most frequent labels,
    so that clients of few classes are a staircase and alike ones are stripes. Sizes are then sorted
    on their own.

    Args:
      labels: int[examples], from 0.
      partition: which examples each client holds.
      path: of the picture; its suffix says the format.
    """
    from matplotlib.figure import Figure  # slow to import; no pyplot, so no global state

    description = describe_partition(labels, partition)
    histogram = description.histogram
    figure = Figure(figsize=(8.5, 6.4), layout="constrained")
    small = max(histogram.shape) <= BUBBLES
    above, below = figure.subplots(2, 1, height_ratios=(1, 3), sharex=small)
    _draw_sizes(above, histogram.sum(axis=1), small)
    (_draw_bubbles if small else _draw_map)(below, histogram)
    above.set_title(
        f"{description.examples:,} examples, {description.clients:,} clients "
        f"(dotted: the mean), {histogram.shape[1]} labels",
        fontsize=10,
    )
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _draw_sizes(axes, sizes: np.ndarray, small: bool) -> None:
    if small:
        axes.bar(np.arange(len(sizes)), sizes, width=0.7)
    else:
        ordered = np.sort(sizes)[::-1]
        axes.stairs(ordered, np.arange(len(sizes) + 1), fill=True)
        axes.set(xlabel="clients, by size", xlim=(0, len(sizes)))
    axes.axhline(sizes.mean(), color="black", linewidth=0.8, linestyle=":")
    axes.set(ylabel="examples", ylim=(0, None))


def _draw_bubbles(axes, histogram: np.ndarray) -> None:
    num_clients, num_classes = histogram.shape
    client, label = np.nonzero(histogram)
    number = histogram[client, label]
    room = min(430 / max(num_clients, 6), 300 / max(num_classes, 4))  # points for each
    axes.scatter(client, label, s=(0.95 * room) ** 2 * number / number.max(), linewidths=0)
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
        norm=PowerNorm(0.5, vmin=0, vmax=1),  # shows a share of 1% beside one of 100%
        interpolation="nearest",
        extent=(0, len(part), -0.5, part.shape[1] - 0.5),
    )
    axes.set(xlabel="clients, by their two most frequent labels", ylabel="label")
    _tick(axes.yaxis, part.shape[1])
    axes.figure.colorbar(image, ax=axes, label="share of the client's examples", pad=0.01)


def _tick(axis, number: int) -> None:
    """Whole numbers below `number`, and all of them if there is room."""
    if number <= 20:
        axis.set_ticks(np.arange(number))
    else:
        axis.get_major_locator().set_params(integer=True)
