"""IDX files: MNIST's format, and EMNIST's."""

import gzip
import os
import struct

import numpy as np
import pytest
from bad_input_helpers import refused

from fedjax_algos.core import files
from fedjax_algos.data import datasets
from fedjax_algos.data.readers.idx import emnist, idx

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (5, 28, 28), np.uint8), np.array([3, 0, 4, 1, 9], np.uint8)
X_TEST, Y_TEST = RNG.integers(0, 256, (2, 28, 28), np.uint8), np.array([5, 2], np.uint8)


def encoded(array, kind=0x08):
    """The bytes of an IDX file, by the description of the format."""
    lengths = b"".join(struct.pack(">I", n) for n in array.shape)
    return struct.pack(">BBBB", 0, 0, kind, array.ndim) + lengths + array.tobytes()


def write(folder, arrays, train="train", test="t10k", compressed=False):
    names = (f"{part}-{kind}" for part in (train, test) for kind in ("images-idx3", "labels-idx1"))
    for name, array in zip(names, arrays, strict=True):
        content = array if isinstance(array, bytes) else encoded(array)
        path = folder / (f"{name}-ubyte" + ".gz" * compressed)
        path.write_bytes(gzip.compress(content, mtime=0) if compressed else content)
    return folder


@pytest.mark.parametrize("compressed", [False, True])
def test_mnist(tmp_path, compressed):
    data = datasets.make(f"idx:{write(tmp_path, (X, Y, X_TEST, Y_TEST), compressed=compressed)}")
    np.testing.assert_array_equal(data.train["x"], X)
    np.testing.assert_array_equal(data.test["x"], X_TEST)
    assert data.train["x"].dtype == np.uint8
    assert data.train["y"].tolist() == Y.tolist()
    assert data.test["y"].tolist() == Y_TEST.tolist()
    assert data.num_classes == 10


@pytest.mark.parametrize(
    ("kind", "dtype"), [(0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4")]
)
def test_other_types_and_shapes(tmp_path, kind, dtype):
    x = np.array([[[1, -2]], [[3, 4]]], dtype)
    write(tmp_path, (encoded(x, kind), Y[:2], encoded(x, kind), Y[:2]), "a", "b", compressed=True)
    data = idx(path=tmp_path, train="a", test="b")
    np.testing.assert_array_equal(data.train["x"], x)
    assert data.train["x"].dtype == np.dtype(dtype).newbyteorder("=")
    assert data.example_shape == (1, 2)


def emnist_files(folder, split, labels, **options):
    names = (f"emnist-{split}-train", f"emnist-{split}-test")
    return write(folder, (X, labels, X_TEST, labels[:2]), *names, **options)


@pytest.mark.parametrize(
    ("split", "labels", "classes"),
    [("byclass", (61, 0, 10, 36, 9), 62), ("balanced", (46, 1, 2, 3, 4), 47), ("digits", Y, 10)],
)
def test_emnist_is_upright(tmp_path, split, labels, classes):
    emnist_files(tmp_path, split, np.array(labels, np.uint8), compressed=split == "byclass")
    data = emnist(path=tmp_path, split=split)
    assert data.train["x"][3, 7, 20] == X[3, 20, 7]
    np.testing.assert_array_equal(data.test["x"], np.swapaxes(X_TEST, 1, 2))
    assert data.train["x"].flags.c_contiguous
    assert data.train["y"].tolist() == list(labels)
    assert data.num_classes == classes


def test_labels_of_emnist(tmp_path):
    """The letters begin with 1 in the file."""
    emnist_files(tmp_path, "letters", np.array([1, 26, 2, 3, 4], np.uint8))
    data = emnist(path=tmp_path, split="letters")
    assert (data.train["y"].tolist(), data.num_classes) == ([0, 25, 1, 2, 3], 26)
    for labels in ([0, 1, 2, 3, 4], [1, 27, 2, 3, 4]):
        emnist_files(tmp_path, "letters", np.array(labels, np.uint8))
        with pytest.raises(ValueError, match=r"labels uint8 from 0; fetch|has label 26 in exam"):
            emnist(path=tmp_path, split="letters")
    emnist_files(tmp_path, "mnist", Y[:, None])
    with pytest.raises(ValueError, match=r"y_train has shape \[5, 1\]"):
        emnist(path=tmp_path, split="mnist")


BAD = [
    encoded(X)[:-1],
    encoded(X) + b"a",
    b"\x01" + encoded(X)[1:],
    encoded(X, 0x07),
    encoded(X)[:3],
    encoded(X)[:9],
    b"",
    encoded(X[:4]),
    encoded(X[..., :9]),
    encoded(X[:0]),
    struct.pack(">BBBB", 0, 0, 8, 200) + bytes(800),
]


def test_damaged_files_are_refused(tmp_path):
    for number, content in enumerate(BAD):
        for compressed in (False, True):
            folder = tmp_path / f"{number}{compressed}"
            folder.mkdir()
            write(folder, (content, Y, X_TEST, Y_TEST), compressed=compressed)
            with refused(folder):
                idx(path=folder)
    write(tmp_path, (X, Y, X_TEST, Y_TEST), compressed=True)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    content = path.read_bytes()
    for damaged in (b"", content[:-3], content[:15] + b"\xff" * 9, b"text"):
        path.write_bytes(damaged)
        with refused(path):
            idx(path=tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte: there is no such file; check"):
        idx(path=tmp_path)
    os.mkfifo(path)
    with pytest.raises(ValueError, match="it is a pipe or a device, not a regular file"):
        idx(path=tmp_path)


@pytest.mark.usefixtures("bounded")
def test_the_size_is_known_before_the_array_is_read(tmp_path, monkeypatch):
    """A header of 16 bytes may claim 2**96 pixels; 20 MB of zeros take 20 kB."""
    many = struct.pack(">BBBBIII", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    write(tmp_path, (many, Y, X_TEST, Y_TEST))
    with pytest.raises(ValueError, match=r"its array would need .*, more than half of the memory"):
        idx(path=tmp_path)
    write(tmp_path, (struct.pack(">BBBB", 0, 0, 8, 255) + b"\xff" * 1020, Y, X_TEST, Y_TEST))
    with pytest.raises(ValueError, match=r"its array would need .* EB, more than half of the mem"):
        idx(path=tmp_path)  # 2**8160 are more than a float can hold
    monkeypatch.setattr(files, "host_memory", lambda: 10**6)
    large = struct.pack(">BBBBIII", 0, 0, 8, 3, 20, 1000, 1000) + bytes(20 * 10**6)
    write(tmp_path, (large, Y, X_TEST, Y_TEST), compressed=True)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    with pytest.raises(ValueError, match=r"its array would need 20 MB, more than half of the mem"):
        idx(path=tmp_path)
