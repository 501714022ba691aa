"""Reads CSV files, and tables of numbers with a column of classes and maybe one of clients."""

import csv as csv_files
import hashlib
import io
import os
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, read_file, reading
from fedjax_algos.base.reprs import printable
from fedjax_algos.core.options import Proportion
from fedjax_algos.data.dataset import Dataset, divide, from_arrays
from fedjax_algos.data.federated_data import datasets

TEST_SHARE = 0.2
_KIND = "a CSV file of examples"
_FIX = "write a header and one row for each example, or fetch the file again"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


class Table(NamedTuple):
    """Columns of a CSV file; no field is empty."""

    name: str  # the path of the file, for messages
    columns: dict[str, list[str]]  # by name, the text of each row
    digest: str  # SHA-256 of the file in hexadecimal digits

    def where(self, column: str, value: str) -> "Table":
        """Selects the rows with a value in a column."""
        kept = [row for row, found in enumerate(self.columns[column]) if found == value]
        require(kept, f"{self.name} has no row with {column}={value}; {_FIX}")
        columns = {name: [texts[row] for row in kept] for name, texts in self.columns.items()}
        return self._replace(columns=columns)


def read_table(
    path: PathLike,
    required: Collection[str],
    optional: Collection[str] = (),
    *,
    others: bool = False,
    separator: str = ",",
) -> Table:
    """Reads the named columns, or all if `others`, of a CSV file in UTF-8 with a header."""
    with reading(path, _KIND, _FIX, csv_files.Error, TypeError):
        content = read_file(path)
        lines = io.StringIO(content.decode("utf-8-sig"), newline="")
        rows = csv_files.DictReader(lines, strict=True, delimiter=separator)
        header = list(rows.fieldnames or [])
        shown = printable(", ".join(header), 200)
        more = header if others else [column for column in optional if column in header]
        columns: dict[str, list[str]] = {column: [] for column in (*required, *more)}
        for column in columns:
            number = header.count(column)
            fix = "choose one of these, or give another separator"
            require(number == 1, f"it has {number} columns {column!r} among {shown}; {fix}")
        needed = f"{len(header)} fields, with a text in {printable(', '.join(columns), 200)}"
        for row in rows:
            whole = None not in row and None not in row.values() and all(map(row.get, columns))
            fix = "fill it in, or leave the line out"
            require(whole, f"line {rows.line_num} does not have {needed}; {fix}")
            for column, texts in columns.items():
                texts.append(row[column])
        require(all(columns.values()), "it has no row below the header")
    return Table(printable(os.fspath(path)), columns, hashlib.sha256(content).hexdigest())


def in_order(names: Iterable[str]) -> list[str]:
    """Sorts the distinct names: as numbers if all are whole numbers ("07" is a text)."""
    distinct = set(names)
    numbers = all(map(_NUMBER.fullmatch, distinct))
    return sorted(distinct, key=int if numbers else None)


def numbered(names: list[str], order: list[str]) -> np.ndarray:
    """Returns the place of each name in `order`, int32[names]."""
    places = {name: place for place, name in enumerate(order)}
    return np.array([places[name] for name in names], np.int32)


def class_numbers(table: Table, column: str, num_classes: int) -> np.ndarray:
    """Returns a column of classes as int32[rows]; ValueError unless all are below num_classes."""
    known = set(map(str, range(num_classes)))
    with reading(table.name, _KIND, f"give whole numbers from 0 to {num_classes - 1}"):
        for row, value in enumerate(table.columns[column]):
            require(value in known, f"row {row} has {column}={value[:50]}")
    return np.array(table.columns[column], np.int32)


@datasets.register
def csv(
    *,
    path: PathLike,
    label: str,
    user: str | None = None,
    test: PathLike | None = None,
    test_share: Proportion = TEST_SHARE,
    drop: str = "",
    separator: str = ",",
    standardise: bool = False,
) -> Dataset:
    """A table with a row for each example: a column of classes, all other columns are numbers.

    The first line has the names of the columns. "x" is float32[n, columns], the file's numbers in
    the file's order. Classes are numbered in ascending order of their names; if all names are whole
    numbers, they are ordered as numbers.

    Args:
      path: the file of the training examples, in UTF-8.
      label: the column of the classes, numbers or texts.
      user: the column of the natural clients, if any.
      test: the file of the test examples, with the same columns; None draws them from `path`.
      test_share: the share of rows drawn as test examples if `test` is None, with a fixed seed.
      drop: columns to leave out, separated by semicolons, such as "id;date".
      separator: the character between two fields, such as a semicolon, or tab.
      standardise: whether to subtract each column's mean over the training rows, and to divide by
        its standard deviation if this is not 0.
    """
    fits = test is None or test_share == TEST_SHARE
    require(fits, f"csv: test_share={test_share} has no effect beside test; leave it out")
    separator = {"tab": "\t", "\\t": "\t"}.get(separator, separator)
    left_out = [label, *([user] if user else []), *filter(None, drop.split(";"))]
    table = read_table(path, left_out, others=True, separator=separator)
    names = [name for name in table.columns if name not in left_out]
    tests = [] if test is None else [read_table(test, [*names, label], separator=separator)]
    tables = [table, *tests]
    with reading(table.name, "a table of numbers", "give other columns than label, user and drop"):
        x = [np.stack([_numbers(each, name) for name in names], 1) for each in tables]
    classes = in_order(name for each in tables for name in each.columns[label])
    y = [numbered(each.columns[label], classes) for each in tables]
    users = np.array(table.columns[user]) if user else None
    if test is None:
        dataset = divide(x[0], y[0], test_share, users, source=table.name)
    else:
        dataset = from_arrays(x[0], y[0], x[1], y[1], users, source=table.name)
    parts = {"train": dataset.train, "test": dataset.test}
    x_train, mean, scale = dataset.train["x"], np.zeros(len(names)), np.ones(len(names))
    if standardise:
        mean, scale = x_train.mean(0), np.where(np.ptp(x_train, 0) > 0, x_train.std(0), 1)
    for part, examples in parts.items():
        values = (examples["x"] - mean) / scale
        parts[part] = examples | {"x": values.astype(np.float32)}
        lost = (np.floor(values) == values) & (parts[part]["x"] != values)
        row, column = np.unravel_index(lost.argmax(), lost.shape)
        wrong = f"{names[column]} has {values[row, column]:.0f}, which is not a float32"
        fix = f"give standardise=true, or leave the column out with drop={names[column]}"
        require(standardise or not lost.any(), f"{table.name}: {wrong}; {fix}")
    return dataset._replace(**parts, num_classes=len(classes))


def _numbers(table: Table, name: str) -> np.ndarray:
    """Returns a column as float64[rows]."""
    fix = f"give numbers, or leave the column out with drop={name}"
    with reading(f"{table.name}: {printable(name)}", "a column of numbers", fix):
        return np.array(table.columns[name], float)
