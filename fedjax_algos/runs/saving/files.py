"""Tables of rows as CSV files."""

import csv
import io
from pathlib import Path
from typing import Any

from fedjax_algos.core import Row
from fedjax_algos.core.files import read_file, require, written

_TEXTS, _WHOLE = {"method"}, {"seed", "round"}  # columns that every row has
_FIX = "name a folder that compare, run or sweep wrote"
_MAX_DIGITS = 300  # of a number that fits into a float


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows to a CSV file; a column that a row does not have is empty."""
    columns = dict.fromkeys(name for row in rows for name in row)
    with written(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[Row]:
    """The rows that `write_table` wrote; ValueError for what is no whole table of metrics."""
    try:
        text = read_file(path).decode()
        require("\0" not in text, "it has a null character")
        columns, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except OSError:
        raise ValueError(f"{path} cannot be read; {_FIX}") from None
    except (ValueError, csv.Error) as error:  # no text, no line, or no table
        raise ValueError(f"{path} cannot be read ({error}); {_FIX}") from None
    if not rows or not set(columns) >= _TEXTS | _WHOLE:
        raise ValueError(f"{path} holds no metrics; {_FIX}")
    for name in columns:
        if columns.count(name) > 1:
            raise ValueError(f"{path} has the column {name!r} twice; {_FIX}")
    seen: dict[tuple[str, ...], int] = {}
    for number, cells in enumerate(rows, start=1):
        if len(cells) != len(columns):
            raise ValueError(
                f"row {number} of {path} has {len(cells)} cells for {len(columns)} columns; {_FIX}"
            )
        if (first := seen.setdefault(tuple(cells), number)) != number:
            raise ValueError(f"row {number} of {path} is row {first} again; remove one of them")
    if not text.endswith("\n"):
        raise ValueError(f"{path} is cut off in row {len(rows)}, which has no end of line; {_FIX}")
    return [
        {
            name: _value(name, cell, f"row {number} of {path}")
            for name, cell in zip(columns, cells, strict=True)
            if cell or name in _TEXTS | _WHOLE
        }
        for number, cells in enumerate(rows, start=1)
    ]


def _value(name: str, cell: str, place: str) -> str | int | float:
    kind, value = "text", cell or None
    if name not in _TEXTS:
        kind, value = "whole number" if name in _WHOLE else "number", _number(cell)
    if value is None or (name in _WHOLE and not isinstance(value, int)):
        raise ValueError(f"{place} has {name}={cell!r}, which is no {kind}; {_FIX}")
    return value


def _number(cell: str) -> Any:
    """A number; None for another text."""
    try:
        whole = cell.removeprefix("-").isdecimal() and len(cell) < _MAX_DIGITS
        return int(cell) if whole else float(cell)
    except ValueError:
        return None
