"""Readers of CIFAR-10 and CIFAR-100 in the binary version, which needs no pickle."""

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from fedjax_algos.base import files
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, reading
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.federated_data import datasets
from fedjax_algos.data.partitioning.simple import CIFAR100_COARSE

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

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
    https://www.cs.toronto.edu/~kriz/cifar.html.
    """
    train = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
    parts = list(_read(path, (*train, "test_batch.bin"), (10,)))
    x_train, y_train = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    x_test, y_test = parts[-1]
    arrays = x_train, y_train[:, 0], x_test, y_test[:, 0]
    return from_arrays(*arrays, num_classes=10, source=os.fspath(path))


@datasets.register
def cifar100(*, path: PathLike, labels: Literal["fine", "coarse"] = "fine") -> Dataset:
    """CIFAR-100: 60,000 photos of 32x32 pixels in 100 classes, in the binary version.

    "x" is uint8[n, 32, 32, 3]; 50,000 examples are for training, in the order of the file. Each
    has a fine label and one of 20 coarse labels. The fine label must determine the coarse one, as
    the partition `pachinko` assumes; other files are refused.

    Args:
      path: `cifar-100-binary.tar.gz`, or the folder with `train.bin` and `test.bin`.
      labels: the label that "y" is.

    Source: as for `cifar10`.
    """
    coarse_of, num_classes = np.array(CIFAR100_COARSE), {"fine": 100, "coarse": 20}[labels]
    arrays = []
    for x, both in _read(path, ("train.bin", "test.bin"), (20, 100)):
        coarse, fine = both.T
        with reading(path, _KIND, _FIX):
            known = coarse_of[fine] == coarse
            require(known.all(), f"a fine label of record {known.argmin()} has another coarse one")
        arrays += [x, fine if labels == "fine" else coarse]
    return from_arrays(*arrays, num_classes=num_classes, source=os.fspath(path))


def _read(
    path: PathLike, names: tuple[str, ...], limits: tuple[int, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields each file's images uint8[n, 32, 32, 3] and labels uint8[n, len(limits)]."""
    contents: dict[str, bytes] = {}
    with reading(path, _KIND, _FIX, tarfile.TarError, zlib.error):
        if os.path.isdir(path):
            for name in names:
                with reading(Path(path, name), _KIND, _FIX):
                    contents[name] = files.read_file(Path(path, name), MAX_BYTES)
        else:
            with files.open_regular(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
                content = io.BytesIO(files.read_bounded(unpacked, MAX_BYTES))
            with tarfile.open(fileobj=content, mode="r:") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    require(name not in contents, f"it has the file {name} twice")
                    if name in names:
                        extracted = archive.extractfile(member) if member.isreg() else None
                        contents[name] = extracted.read() if extracted else b""
        for name in names:
            require(contents.get(name), f"it has no file {name}")
    for name in names:
        with reading(f"{os.fspath(path)}: {name}", _KIND, _FIX):
            found, size = len(contents[name]), len(limits) + _PIXELS
            require(found % size == 0, f"it has {found} bytes, not a multiple of {size}")
            records = np.frombuffer(contents[name], np.uint8).reshape(-1, size)
            labels = records[:, : len(limits)]
            wrong = labels[(labels >= limits).any(axis=1)][:1].tolist()
            require(not wrong, f"a record has labels {wrong}, which must be below {list(limits)}")
        images = records[:, len(limits) :].reshape(-1, 3, 32, 32)  # by channel
        yield np.ascontiguousarray(images.transpose(0, 2, 3, 1)), labels
