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
    with written(path) as beside, beside.open("w", newline="") as file:
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
    fix = "name a folder that compare, run or sweep wrote"
    try:
        with open_regular(path) as file:
            text = read_bounded(file, max_text_bytes()).decode()
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except OSError:
        raise ValueError(f"{path} cannot be read; {fix}") from None
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read ({error}); {fix}") from None
    columns, *rows = lines or [[]]
    if not rows or not {"method", "seed", "round"} <= set(columns):
        raise ValueError(f"{path} holds no metrics; {fix}")
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise ValueError(f"{path} has the column {twice[0]!r} twice; {fix}")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(columns):
            raise ValueError(
                f"{path}: row {number} has {len(row)} cells for {len(columns)} columns; {fix}"
            )
    for number, row in enumerate(rows, start=1):
        for name in ("seed", "round"):
            _number(row[columns.index(name)], f"{path}: row {number}: {name}")
    return [
        {
            name: cell if name == "method" else _number(cell, f"{path}: row {number}: {name}")
            for name, cell in zip(columns, row, strict=True)
            if cell
        }
        for number, row in enumerate(rows, start=1)
    ]


def _number(cell: str, name: str) -> int | float:
    with contextlib.suppress(ValueError):
        if cell.isascii() and cell.removeprefix("-").isdecimal():
            return int(cell)
        if not name.endswith((": seed", ": round")):
            return float(cell)
    whole = "whole " if name.endswith((": seed", ": round")) else ""
    raise ValueError(
        f"{name} is {cell!r}, not a {whole}number; name a folder that compare, run or sweep wrote"
    )
