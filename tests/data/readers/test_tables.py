"""CSV files of any texts, and the order of names."""

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.data.readers.images.image_files import (
    class_numbers,
    in_order,
    numbered,
    read_table,
)

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1)
ROWS = st.lists(st.tuples(TEXTS, st.text(st.characters(codec="utf-8")), TEXTS), min_size=1)


@settings(deadline=None, max_examples=100)
@given(ROWS, st.sampled_from(["\n", "\r\n"]))
def test_what_is_written_is_read(tmp_path_factory, rows, end):
    path = tmp_path_factory.getbasetemp() / "some.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL)
        writer.writerows([("a", "other", "b"), *rows])
    table = read_table(path, ("b", "a"), ("c",))
    assert table.columns == {"b": [row[2] for row in rows], "a": [row[0] for row in rows]}
    some = rows[len(rows) // 2]
    chosen = table.where(a=some[0], b=some[2]).columns
    assert set(zip(chosen["a"], chosen["b"], strict=True)) == {(some[0], some[2])}
    assert len(chosen["a"]) == sum((row[0], row[2]) == (some[0], some[2]) for row in rows)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=300))
def test_other_files_are_refused_or_read(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "other.csv"
    path.write_bytes(b"a,b\n" + content)
    try:
        table = read_table(path, ("a", "b"))
    except ValueError as error:
        assert str(error).startswith(str(path))  # noqa: PT017, it may also be read
        assert str(error).isprintable()  # noqa: PT017
    else:
        assert len(table.columns["a"]) == len(table.columns["b"]) > 0


@given(st.lists(st.integers(0, 10**17), min_size=1))
def test_numbers_are_ordered_as_numbers(values):
    names = list(map(str, values))
    assert list(map(int, in_order(names))) == sorted(set(values))
    np.testing.assert_array_equal(
        numbered(names, in_order(names)), np.unique(values, return_inverse=True)[1]
    )


def test_order_of_other_names():
    assert in_order(["b", "10", "9", "b"]) == ["10", "9", "b"]
    assert in_order(["9", "1" * 5000]) == ["1" * 5000, "9"]  # no number of a reasonable size
    assert in_order(["2", "²", "٣"]) == ["2", "²", "٣"]  # digits of Unicode are no numbers


def test_class_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("c\n0\n2\n1\n")
    table = read_table(tmp_path / "a.csv", ("c",))
    assert class_numbers(table, "c", 3).tolist() == [0, 2, 1]
    with pytest.raises(ValueError, match=r"a.csv: row 1 has c=2; give whole numbers from 0 to 1"):
        class_numbers(table, "c", 2)
    with pytest.raises(ValueError, match=r"a.csv: has no row with c=3; fetch the file again"):
        table.where(c="3")
