"""IDX files: MNIST's format, its types, and EMNIST's six sets."""

import gzip

import numpy as np
import pytest
from data_forms import DIGITS, FORMS, PIXELS, idx, idx_bytes

from fedjax_algos.data import datasets
from fedjax_algos.data.readers.idx import emnist


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(tmp_path, packed):
    idx(tmp_path, packed=packed)
    data = datasets.make(f"idx:{tmp_path}")
    np.testing.assert_array_equal(data.train["x"], PIXELS[:5])
    np.testing.assert_array_equal(data.test["x"], PIXELS[5:])
    assert data.train["x"].dtype == np.uint8
    assert data.train["y"].tolist() == DIGITS[:5].tolist()
    assert data.test["y"].tolist() == DIGITS[5:].tolist()
    assert data.num_classes == 10


@pytest.mark.parametrize(
    ("kind", "dtype"), [(0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")]
)
def test_other_types_and_shapes(tmp_path, kind, dtype):
    x = np.array([[[1, -2]], [[3, 4]]], dtype)
    content = gzip.compress(idx_bytes(x, kind))
    idx(tmp_path, y=DIGITS[:2], packed=True)
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(content)
    data = FORMS["idx"].read(tmp_path)
    np.testing.assert_array_equal(data.train["x"], x)
    assert data.train["x"].dtype == np.dtype(dtype).newbyteorder("=")
    assert data.example_shape == (1, 2)


@pytest.mark.parametrize(
    ("split", "labels", "first", "classes"),
    [
        ("byclass", (61, 0, 10, 36, 9), 0, 62), ("balanced", (46, 1, 2, 3, 4), 0, 47),
        ("digits", DIGITS[:5], 0, 10), ("letters", (1, 26, 2, 3, 4), 1, 26),
    ],
)  # fmt: skip
def test_emnist_is_upright(tmp_path, split, labels, first, classes):
    """The labels of the letters begin with 1 in the file."""
    labels, names = np.array(labels, np.uint8), [f"emnist-{split}-{p}" for p in ("train", "test")]
    idx(tmp_path, y=labels, y_test=labels[:2], train=names[0], test=names[1])
    data = emnist(path=tmp_path, split=split)
    np.testing.assert_array_equal(data.train["x"], np.swapaxes(PIXELS[:5], 1, 2))
    np.testing.assert_array_equal(data.test["x"], np.swapaxes(PIXELS[5:], 1, 2))
    assert data.train["x"].flags.c_contiguous
    assert data.train["y"].tolist() == (labels - first).tolist()
    assert data.num_classes == classes
