"""Describes a partition in numbers and as a table for the terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import describe, describe_tree
from fedjax_algos.core.checks import check_kind
from fedjax_algos.data.dataset import MAX_CLASSES, checked_labels
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.data.partitioning import Partition
from fedjax_algos.data.partitioning.base import check_table

if TYPE_CHECKING:
    from rich.console import Group

_BLOCKS = " ▁▂▃▄▅▆▇█"  # bars of height 0 to 8
_MAX_BARS = 50  # in a client's row of the table


class Description(NamedTuple):
    """A partition in numbers."""

    clients: int
    examples: int  # assigned to clients
    left_out: int  # examples without a client
    sizes: str  # summary of the examples of a client
    classes: str  # summary of the distinct labels of a client
    histogram: np.ndarray  # int[num_clients, num_classes]: examples of each label
    digest: str  # of the partition

    def __repr__(self) -> str:
        return describe(self, **(self._asdict() | {"histogram": describe_tree(self.histogram)}))


def describe_partition(labels: np.ndarray, partition: Partition) -> Description:
    """Counts each client's examples, classes and labels.

    Args:
      labels: int[examples], from 0.
      partition: which examples each client holds.

    Raises:
      ValueError: for labels that are not whole numbers from 0, for a partition without examples,
        and for examples without a label.
    """
    check_kind("partition", partition, Partition, "give what a partition returned")
    labels = np.asarray(labels)
    labels = labels.astype(np.int32) if labels.dtype == bool else labels
    labels = checked_labels(labels, labels.size, MAX_CLASSES, "labels")
    indices = np.asarray(partition.indices, np.int64)
    low, high = indices.min(initial=0), indices.max(initial=-1)
    found = f"the partition has {len(indices)} examples, {low} to {high}, for {len(labels)} labels"
    fix = "give at least one, and the labels that the partition was made from"
    require(0 <= low <= high < len(labels), f"{found}; {fix}")
    num_classes, sizes = int(labels.max()) + 1, partition.counts()
    check_table(len(sizes), num_classes)
    cells = np.repeat(np.arange(len(sizes)), sizes) * num_classes + labels[partition.indices]
    histogram = np.bincount(cells, minlength=len(sizes) * num_classes).reshape(-1, num_classes)
    return Description(
        clients=len(sizes),
        examples=len(partition.indices),
        left_out=len(labels) - len(np.unique(partition.indices)),
        sizes=_summary(sizes),
        classes=_summary((histogram > 0).sum(axis=1)),
        histogram=histogram,
        digest=partition.digest(),
    )


def _summary(values: np.ndarray) -> str:
    low, high, mean = values.min(), values.max(), values.mean()
    return f"{low:,} to {high:,}, median {np.median(values):,.4g}, mean {mean:,.4g}"


def held_labels(data: Any) -> np.ndarray:
    """Returns bool[num_clients, classes], on the host: the labels that each client holds.

    Args:
      data: `FederatedData` whose `examples` have labels "y", int[examples], from 0.

    Raises:
      TypeError: for examples in files, because all would have to be read.
      ValueError: for examples without labels, or with labels that are not whole numbers from 0.
    """
    check_kind("data", data, FederatedData, "give clients whose examples are in memory")
    labels = data.examples.get("y") if isinstance(data.examples, Mapping) else None
    require(labels is not None, 'the examples have no labels; give them in "y"')
    partition = Partition(np.asarray(data.indices), np.asarray(data.offsets))
    return describe_partition(np.asarray(labels), partition).histogram > 0


def partition_table(description: Description, *, rows: int = 10) -> "Group":
    """Makes a table for `rich.print`: a row of label bars for each client, then the totals.

    Bars are relative to the client's longest bar. More than 50 labels share 50 bars or fewer.

    Args:
      description: the description of the partition.
      rows: the number of clients in the table, spaced evenly from the largest to the smallest.
    """
    from rich.console import Group
    from rich.table import Table

    histogram, sizes = description.histogram, description.histogram.sum(axis=1)
    num_classes = histogram.shape[1]
    labels_each = -(-num_classes // _MAX_BARS)
    bars = np.add.reduceat(histogram, np.arange(0, num_classes, labels_each), axis=1)
    heights = np.ceil(bars / np.maximum(bars.max(axis=1, keepdims=True), 1) * 8).astype(int)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("client", "examples", "classes"):
        table.add_column(heading, justify="right", no_wrap=True)
    each = f", {labels_each} a bar" if labels_each > 1 else ""
    table.add_column(f"labels 0 to {num_classes - 1}{each}", no_wrap=True)
    order = np.argsort(-sizes, kind="stable")
    lines = np.linspace(0, len(order) - 1, min(rows, len(order))).round().astype(int)
    for i in order[lines]:
        numbers = str(i), f"{sizes[i]:,}", str(np.count_nonzero(histogram[i]))
        table.add_row(*numbers, "".join(_BLOCKS[h] for h in heights[i]))
    left_out = f", {description.left_out:,} on none" if description.left_out else ""
    facts = [
        f"{description.examples:,} examples on {description.clients:,} clients{left_out}",
        f"examples per client: {description.sizes}",
        f"classes per client: {description.classes}",
        f"digest {description.digest[:12]}",
    ]
    return Group(table, "", *facts)
