"""Rows of one size in files, as bytes: a scratch file, and the file of a run's checkpoints.

A row that is written goes to the scratch file, which has no name, so that nothing is left of it
when the process ends, however it ends. A checkpoint moves the rows of the scratch file to places of
the saved file that no checkpoint refers to. So no row of a checkpoint is ever overwritten, and a
process may end between any two writes.
"""

import contextlib
import math
import os
import secrets
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np

from fedjax_algos.core.files import DamagedError, writing
from fedjax_algos.core.limits import readable_bytes

_NOWHERE = -1
_NONE = np.zeros(0, np.int32)


class RowFiles:
    """The rows of a run's clients, in a folder that is made when the first row is written.

    The tables have 12 bytes for each client.
    """

    def __init__(self, folder: Path, row_bytes: int, num_clients: int):
        self.folder, self.row_bytes = folder, row_bytes
        self.recent = np.full(num_clients, _NOWHERE, np.int32)  # places in the scratch file
        self.saved = np.full(num_clients, _NOWHERE, np.int32)  # in the saved file, if not recent
        self.checksums = np.zeros(num_clients, np.uint32)  # CRC-32 of the rows
        self.num_recent = 0
        self.scratch: Any = None
        self.reader: Any = None  # of the saved file
        self.number = 0  # in the name of the saved file
        self.owner = ""  # the folder of the checkpoints that refer to it
        self.position = _NOWHERE  # of the last of them
        # places by the position of the last checkpoint that refers to them
        self.unused: list[tuple[int, np.ndarray]] = []

    def written(self) -> np.ndarray:
        """The clients whose rows have been written, ascending, int[rows]."""
        return np.flatnonzero((self.recent >= 0) | (self.saved >= 0))

    def has(self, client: int) -> bool:
        """Whether a client's row has been written; the id may be any integer."""
        known = 0 <= client < len(self.saved)
        return bool(known and max(self.recent[client], self.saved[client]) >= 0)

    def read(self, client: int) -> bytearray:
        """A row that has been written; raises ValueError if it is not as it was written."""
        is_recent = self.recent[client] >= 0
        file, place = (self.scratch, self.recent) if is_recent else (self.reader, self.saved)
        row = _read_at(file, int(place[client]) * self.row_bytes, self.row_bytes)
        if row is None or zlib.crc32(row) != self.checksums[client]:
            where = self.folder if is_recent else self._path(self.number)
            raise ValueError(
                f"the row of client {client} in {str(where)!r} is not as it was written: the file "
                "was damaged, or a run that went on from the same checkpoint has replaced the row; "
                "go on from the last checkpoint, or start the run again"
            )
        return row

    def write(self, client: int, row: bytes) -> None:
        """Writes a row to the scratch file; raises ValueError if it cannot, as on a full disk."""
        place = int(self.recent[client])
        place = self.num_recent if place < 0 else place
        with writing(self.folder):
            if self.scratch is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115
                self.scratch = self._closed_at_end(file)
            _write_at(self.scratch, place * self.row_bytes, row)
        self.num_recent = max(self.num_recent, place + 1)
        self.recent[client], self.checksums[client] = place, zlib.crc32(row)

    def check_room(self, what: str, num_rows: int) -> None:
        """Raises ValueError if the disk has no room for so many rows, those written included."""
        there_is = next(
            each for each in (self.folder, *self.folder.absolute().parents) if each.exists()
        )
        needed, free = (num_rows - len(self.written())) * self.row_bytes, disk_usage(there_is).free
        if needed > free:
            raise ValueError(
                f"{what} would need {readable_bytes(needed)} in {str(self.folder)!r}, but there "
                f"are {readable_bytes(free)}; make room, name a folder on another disk, or give "
                "fewer clients or rounds"
            )

    def save(self, owner: str, position: int, kept: Iterable[int]) -> dict[str, Any]:
        """Moves the rows of the scratch file to the saved file; then the tables change.

        The first checkpoint makes the saved file, and so does the first one in another folder, the
        `owner`: then all rows are copied. `kept` are the positions of the checkpoints that there
        are; they stay as they were if the rows cannot be written or read. Returns what `open_saved`
        needs, as arrays by name; nothing if no row has been written.
        """
        begins = owner != self.owner or self.reader is None
        clients = self.written() if begins else np.flatnonzero(self.recent >= 0)
        if begins and not len(clients):
            return {}
        number, end = (self._new_file(), 0) if begins else (self.number, self._end())
        oldest = min(kept, default=math.inf)
        unused = [] if begins else self.unused
        held = [(last, places) for last, places in unused if last >= oldest]
        free = np.concatenate([_NONE, *(places for last, places in unused if last < oldest)])
        added = np.arange(end, end + max(len(clients) - len(free), 0), dtype=np.int32)
        places = np.concatenate([free[: len(clients)], added])
        try:
            self._copy(clients, number, places)
        except BaseException:
            if begins:
                self._path(number).unlink(missing_ok=True)
            raise
        if begins:
            self.reader = self._closed_at_end(self._path(number).open("rb", buffering=0))
            self.unused = []
        else:
            replaced = self.saved[clients]
            replaced = (self.position, replaced[replaced >= 0])
            self.unused = [*held, (_NOWHERE, free[len(clients) :]), replaced]
        self.saved[clients] = places
        self.recent[:], self.num_recent = _NOWHERE, 0
        if self.scratch is not None:
            self.scratch.truncate(0)
        self.number, self.owner, self.position = number, owner, position
        ids = np.flatnonzero(self.saved >= 0).astype(np.int32)
        tables = {"ids": ids, "places": self.saved[ids], "checksums": self.checksums[ids]}
        return tables | {"file": np.int32(number)}

    def open_saved(self, owner: str, position: int, tables: Mapping[str, np.ndarray]) -> None:
        """Takes the tables that `save` returned in place of having written the rows.

        Each row is read once, so that one that is damaged is found before the run goes on: then a
        DamagedError is raised, and nothing has changed.
        """
        ids, places, checksums = tables["ids"], tables["places"], tables["checksums"]
        path = self._path(int(tables["file"]))
        try:
            reader = path.open("rb", buffering=0)
        except OSError as error:
            raise ValueError(
                f"{str(path)!r} cannot be read ({error.strerror}), but the checkpoint in {owner!r} "
                "has the clients' rows there; give the folder of client state that the run had"
            ) from error
        for number in np.argsort(places):  # in the order of the file
            row = _read_at(reader, int(places[number]) * self.row_bytes, self.row_bytes)
            if row is None or zlib.crc32(row) != checksums[number]:
                reader.close()
                raise DamagedError(
                    f"the row of client {ids[number]} in {str(path)!r} is not as it was written: "
                    "the file was damaged or cut off, or a run that went on from the same "
                    "checkpoint has replaced the row"
                )
        self.reader = self._closed_at_end(reader)
        self.number, self.owner, self.position = int(tables["file"]), owner, position
        self.saved[ids], self.checksums[ids] = places, checksums
        others = np.setdiff1d(np.arange(self._end(), dtype=np.int32), places)
        self.unused = [(position, others)]

    def remove(self) -> None:
        """Removes the saved file; its checkpoints cannot go on any more."""
        if self.reader is not None:
            self._path(self.number).unlink(missing_ok=True)

    def _path(self, number):
        return self.folder / f"{number:08x}.rows"

    def _end(self):
        """The first place behind the rows of the saved file; a kill may have left part of one."""
        return os.fstat(self.reader.fileno()).st_size // self.row_bytes

    def _new_file(self):
        """The number of a new saved file."""
        while True:
            number = secrets.randbelow(2**31 - 1) + 1
            with writing(self._path(number)), contextlib.suppress(FileExistsError):
                self._path(number).open("xb").close()
                return number

    def _copy(self, clients, number, places):
        path = self._path(number)
        with writing(path), path.open("r+b", buffering=0) as file:
            for client, place in zip(clients.tolist(), places.tolist(), strict=True):
                _write_at(file, place * self.row_bytes, self.read(client))
            os.fsync(file.fileno())

    def _closed_at_end(self, file):
        weakref.finalize(self, file.close)
        return file


def _read_at(file, offset, size):
    """The bytes at a place of a file, also where the system reads a part at a time; or None."""
    row = bytearray(size)
    rest = memoryview(row)
    with contextlib.suppress(OSError):
        file.seek(offset)
        while rest and (count := file.readinto(rest)):
            rest = rest[count:]
    return None if rest else row


def _write_at(file, offset, row):
    """Also where the system writes a part at a time."""
    file.seek(offset)
    rest = memoryview(row)
    while rest:
        rest = rest[file.write(rest) :]
