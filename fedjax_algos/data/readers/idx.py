"""Readers of IDX files: MNIST and data sets in its format, and EMNIST."""

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, check_array_bytes, open_regular, reading
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.federated_data import datasets

_FIX = "fetch the file again"
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


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
    arrays = _read(path, train) + _read(path, test)
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
    first = np.uint8(split == "letters")  # the label of the first class
    arrays = []
    for part in ("train", "test"):
        images, labels = _read(path, f"emnist-{split}-{part}")
        with reading(path, f"EMNIST's part {split}-{part}", _FIX):
            lowest = labels.min(initial=255)
            fits = images.ndim == 3 and labels.dtype == np.uint8 and lowest >= first
            kinds = f"labels {labels.dtype} from {lowest}"
            require(fits, f"it has images {list(images.shape)} and {kinds}")
        arrays += [images.transpose(0, 2, 1), labels - first]
    return from_arrays(*arrays, num_classes=_CLASSES[split], source=os.fspath(path))


def _read(folder: PathLike, start: str) -> list[np.ndarray]:
    """Reads the images [n, ...] and labels [n] of one part of a data set."""
    arrays = []
    with reading(folder, "a folder of IDX files", _FIX):
        listed = sorted(os.listdir(folder))
    for name in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        dotted = name.replace("-", ".", 1)
        fitting = [f"{start}-{each}{end}" for each in (name, dotted) for end in (".gz", "")]
        path = Path(folder, next((each for each in fitting if each in listed), ""))
        with reading(folder, "a folder of IDX files", "give the folder that holds them"):
            shown = ", ".join(listed)[:200] or "nothing"
            require(path != Path(folder), f"it has no {fitting[1]} but {shown}")
        with reading(path, "an IDX file", _FIX, zlib.error), open_regular(path) as file:
            is_packed = file.peek(2)[:2] == b"\x1f\x8b"  # regardless of its name
            arrays.append(_array(gzip.GzipFile(fileobj=file) if is_packed else file))
    return arrays


def _array(file: Any) -> np.ndarray:
    """Reads the array of an IDX file; its header gives the size."""
    magic = file.read(4)  # two zeros, the type, the number of axes
    known = len(magic) == 4 and magic[:2] == b"\0\0" and magic[2] in _TYPES
    require(known, "it begins with other bytes")
    lengths = file.read(4 * magic[3])
    require(len(lengths) == 4 * magic[3], "it is truncated")
    shape = np.frombuffer(lengths, ">u4").tolist()
    dtype = np.dtype(_TYPES[magic[2]])
    size = math.prod(shape) * dtype.itemsize
    check_array_bytes("its array", size, "give fewer examples")
    content = file.read(size + 1)
    right = f"it is {dtype.name}{shape} by its header, which are {size} bytes"
    require(len(content) == size, f"{right}, but has {'more' if len(content) > size else 'fewer'}")
    return np.frombuffer(content, dtype).reshape(shape)
