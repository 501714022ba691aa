"""Readers of arrays in files: NumPy's .npz, IDX as of MNIST and EMNIST, CIFAR's binary version."""

import gzip
import io
import itertools
import math
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from fedjax_algos.base import files
from fedjax_algos.base.arrays import ArrayFile
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, check_array_bytes, reading
from fedjax_algos.core.options import Count
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.federated_data import datasets
from fedjax_algos.data.images import open_image
from fedjax_algos.data.partitioning.simple import CIFAR100_COARSE

USERS = ("user_train", "client_train", "writer_train")  # names of the array of natural clients
MAX_BYTES = 2**28  # of all files of CIFAR together; the data sets have 184 MB
_FIX = "fetch the file again"
_NPZ = "an .npz file of arrays"
_NPZ_FIX = "write plain arrays with np.savez, or fetch the file again"
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}  # of IDX
_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}
_CIFAR, _CIFAR_FIX = "the binary version of CIFAR", "fetch the binary version again"
_PIXELS = 3 * 32 * 32


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
    stored = ArrayFile(path, _NPZ, _NPZ_FIX)
    users = users or next((name for name in USERS if name in stored), None)
    roles = {"users": users} if users else {}
    for part in ("train", "test"):
        is_jpeg = f"x_{part}" not in stored and f"jpeg_{part}" in stored
        for stem in ("jpeg", "offset", "y") if is_jpeg else ("x", "y"):
            roles[f"{stem}_{part}"] = f"{stem}_{part}"
    listed = ", ".join(sorted(stored))[:200]
    with reading(path, _NPZ, _NPZ_FIX):
        for name in roles.values():
            fix = f"write it with np.savez(FILE, {name}=...)"
            require(name in stored, f"it has no array {name!r}, only {listed}; {fix}")
    stored.check_memory(roles.values())
    arrays: dict[str, Any] = {role: stored[name] for role, name in roles.items()}
    for part in ("train", "test"):
        if f"x_{part}" not in arrays:
            jpegs, offsets = arrays.pop(f"jpeg_{part}"), arrays.pop(f"offset_{part}")
            arrays[f"x_{part}"] = _decode(jpegs, offsets, f"{os.fspath(path)}: jpeg_{part}")
    return from_arrays(**arrays, num_classes=num_classes, source=os.fspath(path))


def _decode(jpegs: np.ndarray, offsets: np.ndarray, source: str) -> np.ndarray:
    """Decodes uint8[n, height, width(, 3)]; image i is `jpegs[offsets[i]:offsets[i + 1]]`."""
    with reading(source, "JPEG images", _NPZ_FIX):
        valid: Any = offsets.ndim == 1 and offsets.dtype.kind in "ui" and len(offsets) > 1
        valid = valid and offsets[0] == 0 and offsets[-1] == jpegs.size
        valid = valid and (offsets[:-1] < offsets[1:]).all()  # np.diff of unsigned ones would wrap
        require(valid, f"their offsets are not [images + 1] integers that ascend to {jpegs.size}")
    count, images = len(offsets) - 1, np.empty(0, np.uint8)
    for i, (start, stop) in enumerate(itertools.pairwise(offsets)):
        with reading(f"{source}, image {i}", "a JPEG image", _NPZ_FIX, Exception):
            file = open_image(jpegs[start:stop].tobytes(), "JPEG")
            image = np.asarray(file)
            if not i:
                check_array_bytes("its images", image.size * count, "give fewer or smaller ones")
                images = np.empty((count, *image.shape), np.uint8)
            fits = file.mode in ("L", "RGB") and image.shape == images.shape[1:]
            found = f"it is {file.mode} of shape {image.shape}"
            require(fits, f"{found}; give grey or RGB images, all {images.shape[1:]} as the first")
        images[i] = image
    return images


@datasets.register
def idx(*, path: PathLike, train: str = "train", test: str = "t10k") -> Dataset:
    """A data set in four IDX files, gzipped or not, such as MNIST, Fashion-MNIST or KMNIST.

    They are `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and
    `t10k-labels-idx1-ubyte`, with `.gz` or without, or with a dot as in `train-images.idx3-ubyte`.
    "x" is [n, ...] in the type of the file, uint8[n, 28, 28] for these three.

    Args:
      path: the folder, such as torchvision's `MNIST/raw`.
      train, test: the beginnings of the files' names.

    Source: LeCun, Cortes, Burges, "The MNIST database of handwritten digits", which describes the
    format, https://web.archive.org/web/2021/http://yann.lecun.com/exdb/mnist/;
    https://github.com/zalandoresearch/fashion-mnist.
    """
    arrays = _read_idx(path, train) + _read_idx(path, test)
    return from_arrays(*arrays, source=os.fspath(path))


