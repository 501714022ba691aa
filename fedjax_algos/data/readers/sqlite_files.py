"""SQLite files from others: opened read-only, and only plain tables are read."""

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedjax_algos.core.files import PathLike, open_regular, reading
from fedjax_algos.core.limits import MAX_INT32, host_memory

_MAGIC = b"SQLite format 3\0"
_PLAIN = 0  # of a column that is neither hidden nor computed


@contextlib.contextmanager
def open_tables(
    path: PathLike, tables: Mapping[str, Sequence[str]]
) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write; texts are bytes.

    Nothing of the file is executed: extensions stay off, and a view, a virtual table or a computed
    column is refused before it is read.

    Args:
      path: of the file.
      tables: the columns that each table needs.

    Raises:
      ValueError: if the file is missing or damaged, or lacks one of them; also for errors of
        SQLite and ValueErrors within the context.
    """
    with reading(path, "an SQLite file of clients", "fetch the file again", sqlite3.Error):
        with open_regular(path) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise ValueError("it is no SQLite file; unpack one that ends in .lzma with unlzma")
        address = f"{Path(path).absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            connection.text_factory = bytes
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(host_memory() // 2, MAX_INT32))
            connection.execute("PRAGMA trusted_schema = off")
            connection.execute("PRAGMA cell_size_check = on")
            for table, columns in tables.items():
                _check(connection, table, columns)
            yield connection


def _check(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
    query = "SELECT type, sql FROM sqlite_master WHERE name = ?"
    found = connection.execute(query, [table]).fetchall()
    plain = len(found) == 1 and found[0][0] == b"table" and isinstance(found[0][1], bytes)
    if not plain or found[0][1].split()[1].upper() != b"TABLE":
        raise ValueError(f"it has no table {table!r}")
    described = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
    kinds = {name.decode(errors="replace"): hidden for _, name, *_, hidden in described}
    for column in columns:
        if kinds.get(column) != _PLAIN:
            raise ValueError(f"its table {table!r} has no column {column!r}")
