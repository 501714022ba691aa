"""A checkpoint as one file, which is whole, or is refused before anything in it is used.

The first line has the format, the number of bytes that follow it, and their SHA-256. The second
line is JSON: `facts`, and by name of each `arrays` its dtype, shape and first byte after this line.
The rest is the bytes of the arrays, one after another, little-endian.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_algos.core.checksums import DamagedError
from fedjax_algos.core.files import open_regular
from fedjax_algos.core.writing import written

_FIRST_LINE = "fedjax_algos checkpoint 2, {:020d} bytes, sha256 {}\n"
_PATTERN = re.compile(rb"fedjax_algos checkpoint 2, ([0-9]{20}) bytes, sha256 ([0-9a-f]{64})\n")
_SUFFIX = ".checkpoint"


def checkpoint_path(folder: Path, position: int) -> Path:
    """The file of a checkpoint.

    Args:
      folder: of the checkpoints.
      position: of the checkpoint.
    """
    return folder / f"{position}{_SUFFIX}"


def positions_in(folder: Path) -> list[int]:
    """The positions of the checkpoints in a folder, ascending.

    Args:
      folder: it may be missing.

    Raises:
      ValueError: for a folder with checkpoints of an earlier version.
    """
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if any(name.isdecimal() for name in names):
        raise ValueError(
            f"the checkpoints in {str(folder)!r} were written by an earlier version of "
            "fedjax_algos, whose format cannot be read: remove this folder, and the run starts "
            "again from its beginning; or go on with that version"
        )
    stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def remove_unfinished(folder: Path) -> None:
    """Removes what processes that were killed have left half-written.

    Args:
      folder: of the checkpoints, to which no other process writes.
    """
    for path in folder.glob(f".*-*{_SUFFIX}"):
        path.unlink()


def write_checkpoint(path: Path, arrays: Mapping[str, np.ndarray], facts: Any) -> None:
    """Writes a checkpoint, whole or not at all.

    Args:
      path: the file that is made or replaced.
      arrays: by name.
      facts: values of JSON.

    Raises:
      ValueError: if the file cannot be written, as on a full disk.
    """
    table, end = {}, 0
    for name, array in arrays.items():
        table[name] = [array.dtype.name, array.shape, end]
        end += array.nbytes
    header = json.dumps({"facts": facts, "arrays": table}).encode() + b"\n"
    digest = hashlib.sha256()
    with written(path) as beside, beside.open("wb") as file:
        file.write(_FIRST_LINE.format(0, digest.hexdigest()).encode())  # it is replaced below
        for part in (header, *map(_bytes, arrays.values())):
            digest.update(part)
            file.write(part)
        file.seek(0)
        file.write(_FIRST_LINE.format(len(header) + end, digest.hexdigest()).encode())
        file.flush()
        os.fsync(file.fileno())


def read_checkpoint(path: Path) -> tuple[Mapping[str, np.ndarray], dict[str, Any]]:
    """The arrays, each of which is read when it is asked for, and the facts of a checkpoint.

    Args:
      path: a file of `write_checkpoint`.

    Raises:
      DamagedError: for a file that is not as it was written.
    """
    try:
        with open_regular(path) as file:
            match = _PATTERN.fullmatch(file.readline(200))
            if match is None:
                raise ValueError("its first line is not that of a checkpoint of this version")
            start = file.tell()
            size = os.fstat(file.fileno()).st_size - start
            if size != int(match[1]):
                raise ValueError(f"{size} bytes follow its first line, not {int(match[1])}")
            if hashlib.file_digest(file, "sha256").hexdigest() != match[2].decode():
                raise ValueError("its checksum is wrong")
            file.seek(start)
            header = json.loads(file.readline())
            return _Arrays(path, header["arrays"], file.tell()), header["facts"]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DamagedError(f"{str(path)!r} is damaged ({reason})") from None


class _Arrays(Mapping[str, np.ndarray]):
    """Arrays in a file that has been checked, so that memory holds one of them at a time."""

    def __init__(self, path: Path, table: dict[str, Any], start: int):
        self.path, self.table, self.start = path, table, start

    def __getitem__(self, name: str) -> np.ndarray:
        dtype, shape, first = self.table[name]
        array = np.empty(shape, np.dtype(dtype))
        with open_regular(self.path) as file:
            file.seek(self.start + first)
            if file.readinto(_bytes(array)) != array.nbytes:
                raise DamagedError(f"{str(self.path)!r} was cut off while it was read")
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


def _bytes(array):
    """An array as a buffer of its bytes; NumPy's own does not know all dtypes of jax."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
