"""Files of arrays: NumPy's .npz, IDX as of MNIST and EMNIST, and CIFAR's binary version."""

import gzip
import tracemalloc

import data_forms as forms
import numpy as np
import pytest
from data_forms import CIFAR10, CIFAR100, COLOURED, DIGITS, FORMS, PIXELS, RNG

from fedjax_algos.data import datasets
from fedjax_algos.data.readers.array_files import cifar10, cifar100, emnist

FORM = FORMS["npz"]
TYPES = [(0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")]  # of IDX
SPLITS = [("byclass", 0, 61), ("balanced", 0, 46), ("digits", 0, 9), ("letters", 1, 26)]  # labels


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_read_exactly(tmp_path, save):
    save(tmp_path / "a.npz", **forms.ARRAYS, writer_train=np.array([30, 7, 7, 30, 9], np.int16))
    data = datasets.make(f"npz:{tmp_path / 'a.npz'}")
    for name, part in (("train", data.train), ("test", data.test)):
        np.testing.assert_array_equal(part["x"], forms.ARRAYS[f"x_{name}"])
        np.testing.assert_array_equal(part["y"], forms.ARRAYS[f"y_{name}"])
        assert (part["x"].dtype, part["y"].dtype) == (np.uint8, np.int32)
    assert (data.num_classes, data.example_shape) == (4, (4, 3))
    assert (data.users.tolist(), data.users.dtype) == ([2, 0, 0, 2, 1], np.int32)


def test_npz_with_users(tmp_path):
    forms.npz(tmp_path, speaker=np.array(["b", "a", "b", "c", "a"]), writer_train=np.arange(5))
    assert FORM.read(tmp_path, users="speaker").users.tolist() == [1, 0, 1, 2, 0]
    assert FORM.read(tmp_path).users.tolist() == [0, 1, 2, 3, 4]
    forms.npz(tmp_path)
    assert FORM.read(tmp_path).users is None
    assert FORM.read(tmp_path, num_classes=9).num_classes == 9


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3)])
def test_npz_of_jpeg_files(tmp_path, shape):
    images = RNG.integers(0, 256, (4, *shape), np.uint8)
    forms.npz(tmp_path, **forms.jpegs(images[:3]), **forms.jpegs(images[3:], "test"))
    pixels = np.stack([forms.decoded(forms.image(each, "JPEG")) for each in images])
    data = FORM.read(tmp_path)
    np.testing.assert_array_equal(data.train["x"], pixels[:3], strict=True)
    np.testing.assert_array_equal(data.test["x"], pixels[3:])


def test_npz_is_held_once(tmp_path):
    x, y = np.zeros((500, 2000), np.float32), np.arange(500)
    forms.npz(tmp_path, x_train=x, y_train=y, x_test=x, y_test=y)
    tracemalloc.start()
    data = FORM.read(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert data.train["x"].nbytes + data.test["x"].nbytes < peak < 1.2 * 2 * x.nbytes


@pytest.mark.parametrize("packed", [False, True])
def test_idx_of_mnist(tmp_path, packed):
    forms.idx(tmp_path, packed=packed)
    data = datasets.make(f"idx:{tmp_path}")
    np.testing.assert_array_equal(data.train["x"], PIXELS[:5], strict=True)
    np.testing.assert_array_equal(data.test["x"], PIXELS[5:])
    np.testing.assert_array_equal(data.train["y"], DIGITS[:5])
    np.testing.assert_array_equal(data.test["y"], DIGITS[5:])
    assert data.num_classes == 10


@pytest.mark.parametrize(("kind", "dtype"), TYPES)
def test_idx_of_other_types_and_shapes(tmp_path, kind, dtype):
    x = np.array([[[1, -2]], [[3, 4]]], dtype)
    content = gzip.compress(forms.idx_bytes(x, kind))
    forms.idx(tmp_path, y=DIGITS[:2], packed=True)
    forms.write(tmp_path, {f"{part}-images-idx3-ubyte.gz": content for part in ("train", "t10k")})
    data = FORMS["idx"].read(tmp_path)
    native = x.astype(x.dtype.newbyteorder("="))
    np.testing.assert_array_equal(data.train["x"], native, strict=True)


@pytest.mark.parametrize(("split", "first", "last"), SPLITS)
def test_emnist_is_upright(tmp_path, split, first, last):
    """The labels of the letters begin with 1 in the file."""
    labels, name = np.array([last, first, 2, 3, 4], np.uint8), f"emnist-{split}"
    forms.idx(tmp_path, y=labels, y_test=labels[:2], train=f"{name}-train", test=f"{name}-test")
    data = emnist(path=tmp_path, split=split)
    np.testing.assert_array_equal(data.train["x"], np.swapaxes(PIXELS[:5], 1, 2))
    np.testing.assert_array_equal(data.test["x"], np.swapaxes(PIXELS[5:], 1, 2))
    assert data.train["x"].flags.c_contiguous
    assert data.train["y"].tolist() == (labels - first).tolist()
    assert data.num_classes == 1 + last - first


@pytest.mark.parametrize(("make", "name"), [(forms.write, ""), (forms.tar, "a.tar.gz")])
def test_cifar(tmp_path, make, name):
    path = tmp_path / name
    make(tmp_path, CIFAR100 | {"x.txt": b""})
    data = cifar100(path=path)
    np.testing.assert_array_equal(data.train["x"], COLOURED[:10])
    np.testing.assert_array_equal(data.test["x"], COLOURED[10:])
    assert data.train["x"].flags.c_contiguous
    assert data.train["y"].tolist() == [fine for _, fine in forms.PAIRS]
    assert (data.test["y"].tolist(), data.num_classes) == ([41, 4], 100)
    coarse = datasets.make(f"cifar100:{path},labels=coarse")
    assert coarse.train["y"].tolist() == [coarse for coarse, _ in forms.PAIRS]
    assert coarse.num_classes == 20
    make(tmp_path, CIFAR10)
    data = cifar10(path=path)
    assert (data.train["y"].tolist(), data.num_classes) == ([1, 9, 2, 9, 3, 9, 4, 9, 5, 9], 10)
    np.testing.assert_array_equal(data.train["x"][::2], COLOURED[1:6])
    np.testing.assert_array_equal(data.test["x"], COLOURED[10:11])
