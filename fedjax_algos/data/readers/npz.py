"""Reader of NumPy's .npz files with plain arrays or concatenated JPEG files."""

import itertools
import os
import zipfile
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, check_array_bytes, open_regular, reading
from fedjax_algos.core.options import Count
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.federated_data import datasets
from fedjax_algos.data.images import open_image

USERS = ("user_train", "client_train", "writer_train")  # names of the array of natural clients


@datasets.register
def npz(*, path: PathLike, users: str | None = None, num_classes: Count | None = None) -> Dataset:
    """A data set in one .npz file; other arrays in the file are not read.

    The file contains `x_train` [n, ...], `y_train` [n], `x_test` [m, ...] and `y_test` [m]. Instead
    of `x_train` it may contain `jpeg_train` uint8[bytes], concatenated grey or RGB files, and
    `offset_train` [n + 1], the start of each file; likewise for the test set. Images are then
    decoded to uint8[n, height, width] or uint8[n, height, width, 3].

    The examples are held in memory once, in the file's dtype. Pickled objects are rejected.

    Args:
      path: the file.
      users: the array of the training examples' natural clients, [n]. None for the first one that
        exists of `user_train`, `client_train` and `writer_train`.
      num_classes: at least 1; one more than the largest label if None.
    """
    kind = "an .npz file of arrays"
    fix = "write plain arrays with np.savez, or fetch the file again"
    arrays: dict[str, Any] = read_arrays(path, kind, fix, lambda names: _required(names, users))
    for part in ("train", "test"):
        if f"x_{part}" not in arrays:
            files, offsets = arrays.pop(f"jpeg_{part}"), arrays.pop(f"offset_{part}")
            arrays[f"x_{part}"] = _decode(files, offsets, f"{os.fspath(path)}: jpeg_{part}", fix)
    return from_arrays(**arrays, num_classes=num_classes, source=os.fspath(path))


def read_arrays(
    path: PathLike,
    kind: str,
    fix: str,
    choose: Callable[[Collection[str]], Mapping[str, str]] | None = None,
) -> dict[str, np.ndarray]:
    """Reads the arrays of an archive by role; `choose` gives their names, None reads all."""
    # a damaged archive raises many types, and so does a header, because NumPy parses it as Python
    with reading(path, kind, fix, Exception), open_regular(path) as file:
        archive = zipfile.ZipFile(file)
        members = {each.filename.removesuffix(".npy"): each for each in archive.infolist()}
        require(len(members) == len(archive.infolist()), "it has an array twice")
        chosen = choose(members) if choose else {name: name for name in members}
        listed = ", ".join(sorted(members))[:200]
        for role, name in chosen.items():
            rename = f"; write it with np.savez(FILE, {role}=...)" * (role == name)
            require(name in members, f"it has no array {name!r}, only {listed}{rename}")
        size = sum(members[name].file_size for name in chosen.values())
        check_array_bytes("its arrays", size, "give a smaller file")
        arrays = {}
        for role, name in chosen.items():
            with archive.open(members[name]) as member:
                arrays[role] = np.lib.format.read_array(member, allow_pickle=False)
                require(not member.read(1), f"{name!r} is larger than its header says")
        return arrays


def _required(names: Collection[str], users: str | None) -> dict[str, str]:
    """Returns the names of the arrays to read, by role."""
    required = {}
    for part in ("train", "test"):
        is_jpeg = f"x_{part}" not in names and f"jpeg_{part}" in names
        for stem in ("jpeg", "offset", "y") if is_jpeg else ("x", "y"):
            required[f"{stem}_{part}"] = f"{stem}_{part}"
    users = users or next((name for name in USERS if name in names), None)
    return required | ({"users": users} if users else {})


def _decode(files: np.ndarray, offsets: np.ndarray, source: str, fix: str) -> np.ndarray:
    """Decodes uint8[n, height, width(, 3)]; image i is `files[offsets[i]:offsets[i + 1]]`."""
    with reading(source, "JPEG images", fix):
        found = f"they are {files.dtype}{list(files.shape)}"
        require(files.dtype == np.uint8 and files.ndim == 1, f"{found}, not uint8[bytes]")
        valid: Any = offsets.ndim == 1 and offsets.dtype.kind in "ui" and len(offsets) > 1
        valid = valid and offsets[0] == 0 and offsets[-1] == len(files)
        valid = valid and (offsets[:-1] < offsets[1:]).all()  # np.diff of unsigned ones would wrap
        require(valid, f"their offsets are not [images + 1] integers that ascend to {len(files)}")
    count, images = len(offsets) - 1, np.empty(0, np.uint8)
    for i, (start, stop) in enumerate(itertools.pairwise(offsets)):
        with reading(f"{source}, image {i}", "a JPEG image", fix, Exception):
            file = open_image(files[start:stop].tobytes(), "JPEG")
            require(file.mode in ("L", "RGB"), f"its colours are {file.mode}, not grey or RGB")
            image = np.asarray(file)
            if not i:
                check_array_bytes("its images", image.size * count, "give fewer or smaller ones")
                images = np.empty((count, *image.shape), np.uint8)
            first = images.shape[1:]
            require(image.shape == first, f"it has shape {image.shape}, the first one {first}")
        images[i] = image
    return images
