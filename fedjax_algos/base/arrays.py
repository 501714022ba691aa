"""Reads and writes arrays by name in .npz files, which plain NumPy can read; nothing is pickled.

Such a file has a checksum (CRC-32) of each array. Types that NumPy does not have, such as bfloat16,
are stored as a record with one field: its name is the type, and its value has the bits.

A sealed file also has facts, as the bytes of a JSON text in the array `facts`. It ends with the
SHA-256 of all its bytes, in 64 digits, which NumPy ignores. We refuse a damaged sealed file before
we use anything in it.
"""

import hashlib
import json
import os
import zipfile
from collections import UserDict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedjax_algos.base import files
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, open_regular, reading, written

_FACTS, _DIGITS = "facts", 64


def write_arrays(file: IO[bytes], arrays: Mapping[str, Any]) -> None:
    """Writes arrays of numbers to an open file."""
    stored: Any = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    np.savez(file, **{name: array.view(_storage(array.dtype)) for name, array in stored.items()})


def write_sealed(path: Path, arrays: Mapping[str, Any], facts: Any) -> None:
    """Writes a sealed file of arrays and JSON facts atomically."""
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    with written(path) as beside, beside.open("w+b") as file:
        write_arrays(file, {**arrays, _FACTS: text})
        file.seek(0)
        file.write(hashlib.file_digest(file, "sha256").hexdigest().encode())
        file.flush()
        os.fsync(file.fileno())


def read_sealed(path: PathLike, kind: str, fix: str) -> tuple["ArrayFile", Any]:
    """Returns the arrays, read one by one, and the facts; ValueError for a damaged file."""
    with open_regular(path) as file:
        end, digest = os.fstat(file.fileno()).st_size - _DIGITS, hashlib.sha256()
        for start in range(0, end, files.CHUNK):
            digest.update(file.read(min(files.CHUNK, end - start)))
        require(file.read() == digest.hexdigest().encode(), "its checksum is wrong")
    arrays = ArrayFile(path, kind, fix)
    size = sum(member.file_size for member in arrays.data.values())
    require(size <= end, "its arrays are compressed")
    return arrays, json.loads(arrays.pop(_FACTS).tobytes())


class ArrayFile(UserDict[str, Any]):
    """The arrays of an .npz file, each read on access; FileError if it is damaged."""

    def __init__(self, path: PathLike, kind: str, fix: str):
        # many types: a damaged archive raises them, and so does NumPy, which parses a header
        self._reading = partial(reading, path, kind, fix, Exception)
        with self._reading():
            files.require_regular(path)
            self._archive = zipfile.ZipFile(path)
            members = self._archive.infolist()
            self.data = {member.filename.removesuffix(".npy"): member for member in members}
            require(len(self.data) == len(members), "it has an array twice")

    def check_memory(self, names: Iterable[str]) -> None:
        """Raises TooLargeError if these arrays do not fit into memory together."""
        size = sum(self.data[name].file_size for name in names)
        with self._reading():
            files.check_array_bytes("its arrays", size, "give a smaller file")

    def __getitem__(self, name: str) -> np.ndarray:
        member = self.data[name]
        with self._reading(), self._archive.open(member) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            require(not file.read(1), f"{name!r} is larger than its header says")
            if array.dtype.names is None:
                return array
            dtype = np.dtype(array.dtype.names[0])
            require(array.dtype == _storage(dtype), f"{name!r} is of type {array.dtype}")
            return array.view(dtype)


def _storage(dtype):
    """Returns the dtype in the file: a record for types that NumPy does not have."""
    return dtype if dtype.kind in "biufc" else np.dtype([(dtype.name, f"u{dtype.itemsize}")])
