"""Files that are written whole or not at all, and tables of rows."""

import contextlib
import csv
import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedjax_algos.core import Row
from fedjax_algos.core.files import max_text_bytes, open_regular, read_bounded

_TEXTS, _WHOLE = {"method"}, {"seed", "round"}  # columns that every row has
_FIX = "name a folder that compare, run or sweep wrote"
_MAX_DIGITS = 300  # of a number that fits into a float


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; the file is renamed to `path` at the end of the block.

    Args:
      path: the file that is made or replaced.

    Raises:
      ValueError: if the file cannot be written, as on a full disk; what was at `path` before stays.
    """
    beside = path.with_name(f".{os.getpid()}-{path.name}")
    with writing(path):
        try:
            yield beside
            beside.replace(path)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of a `with` block, such as that of a full disk, into a ValueError.

    Args:
      path: what is written.

    Raises:
      ValueError: which names the path and the reason.
    """
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: Exception) -> ValueError:
    """The error of the user's for a path that cannot be written.

    Args:
      path: what is written.
      error: the reason; of a library, which may hide that of the system in its text.
    """
    reason = getattr(error, "strerror", None) or str(error)
    if os.strerror(errno.ENOSPC) in reason:
        reason = os.strerror(errno.ENOSPC)
    return ValueError(
        f"{str(path)!r} cannot be written ({reason}); what was written before is kept: make room, "
        "or name another folder"
    )


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows to a CSV file; a column that a row does not have is empty.

    Args:
      path: the file.
      rows: by column.

    Raises:
      ValueError: if the file cannot be written.
    """
    columns = dict.fromkeys(name for row in rows for name in row)
    with written(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)


def write_text(path: Path, text: str) -> None:
    """Writes a text file.

    Args:
      path: the file.
      text: its content.

    Raises:
      ValueError: if the file cannot be written.
    """
    with written(path) as beside:
        beside.write_text(text)


def read_rows(path: Path) -> list[Row]:
    """Reads the rows of a table, as they were given to `write_table`.

    Args:
      path: of a file of `write_table`.

    Raises:
      ValueError: if the file cannot be read, or is no whole table of metrics.
    """
    try:
        with open_regular(path) as file:
            text = read_bounded(file, max_text_bytes()).decode()
        columns, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except OSError:
        raise ValueError(f"{path} cannot be read; {_FIX}") from None
    except (ValueError, csv.Error) as error:  # no text, no line, or no table
        raise ValueError(f"{path} cannot be read ({error}); {_FIX}") from None
    if not rows or not {"method", "seed", "round"} <= set(columns):
        raise ValueError(f"{path} holds no metrics; {_FIX}")
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise ValueError(f"{path} has the column {twice[0]!r} twice; {_FIX}")
    for number, cells in enumerate(rows, start=1):
        if len(cells) != len(columns):
            raise ValueError(
                f"row {number} of {path} has {len(cells)} cells for {len(columns)} columns; {_FIX}"
            )
    return [
        {
            name: _value(name, cell, f"row {number} of {path}")
            for name, cell in zip(columns, cells, strict=True)
            if cell or name in _TEXTS | _WHOLE
        }
        for number, cells in enumerate(rows, start=1)
    ]


def _value(name: str, cell: str, place: str) -> str | int | float:
    value: str | int | float | None
    if name in _TEXTS:
        kind, value = "text", cell or None
    else:
        kind, value = "number", _number(cell)
        if name in _WHOLE and not isinstance(value, int):
            kind, value = "whole number", None
    if value is None:
        raise ValueError(f"{place} has {name}={cell!r}, which is no {kind}; {_FIX}")
    return value


def _number(cell: str) -> int | float | None:
    try:
        whole = cell.removeprefix("-").isdecimal() and len(cell) < _MAX_DIGITS
        return int(cell) if whole else float(cell)
    except ValueError:
        return None
