"""Reader of NumPy's .npz files, of plain arrays or of JPEG files one after another."""

import io
import itertools
import os
import zipfile
import zlib

import numpy as np

try:
    from lzma import LZMAError
except ImportError:  # a Python built without it, which then reads no such member
    LZMAError = zlib.error  # type: ignore[misc,assignment]

from fedjax_algos.data.dataset import Count, Dataset, PathLike, datasets, from_arrays, reading

_ENCRYPTED = 1  # a bit of a member's flags
USERS = ("user_train", "client_train", "writer_train")


@datasets
def npz(*, path: PathLike, users: str | None = None, num_classes: Count | None = None) -> Dataset:
    """A data set in one .npz file, of which only the needed arrays are read.

    The file has `x_train` [n, ...], `y_train` [n], `x_test` [m, ...] and `y_test` [m]. Instead of
    `x_train` it may have `jpeg_train` uint8[bytes], grey or RGB files one after another, and
    `offset_train` [n + 1], where each starts; likewise for the test set. Images are then decoded
    to uint8 [n, height, width] or [n, height, width, 3].

    The examples are held once, in their own type. Pickled objects are refused.

    Args:
      path: the file.
      users: the array of the training examples' client ids, [n]; where None, the first there is of
        `user_train`, `client_train` and `writer_train`, if any.
      num_classes: one more than the largest label where None.

    Raises:
      ValueError: if the file is missing, damaged or lacks an array, or an array is wrong.
    """
    found = _load(path, users)
    for part in ("train", "test"):
        if f"x_{part}" not in found:
            packed = found.pop(f"jpeg_{part}"), found[f"offset_{part}"]
            found[f"x_{part}"] = _decode(*packed, part, path)
    return from_arrays(
        found["x_train"],
        found["y_train"],
        found["x_test"],
        found["y_test"],
        found.get("users"),
        num_classes=num_classes,
        source=os.fspath(path),
    )


def _load(path: PathLike, users: str | None) -> dict[str, np.ndarray]:
    fix = "write plain arrays with np.savez, or fetch the file again"
    damage = (
        zipfile.BadZipFile,  # no archive, or a wrong checksum
        zlib.error,  # a broken stream of deflated bytes; one of bzip2 is an OSError
        LZMAError,  # a broken stream of the third kind
        NotImplementedError,  # a compression, version or flag of the format that zipfile has not
    )
    with reading(path, fix, *damage):
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("it is no .npz, or cut off")
            # reading such a member is a RuntimeError, as are faults that are not the file's
            if any(member.flag_bits & _ENCRYPTED for member in zipfile.ZipFile(file).infolist()):
                raise ValueError("it is encrypted")
        with np.load(path, allow_pickle=False) as arrays:
            names = set(arrays.files)
            wanted = _wanted(names, users)
            found = {role: np.asarray(arrays[n]) for role, n in wanted.items() if n in names}
    lacking = [name for name in wanted.values() if name not in names]
    if lacking:
        raise ValueError(
            f"{os.fspath(path)}: has no array {lacking[0]!r}, only {', '.join(sorted(names))}; "
            "save it under that name"
        )
    return found


def _wanted(names: set[str], users: str | None) -> dict[str, str]:
    """Names of the arrays to read, by what they are."""
    wanted = {}
    for part in ("train", "test"):
        packed = f"x_{part}" not in names and f"jpeg_{part}" in names
        for stem in ("jpeg", "offset", "y") if packed else ("x", "y"):
            wanted[f"{stem}_{part}"] = f"{stem}_{part}"
    users = users or next((name for name in USERS if name in names), None)
    return wanted | ({"users": users} if users else {})


def _decode(files: np.ndarray, offsets: np.ndarray, part: str, path: PathLike) -> np.ndarray:
    """uint8[n, height, width(, 3)]: image i is `files[offsets[i]:offsets[i + 1]]`."""
    names = f"{os.fspath(path)}: jpeg_{part}"
    if files.dtype != np.uint8 or files.ndim != 1:
        raise ValueError(f"{names} is {files.dtype}{list(files.shape)}; give uint8[bytes]")
    fits = offsets.ndim == 1 and offsets.dtype.kind in "ui" and len(offsets) > 1
    if not (fits and offsets[0] == 0 and offsets[-1] == len(files) and _rises(offsets)):
        raise ValueError(
            f"{names} and offset_{part} do not fit; give [images + 1] rising integers from 0 to "
            f"{len(files)}"
        )
    images = np.empty(0, np.uint8)
    for i, (start, stop) in enumerate(itertools.pairwise(offsets)):
        image = _image(files[start:stop].tobytes(), f"{names}, image {i}")
        if not i:
            images = np.empty((len(offsets) - 1, *image.shape), np.uint8)
        if image.shape != images.shape[1:]:
            raise ValueError(
                f"{names}, image {i} has shape {list(image.shape)}, the first "
                f"{list(images.shape[1:])}; bring all to one"
            )
        images[i] = image
    return images


def _rises(offsets: np.ndarray) -> bool:
    return bool((offsets[:-1] < offsets[1:]).all())


def _image(content: bytes, name: str) -> np.ndarray:
    from PIL import Image

    damage = (SyntaxError, Image.DecompressionBombError)
    opened = io.BytesIO(content)
    with reading(name, "write it again", *damage), Image.open(opened, formats=["JPEG"]) as image:
        if image.mode not in ("L", "RGB"):
            raise ValueError(f"its colours are {image.mode}, not grey or RGB")
        return np.asarray(image)
