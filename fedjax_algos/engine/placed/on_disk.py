"""Rows of client state on disk: `DiskClientState` has them as trees, and `RowFiles` as bytes.

Rows are written to a scratch file without a name, so that nothing is left of it when the process
ends, however it ends. A checkpoint moves these rows to places in its saved file that no earlier
checkpoint refers to. So no row of a checkpoint is ever overwritten, and a process may end between
any two writes.
"""

import contextlib
import os
import secrets
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from shutil import disk_usage
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from fedjax_algos.base.errors import DamagedError, require
from fedjax_algos.base.files import writing
from fedjax_algos.base.limits import readable_bytes
from fedjax_algos.base.reprs import describe, describe_tree
from fedjax_algos.core import ClientState
from fedjax_algos.core.checks import check_kind
from fedjax_algos.core.trees import tree_bytes

_NOWHERE = -1
_NONE = np.zeros(0, np.int32)


class RowsOnDisk(NamedTuple):
    """Rows of client state on disk: a value for the `client_state` of `make_engine`.

    Memory holds the rows of one cohort, plus 8 bytes for each client and 4 for each row on disk.
    Each process of a run has its own files, so several runs may share a folder. The files take the
    space of the rows written so far. With checkpoints they also take the space of the rows that
    changed since the oldest checkpoint that is kept.

    A run writes to a file without a name, which disappears with the run or its process. The first
    checkpoint makes a file `NUMBER.rows` for the rows of the run's checkpoints. A checkpoint can be
    resumed only while this file is in the folder. Remove both together.

    Attributes:
      folder: the folder of the files; it is made when the first row is written.
    """

    folder: str | Path


ClientStatePlace = Literal["device", "host"] | RowsOnDisk


def place_name(client_state: ClientStatePlace) -> str:
    """Returns "device", "host" or "disk"; ValueError for another value."""
    if isinstance(client_state, RowsOnDisk):
        check_kind("RowsOnDisk: folder", client_state.folder, str | Path, "give a folder")
        return "disk"
    fix = "choose device, host or fedjax_algos.RowsOnDisk(folder)"
    require(client_state in ("device", "host"), f"client_state={client_state!r} is unknown; {fix}")
    return client_state