@datasets.register
def emnist(
    *,
    path: PathLike,
    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "byclass",
) -> Dataset:
    """EMNIST: handwritten digits and letters of 28x28 pixels, in the IDX files of its authors.

    Training and test examples are 697,932 and 116,323 in 62 classes (byclass) or 47 (bymerge),
    112,800 and 18,800 in 47 (balanced), 124,800 and 20,800 in 26 (letters), 240,000 and 40,000 in
    10 (digits), 60,000 and 10,000 in 10 (mnist). The files' images are transposed; here they are
    upright: "x" is uint8[n, 28, 28]. The labels of letters, 1 to 26 in the files, become 0 to 25.
    The files do not name the writers; `leaf` with task=femnist does.

    Args:
      path: the folder with `emnist-byclass-train-images-idx3-ubyte` and so on, with `.gz` or not.
      split: one of the six data sets.

    Source: Cohen, Afshar, Tapson, van Schaik, "EMNIST: an extension of MNIST to handwritten
    letters", 2017, https://arxiv.org/abs/1702.05373;
    https://www.nist.gov/itl/products-and-services/emnist-dataset.
    """
    first = np.uint8(split == "letters")  # the label of the first class; smaller ones wrap around
    arrays = []
    for part in ("train", "test"):
        images, labels = _read_idx(path, f"emnist-{split}-{part}")
        with reading(path, f"EMNIST's part {split}-{part}", _FIX):
            arrays += [images.transpose(0, 2, 1), labels - first]
    return from_arrays(*arrays, num_classes=_CLASSES[split], source=os.fspath(path))


def _read_idx(folder: PathLike, start: str) -> list[np.ndarray]:
    """Reads the images [n, ...] and labels [n] of one part of a data set."""
    arrays = []
    for name in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        stems = f"{start}-{name}", f"{start}-{name.replace('-', '.', 1)}"
        names = [stem + end for stem in stems for end in (".gz", "")]
        with reading(folder, "a folder of IDX files", "give the folder that holds them"):
            listed = sorted(os.listdir(folder))
            path = next((Path(folder, each) for each in names if each in listed), Path())
            require(path.name, f"it has no {names[1]} but {', '.join(listed)[:200] or 'nothing'}")
        with reading(path, "an IDX file", _FIX, zlib.error), files.open_regular(path) as file:
            is_packed = file.peek(2)[:2] == b"\x1f\x8b"  # regardless of its name
            arrays.append(_idx_array(gzip.GzipFile(fileobj=file) if is_packed else file))
    return arrays


def _idx_array(file: Any) -> np.ndarray:
    """Reads the array of an IDX file; its header gives the size."""
    magic = file.read(4)  # two zeros, the type, the number of axes
    known = len(magic) == 4 and magic[:2] == b"\0\0" and magic[2] in _TYPES
    require(known, "it begins with other bytes")
    shape = np.frombuffer(file.read(4 * magic[3]), ">u4").tolist()
    dtype = np.dtype(_TYPES[magic[2]])
    size = math.prod(shape) * dtype.itemsize
    check_array_bytes("its array", size, "give fewer examples")
    content = file.read(size + 1)
    found = f"it should have {size} bytes, {dtype.name}{shape}, by its header"
    require(len(content) == size, f"{found}, but has {'more' if len(content) > size else 'fewer'}")
    return np.frombuffer(content, dtype).reshape(shape)


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
    *parts, (x_test, y_test) = _read_cifar(path, (*train, "test_batch.bin"), 1)
    x_train, y_train = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
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
    for x, both in _read_cifar(path, ("train.bin", "test.bin"), 2):
        coarse, fine = both.T
        with reading(path, _CIFAR, _CIFAR_FIX, IndexError):
            known = coarse_of[fine] == coarse
            require(known.all(), f"a fine label of record {known.argmin()} has another coarse one")
        arrays += [x, fine if labels == "fine" else coarse]
    return from_arrays(*arrays, num_classes=num_classes, source=os.fspath(path))


def _read_cifar(
    path: PathLike, names: Sequence[str], num_labels: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields each file's images uint8[n, 32, 32, 3] and labels uint8[n, num_labels]."""
    contents: dict[str, bytes] = {}
    with reading(path, _CIFAR, _CIFAR_FIX, tarfile.TarError, zlib.error):
        if os.path.isdir(path):
            for name in names:
                with reading(Path(path, name), _CIFAR, _CIFAR_FIX):
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
        with reading(f"{os.fspath(path)}: {name}", _CIFAR, _CIFAR_FIX):
            records = np.frombuffer(contents[name], np.uint8).reshape(-1, num_labels + _PIXELS)
        images = records[:, num_labels:].reshape(-1, 3, 32, 32)  # by channel
        yield np.ascontiguousarray(images.transpose(0, 2, 3, 1)), records[:, :num_labels]
