"""CSV files that say which example belongs to which client, and has which class."""

import csv
import hashlib
import io
import os
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from fedjax_algos.core.files import PathLike, read_file, reading
from fedjax_algos.core.texts import printable

_FIX = "write a header and one row for each example, or fetch the file again"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


class Table(NamedTuple):
    """Some columns of a CSV file, which has at least one row.

    Attributes:
      name: the path of the file, for messages.
      columns: by name, the text of each row; none is empty.
      digest: SHA-256 of the file in hexadecimal digits.
    """

    name: str
    columns: dict[str, list[str]]
    digest: str

    def where(self, **values: str) -> "Table":
        """The rows that have these values.

        Args:
          **values: by column.

        Raises:
          ValueError: if there is no such row.
        """
        pairs = zip(*(self.columns[name] for name in values), strict=True)
        kept = [row for row, found in enumerate(pairs) if found == tuple(values.values())]
        if not kept:
            wanted = ", ".join(f"{name}={value}" for name, value in values.items())
            raise ValueError(f"{self.name}: has no row with {wanted}; fetch the file again")
        columns = {name: [column[row] for row in kept] for name, column in self.columns.items()}
        return self._replace(columns=columns)


def read_table(path: PathLike, required: Collection[str], optional: Collection[str] = ()) -> Table:
    """Reads columns of a CSV file, whose first line has their names; others are not kept.

    Args:
      path: the file, as UTF-8.
      required: names of columns.
      optional: names of columns that may be missing.

    Raises:
      ValueError: if the file is missing, damaged or too large, if it lacks a column or has it
        twice, or if a row has another number of fields than the header, or an empty one.
    """
    name = printable(os.fspath(path))
    with reading(path, "a CSV file of images", _FIX, csv.Error):
        content = read_file(path)
        text = io.StringIO(content.decode("utf-8-sig"), newline="")
        rows = csv.reader(text, strict=True)
        header = next(rows, [])
        shown = printable(", ".join(header), 200)
        for column in required:
            if column not in header:
                raise ValueError(f"it has no column {column!r}, only {shown}")
        kept = {
            column: header.index(column) for column in (*required, *optional) if column in header
        }
        for column in kept:
            if header.count(column) > 1:
                raise ValueError(f"it has the column {column!r} twice")
        columns: dict[str, list[str]] = {column: [] for column in kept}
        for row in filter(None, rows):  # an empty line is no row
            if len(row) != len(header):
                raise ValueError(
                    f"line {rows.line_num} has {len(row)} fields for {len(header)} columns"
                )
            for column, place in kept.items():
                if not row[place]:
                    raise ValueError(f"line {rows.line_num} has no {column}")
                columns[column].append(row[place])
        if not columns[next(iter(kept))]:
            raise ValueError("it has no row below the header")
    return Table(name, columns, hashlib.sha256(content).hexdigest())


def in_order(names: Iterable[str]) -> list[str]:
    """The distinct names in ascending order: that of numbers if all of them are whole numbers.

    Args:
      names: texts; "07" is no number.
    """
    distinct = set(names)
    if all(map(_NUMBER.fullmatch, distinct)):
        return sorted(distinct, key=int)
    return sorted(distinct)


def numbered(names: list[str], order: list[str]) -> np.ndarray:
    """int32[names]: the place of each name in an order that has them all.

    Args:
      names: texts.
      order: distinct texts.
    """
    places = {name: place for place, name in enumerate(order)}
    return np.array([places[name] for name in names], np.int32)


def class_numbers(table: Table, column: str, num_classes: int) -> np.ndarray:
    """int32[rows]: the classes in a column of numbers.

    Args:
      table: the rows.
      column: its name.
      num_classes: the classes are 0 to num_classes - 1.

    Raises:
      ValueError: for anything else than such a number.
    """
    known = set(map(str, range(num_classes)))
    for row, value in enumerate(table.columns[column]):
        if value not in known:
            raise ValueError(
                f"{table.name}: row {row} has {column}={printable(value, 50)}; give whole numbers "
                f"from 0 to {num_classes - 1}"
            )
    return np.array(table.columns[column], np.int32)
