"""Reader of NumPy's .npz files with plain arrays or concatenated JPEG files."""

import itertools
import math
import os
import warnings
import zipfile
import zlib
from typing import Any, BinaryIO

import numpy as np

try:
    from lzma import LZMAError
except ImportError:  # this Python is built without it and cannot read such members
    LZMAError = zlib.error  # type: ignore[misc,assignment]

from fedjax_algos.core.files import PathLike, check_array_bytes, first_line, open_regular, reading
from fedjax_algos.core.options import Count
from fedjax_algos.core.reprs import printable
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.images import open_image
from fedjax_algos.data.registry import datasets

_ENCRYPTED = 1  # bit of a zip member's flags
_READ_HEADER = {  # by version; later ones are for structured types
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
ARCHIVE_ERRORS = (  # what a damaged archive raises beside ValueError and OSError
    zipfile.BadZipFile,  # no archive, or a wrong checksum
    zlib.error,  # a damaged deflate stream; a damaged bzip2 stream is an OSError
    LZMAError,  # a damaged LZMA stream
    # zipfile: a compression or a zip version that it does not support. Its base class
    # RuntimeError is not caught, because faults of our own raise that, too.
    NotImplementedError,
)
USERS = ("user_train", "client_train", "writer_train")  # names of the array of natural clients


@datasets.register
def npz(*, path: PathLike, users: str | None = None, num_classes: Count | None = None) -> Dataset:
    """A data set in one .npz file, of which only the required arrays are read.

    The file contains `x_train` [n, ...], `y_train` [n], `x_test` [m, ...] and `y_test` [m]. Instead
    of `x_train` it may contain `jpeg_train` uint8[bytes], concatenated grey or RGB files, and
    `offset_train` [n + 1], the start of each file; likewise for the test set. Images are then
    decoded to uint8 [n, height, width] or [n, height, width, 3].

    The examples are held in memory once, in the type of the file. Pickled objects are rejected.
    Sizes are computed from the headers before anything is read.

    Args:
      path: the file.
      users: name of the array of the training examples' natural clients, [n]; if None, the first
        that exists of `user_train`, `client_train` and `writer_train`.
      num_classes: at least 1; one more than the largest label if None.

    Raises:
      ValueError: if the file is missing, damaged, too large for the memory or lacks an array, or
        if an array is invalid.
    """
    arrays = _load(path, users)
    for part in ("train", "test"):
        if f"x_{part}" not in arrays:
            files, offsets = arrays.pop(f"jpeg_{part}"), arrays.pop(f"offset_{part}")
            arrays[f"x_{part}"] = _decode(files, offsets, part, path)
    return from_arrays(**arrays, num_classes=num_classes, source=os.fspath(path))


def _load(path: PathLike, users: str | None) -> dict[str, Any]:
    """The arrays that the data set needs, by role."""
    fix = "write plain arrays with np.savez, or fetch the file again"
    with reading(path, "an .npz file of arrays", fix, *ARCHIVE_ERRORS), open_regular(path) as file:
        archive, members = open_archive(file)
        required = _required(set(members), users)
        found = {role: members[name] for role, name in required.items() if name in members}
        size = sum(array_bytes(archive, member) for member in found.values())
        check_array_bytes("its arrays", size, "leave examples out")
        arrays = {role: read_member(archive, member) for role, member in found.items()}
    missing = [name for name in required.values() if name not in members]
    if missing:
        names = printable(", ".join(sorted(members)), longest=200)
        raise ValueError(
            f"{os.fspath(path)}: has no array {missing[0]!r}, only {names}; save it under that name"
        )
    return arrays


def open_archive(file: BinaryIO) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
    """An archive of arrays, and its members by the name of the array."""
    if not zipfile.is_zipfile(file):
        raise ValueError("it is no archive, or truncated")
    archive = zipfile.ZipFile(file)
    # asked for in the flags, because reading an encrypted member raises a bare RuntimeError
    if any(member.flag_bits & _ENCRYPTED for member in archive.infolist()):
        raise ValueError("it is encrypted")
    members = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name in members:
            raise ValueError(f"it has the array {name!r} twice")
        members[name] = member
    return archive, members


def array_bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """The size of an array by its header, which must be that of the member."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _READ_HEADER:
            raise ValueError(f"{member.filename!r} has version {version} of NumPy's format")
        try:
            shape, _, dtype = _READ_HEADER[version](file)
        except Exception as error:  # NumPy parses it as Python, which raises many types
            reason = first_line(error)
            raise ValueError(f"{member.filename!r} has no valid header, {reason}") from error
        size = math.prod(shape) * dtype.itemsize
        # NumPy allocates what the header says; objects, which it refuses, have another size
        if not dtype.hasobject and (
            min(shape, default=0) < 0 or file.tell() + size != member.file_size
        ):
            raise ValueError(
                f"{member.filename!r} is {dtype}{list(shape)} by its header, but has "
                f"{member.file_size} bytes"
            )
    return size


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """An array whose `array_bytes` are known to fit; its checksum is compared."""
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _required(names: set[str], users: str | None) -> dict[str, str]:
    """The names of the arrays to read, by role."""
    required = {}
    for part in ("train", "test"):
        is_jpeg = f"x_{part}" not in names and f"jpeg_{part}" in names
        for stem in ("jpeg", "offset", "y") if is_jpeg else ("x", "y"):
            required[f"{stem}_{part}"] = f"{stem}_{part}"
    users = users or next((name for name in USERS if name in names), None)
    return required | ({"users": users} if users else {})


def _decode(files: np.ndarray, offsets: np.ndarray, part: str, path: PathLike) -> np.ndarray:
    """uint8[n, height, width(, 3)]: image i is `files[offsets[i]:offsets[i + 1]]`."""
    source = f"{os.fspath(path)}: jpeg_{part}"
    if files.dtype != np.uint8 or files.ndim != 1:
        raise ValueError(f"{source} is {files.dtype}{list(files.shape)}; give uint8[bytes]")
    valid = offsets.ndim == 1 and offsets.dtype.kind in "ui" and len(offsets) > 1
    valid = valid and offsets[0] == 0 and offsets[-1] == len(files)
    if not (valid and (offsets[:-1] < offsets[1:]).all()):  # np.diff of unsigned ones would wrap
        raise ValueError(
            f"{source} and offset_{part} do not match; give [images + 1] increasing integers from "
            f"0 to {len(files)}"
        )
    images = np.empty(0, np.uint8)
    for i, (start, stop) in enumerate(itertools.pairwise(offsets)):
        image = _image(files[start:stop].tobytes(), f"{source}, image {i}")
        if not i:
            size = image.size * (len(offsets) - 1)
            check_array_bytes(f"{source}: its images", size, "give fewer or smaller ones")
            images = np.empty((len(offsets) - 1, *image.shape), np.uint8)
        if image.shape != images.shape[1:]:
            raise ValueError(
                f"{source}, image {i} has shape {list(image.shape)}, the first one "
                f"{list(images.shape[1:])}; give all images one shape"
            )
        images[i] = image
    return images


def _image(content: bytes, name: str) -> np.ndarray:
    from PIL import Image

    errors = (SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning)
    with warnings.catch_warnings(), reading(name, "a JPEG image", "write it again", *errors):
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = open_image(content, "JPEG")
        if image.mode not in ("L", "RGB"):
            raise ValueError(f"its colours are {image.mode}, not grey or RGB")
        return np.asarray(image)