class RowFiles:
    """The rows of a run's clients, in a folder that is made when the first row is written."""

    def __init__(self, folder: Path, row_bytes: int, num_clients: int):
        self.folder, self.row_bytes = folder, row_bytes
        # places in the saved file; -2, -3, ... are the places 0, 1, ... of the scratch file
        self.places = np.full(num_clients, _NOWHERE, np.int32)
        self.checksums = np.zeros(num_clients, np.uint32)  # CRC-32 of the rows
        self.num_recent = 0  # rows in the scratch file
        self.scratch: Any = None
        self.path = folder  # of the saved file
        self.reader: Any = None  # of the saved file
        self.owner = ""  # the folder of the checkpoints that refer to the saved file
        self.position = _NOWHERE  # of the last of these checkpoints
        self.used = _NONE  # the last checkpoint that refers to each place of the saved file

    def written(self) -> np.ndarray:
        """Returns the clients whose rows have been written, ascending, int[rows]."""
        return np.flatnonzero(self.places != _NOWHERE)

    def has(self, client: int) -> bool:
        """Returns whether a client's row has been written; the id may be any integer."""
        return 0 <= client < len(self.places) and bool(self.places[client] != _NOWHERE)

    def read(self, client: int) -> np.ndarray:
        """Returns a written row, uint8[bytes]; raises ValueError if it was changed."""
        place, file, path = int(self.places[client]), self.reader, self.path
        if place < _NOWHERE:
            place, file, path = -2 - place, self.scratch, self.folder
        fix = "; go on from the last checkpoint, or start the run again"
        return self._read(file, place, client, self.checksums[client], path, fix)

    def write(self, client: int, row: bytes) -> None:
        """Writes a row to the scratch file; raises ValueError on failure, as on a full disk."""
        place = -2 - int(self.places[client])
        place = self.num_recent if place < 0 else place
        with writing(self.folder):
            if self.scratch is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115
                self.scratch = self._closed_at_end(file)
            _write_at(self.scratch, place * self.row_bytes, row)
        self.num_recent = max(self.num_recent, place + 1)
        self.places[client], self.checksums[client] = -2 - place, zlib.crc32(row)

    def check_room(self, what: str, num_rows: int) -> None:
        """Raises ValueError if the disk has no room for `num_rows`, less those written already."""
        existing = next(filter(Path.exists, (self.folder, *self.folder.absolute().parents)))
        needed, free = (num_rows - len(self.written())) * self.row_bytes, disk_usage(existing).free
        found = f"{what} would need {readable_bytes(needed)} in {str(self.folder)!r}, but only"
        fix = "make room, name a folder on another disk, or give fewer clients or rounds"
        require(needed <= free, f"{found} {readable_bytes(free)} are free; {fix}")

    def save(self, owner: str, position: int, kept: Iterable[int]) -> dict[str, Any]:
        """Moves rows from the scratch file to the saved one; returns the tables for `open_saved`.

        The first checkpoint in the folder `owner` makes the saved file with all rows written so
        far. `kept` are the positions of the existing checkpoints. Raises ValueError, and changes
        nothing, if the rows cannot be written or read.
        """
        begins = owner != self.owner or self.reader is None
        clients = self.written() if begins else np.flatnonzero(self.places < _NOWHERE)
        if begins and not len(clients):
            return {}
        path, used = (self._path(secrets.randbits(31)), _NONE) if begins else (self.path, self.used)
        free = np.flatnonzero(used < min([*kept, self.position]))[: len(clients)]
        end = len(used) + len(clients) - len(free)
        places = np.concatenate([free, np.arange(len(used), end)]).astype(np.int32)
        with writing(path), contextlib.ExitStack() as undo:
            if begins:
                path.touch(exist_ok=False)
                undo.callback(path.unlink)
            with path.open("r+b", buffering=0) as file:
                for client, place in zip(clients.tolist(), places.tolist(), strict=True):
                    _write_at(file, place * self.row_bytes, self.read(client))
                os.fsync(file.fileno())
            undo.pop_all()
        if begins:
            self.reader = self._closed_at_end(path.open("rb", buffering=0))
        self.places[clients], self.num_recent = places, 0
        if self.scratch is not None:
            self.scratch.truncate(0)
        self.path, self.owner, self.position = path, owner, position
        ids = self.written().astype(np.int32)
        self.used = np.concatenate([used, np.full(end - len(used), position, np.int32)])
        self.used[self.places[ids]] = position
        tables = {"ids": ids, "places": self.places[ids], "checksums": self.checksums[ids]}
        return tables | {"file": np.int32(int(path.stem, 16))}

    def open_saved(self, owner: str, position: int, tables: Mapping[str, np.ndarray]) -> None:
        """Loads the tables from `save`; damaged rows raise DamagedError and change nothing."""
        ids, places, checksums = tables["ids"], tables["places"], tables["checksums"]
        path = self._path(int(tables["file"]))
        try:
            reader = path.open("rb", buffering=0)
        except OSError as error:
            found = f"{str(path)!r} of the checkpoint in {owner!r} cannot be read"
            fix = "give the folder of client state that the run had"
            raise ValueError(f"{found} ({error.strerror}); {fix}") from error
        with contextlib.ExitStack() as stack:
            stack.enter_context(reader)
            for number in np.argsort(places):  # in the order of the file
                self._read(reader, int(places[number]), ids[number], checksums[number], path)
            stack.pop_all()
        self.reader = self._closed_at_end(reader)
        self.path, self.owner, self.position = path, owner, position
        self.places[ids], self.checksums[ids] = places, checksums
        # counts all places as used: a killed process may have left rows after the known ones
        size = os.fstat(reader.fileno()).st_size
        self.used = np.full(-(-size // self.row_bytes), position, np.int32)

    def remove(self) -> None:
        """Removes the saved file; its checkpoints can no longer be resumed."""
        if self.reader is not None:
            self.path.unlink(missing_ok=True)

    def _path(self, number):
        return self.folder / f"{number:08x}.rows"

    def _read(self, file, place, client, checksum, path, fix=""):
        """Reads the row at a place of a file, or raises DamagedError."""
        file.seek(place * self.row_bytes)
        row = np.fromfile(file, np.uint8, self.row_bytes)
        if zlib.crc32(row) != checksum:
            found = f"the row of client {client} in {str(path)!r} is not as it was written"
            why = "the file was damaged, or a run that went on from the same checkpoint replaced it"
            raise DamagedError(f"{found}: {why}{fix}")
        return row

    def _closed_at_end(self, file):
        weakref.finalize(self, file.close)
        return file


def _write_at(file, offset, row):
    """Writes a row, in several parts if the system writes less at a time."""
    file.seek(offset)
    rest = memoryview(row)
    while rest:
        rest = rest[file.write(rest) :]


class DiskClientState(Mapping[int, ClientState]):
    """Rows of client state on disk, as trees of NumPy arrays by client id, read when asked for.

    It holds only the clients that have been dispatched. Every other client has a row of zeros,
    which its first dispatch replaces. A round CONSUMES it, like the arrays of a state: the returned
    state holds the rows.

    Args:
      folder: where the files are.
      shapes: shapes and dtypes of a row; see `row_shapes`.
      num_clients: N, the number of clients.
    """

    def __init__(self, folder: str | Path, shapes: ClientState, num_clients: int):
        self.blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        self._files: RowFiles | None = RowFiles(Path(folder), tree_bytes(self.blank), num_clients)

    @property
    def files(self) -> RowFiles:
        """The files; a consumed table has none."""
        if self._files is None:
            raise ValueError("a round consumed these rows; use the state that it returned")
        return self._files

    def __getitem__(self, client: int) -> ClientState:
        if not self.files.has(client):
            return self.blank
        row, offset, leaves = self.files.read(client), 0, []
        for leaf in jax.tree.leaves(self.blank):
            leaves.append(np.ndarray(leaf.shape, leaf.dtype, row, offset))
            offset += leaf.nbytes
        return jax.tree.unflatten(jax.tree.structure(self.blank), leaves)

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int | np.integer) and self.files.has(int(client))

    def __iter__(self) -> Iterator[int]:
        return iter(self.files.written().tolist())

    def __len__(self) -> int:
        return len(self.files.written())

    def __repr__(self) -> str:
        if self._files is None:
            return describe(self, rows="consumed")
        folder = str(self._files.folder)
        return describe(self, folder=folder, clients=len(self), row=describe_tree(self.blank))

    def __jax_array__(self) -> Any:
        raise TypeError("rows on disk are not an array; use client_states, or save the run")

    def is_deleted(self) -> bool:
        """Returns whether a round has consumed the rows, like `jax.Array.is_deleted`."""
        return self._files is None

    def write(self, rows: Iterable[tuple[int, ClientState]]) -> "DiskClientState":
        """Writes rows and returns the table with them; CONSUMES this object.

        Args:
          rows: pairs of a client id and a row with the shapes of `blank`.

        Raises:
          ValueError: if the rows cannot be written, as on a full disk.
        """
        written = object.__new__(DiskClientState)
        written.blank, written._files = self.blank, self.files
        self._files = None
        for client, row in rows:
            leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(row)]
            if leaves:
                written.files.write(client, b"".join(leaves))
        return written

    def save(self, owner: str, position: int, kept: Iterable[int]) -> dict[str, Any]:
        """Saves the rows on disk and returns the arrays of a checkpoint: tables and a row of zeros.

        Args:
          owner, position: the folder of the checkpoints, and the position of this one.
          kept: the positions of the existing checkpoints.
        """
        return self.files.save(owner, position, kept) | {"blank": self.blank}
