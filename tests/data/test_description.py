"""Descriptions of partitions: numbers by hand, a table of the width of a terminal."""

import numpy as np
import pytest
from rich.console import Console

import fedjax_algos as fa
from fedjax_algos.data import partitions
from fedjax_algos.data.description import describe_partition, partition_table

LABELS = np.array([0, 0, 2, 3, 3, 3, 0, 2])
THREE = fa.Partition.of([np.array([0, 1, 2, 6]), np.array([5]), np.array([3, 4])])


def text(description, **keywords):
    console = Console(width=80, no_color=True)
    with console.capture() as captured:
        console.print(partition_table(description, **keywords))
    return captured.get()


def test_numbers_by_hand():
    description = describe_partition(LABELS, THREE)
    assert (description.clients, description.examples, description.left_out) == (3, 7, 1)
    assert description.sizes == "1 to 4, median 2, mean 2.333"
    assert description.classes == "1 to 2, median 1, mean 1.333"
    expected = [[3, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 2]]
    np.testing.assert_array_equal(description.histogram, expected)
    assert description.digest == THREE.digest()
    assert repr(description).startswith("Description(clients=3, examples=7, left_out=1, sizes=1 to")


def test_the_whole_table():
    lines = [line.rstrip() for line in text(describe_partition(LABELS, THREE)).splitlines()]
    assert lines == [
        "client   examples   classes   labels 0 to 3",
        "     0          4         2   █ ▃",
        "     2          2         1      █",
        "     1          1         1      █",
        "",
        "7 examples on 3 clients, 1 on none",
        "examples per client: 1 to 4, median 2, mean 2.333",
        "classes per client: 1 to 2, median 1, mean 1.333",
        f"digest {THREE.digest()[:12]}",
    ]
    assert len(text(describe_partition(LABELS, THREE), rows=2).splitlines()) == 6 + 2


@pytest.mark.parametrize(("num_classes", "heading"), [(100, "2 a bar"), (1203, "25 a bar")])
def test_the_table_fits_a_terminal(num_classes, heading):
    labels = np.arange(6015) % num_classes
    output = text(describe_partition(labels, partitions["quantity"](labels, 1000, 0)))
    assert heading in output
    assert "…" not in output
    assert len(output.splitlines()) == 1 + 10 + 1 + 4
    sizes = [int(line.split()[1].replace(",", "")) for line in output.splitlines()[1:11]]
    assert sizes == sorted(sizes, reverse=True)
    assert f"{sizes[-1]} to {sizes[0]}," in output


def test_invalid_labels_and_partitions_are_rejected():
    for labels, partition, named in (
        (LABELS[:5], THREE, "has 7 examples, 0 to 6, for 5 labels"),
        (LABELS, fa.Partition.of([np.array([-1])]), "has 1 examples, -1 to -1"),
        (LABELS, fa.Partition.of([]), "has 0 examples"),
        (LABELS - 1, THREE, "label -1 in example 0"),
        (LABELS + 0.5, THREE, "label 0.5 in example 0"),
        (LABELS.astype(str), THREE, "labels is <U"),
        (LABELS.reshape(2, 4), THREE, r"int64\[2, 4\] for 8 examples"),
        (LABELS[:0], THREE, "has 7 examples, 0 to 6, for 0 labels"),
    ):
        with pytest.raises(ValueError, match=named):
            describe_partition(labels, partition)
