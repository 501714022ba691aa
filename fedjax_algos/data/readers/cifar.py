"""Readers of CIFAR-10 and CIFAR-100 in their binary version, which needs no pickle."""

import gzip
import io
import os
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from fedjax_algos.core.files import PathLike, open_regular, read_bounded, read_file, reading
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.partitioning.pachinko import CIFAR100_COARSE
from fedjax_algos.data.registry import datasets

MAX_BYTES = 2**28  # of all files together; the data sets have 184 MB
_KIND = "the binary version of CIFAR"
_FIX = "fetch the binary version again"
_PIXELS = 3 * 32 * 32


@datasets.register
def cifar10(*, path: PathLike) -> Dataset:
    """CIFAR-10: 60,000 photos of 32x32 pixels in ten classes, in the binary version.

    "x" is uint8[n, 32, 32, 3]; 50,000 examples are for training, in the order of the files.

    Args:
      path: `cifar-10-binary.tar.gz`, or the folder with `data_batch_1.bin` to `data_batch_5.bin`
        and `test_batch.bin`.

    Raises:
      ValueError: if a file is missing, damaged or truncated, or has a label that is out of range.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
    https://www.cs.toronto.edu/~kriz/cifar.html.
    """
    train = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
    files = _read(path, (*train, "test_batch.bin"))
    parts = [_records(files[name], (10,), f"{os.fspath(path)}: {name}") for name in files]
    x_train, y_train = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    x_test, y_test = parts[-1]
    arrays = x_train, y_train[:, 0], x_test, y_test[:, 0]
    return from_arrays(*arrays, num_classes=10, source=os.fspath(path))


@datasets.register
def cifar100(*, path: PathLike, labels: Literal["fine", "coarse"] = "fine") -> Dataset:
    """CIFAR-100: 60,000 photos of 32x32 pixels in 100 classes, in the binary version.

    "x" is uint8[n, 32, 32, 3]; 50,000 examples are for training, in the order of the file. Each
    has a fine label and one of 20 coarse labels. The fine label determines the coarse one, as the
    partition `pachinko` assumes; a file where it does not is refused.

    Args:
      path: `cifar-100-binary.tar.gz`, or the folder with `train.bin` and `test.bin`.
      labels: which label "y" is.

    Raises:
      ValueError: if a file is missing, damaged or truncated, has a label that is out of range, or a
        coarse label that is not that of the fine one.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
    https://www.cs.toronto.edu/~kriz/cifar.html.
    """
    coarse_of, num_classes = np.array(CIFAR100_COARSE), {"fine": 100, "coarse": 20}[labels]
    arrays = []
    for name, content in _read(path, ("train.bin", "test.bin")).items():
        source = f"{os.fspath(path)}: {name}"
        x, both = _records(content, (20, 100), source)
        coarse, fine = both.T
        wrong = np.flatnonzero(coarse_of[fine] != coarse)
        if len(wrong):
            raise ValueError(
                f"{source}, record {wrong[0]} has the fine label {fine[wrong[0]]} and the coarse "
                f"label {coarse[wrong[0]]}, not {coarse_of[fine[wrong[0]]]}; {_FIX}"
            )
        arrays += [x, fine if labels == "fine" else coarse]
    return from_arrays(*arrays, num_classes=num_classes, source=os.fspath(path))


def _read(path: PathLike, names: tuple[str, ...]) -> dict[str, bytes]:
    """The contents of files that are in a folder, or in a gzipped tar archive in any folder."""
    contents: dict[str, bytes] = {}
    if os.path.isdir(path):
        for name in names:
            file_path = Path(path, name)
            with reading(file_path, _KIND, _FIX):
                contents[name] = read_file(file_path, MAX_BYTES)
        return contents
    with reading(path, _KIND, _FIX, tarfile.TarError, zlib.error):
        with open_regular(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
            content = io.BytesIO(read_bounded(unpacked, MAX_BYTES))
        with tarfile.open(fileobj=content, mode="r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name in contents:
                    raise ValueError(f"it has the file {name} twice")
                if name in names:
                    extracted = archive.extractfile(member) if member.isreg() else None
                    if extracted is None:
                        raise ValueError(f"{name} is no regular file")
                    contents[name] = extracted.read()
        for name in names:
            if name not in contents:
                raise ValueError(f"it has no file {name}")
    return {name: contents[name] for name in names}


def _records(content: bytes, limits: tuple[int, ...], source: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8[n, 32, 32, 3] and labels uint8[n, len(limits)], each below its limit."""
    size = len(limits) + _PIXELS
    if not content or len(content) % size:
        raise ValueError(f"{source} has {len(content)} bytes, not a multiple of {size}; {_FIX}")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    labels = records[:, : len(limits)]
    valid = (labels < limits).all(axis=1)
    if not valid.all():
        bad = int(valid.argmin())
        raise ValueError(
            f"{source}, record {bad} has labels {labels[bad].tolist()}, which must be below "
            f"{list(limits)}; {_FIX}"
        )
    images = records[:, len(limits) :].reshape(-1, 3, 32, 32)  # by channel
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)), labels
