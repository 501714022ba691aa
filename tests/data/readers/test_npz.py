"""NumPy files: exact values, natural clients, JPEG images."""

import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from data_forms import ARRAYS, FORMS, RNG, decoded, image, jpegs, npz, refused

from fedjax_algos.data import datasets

SHARED = Path(__file__).parents[4] / "shared" / "data"
FORM = FORMS["npz"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_read_exactly(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS, writer_train=np.array([30, 7, 7, 30, 9], np.int16))
    data = datasets.make(f"npz:{tmp_path / 'a.npz'}")
    for part in ("train", "test"):
        x, y = getattr(data, part)["x"], getattr(data, part)["y"]
        np.testing.assert_array_equal(x, ARRAYS[f"x_{part}"])
        np.testing.assert_array_equal(y, ARRAYS[f"y_{part}"])
        assert (x.dtype, y.dtype) == (np.uint8, np.int32)
    assert (data.num_classes, data.example_shape) == (4, (4, 3))
    assert (data.users.tolist(), data.users.dtype) == ([2, 0, 0, 2, 1], np.int32)


def test_users_by_name(tmp_path):
    npz(tmp_path, speaker=np.array(["b", "a", "b", "c", "a"]), writer_train=np.arange(5))
    assert FORM.read(tmp_path, users="speaker").users.tolist() == [1, 0, 1, 2, 0]
    assert FORM.read(tmp_path).users.tolist() == [0, 1, 2, 3, 4]
    npz(tmp_path)
    assert FORM.read(tmp_path).users is None
    assert FORM.read(tmp_path, num_classes=9).num_classes == 9


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3)])
def test_jpeg_files(tmp_path, shape):
    images = RNG.integers(0, 256, (4, *shape), np.uint8)
    npz(tmp_path, **jpegs(images[:3]), **jpegs(images[3:], "test"))
    data, pixels = FORM.read(tmp_path), [decoded(image(each, "JPEG")) for each in images]
    np.testing.assert_array_equal(data.train["x"], pixels[:3])
    np.testing.assert_array_equal(data.test["x"], pixels[3:])
    assert data.train["x"].dtype == np.uint8


def test_a_header_of_a_huge_array(tmp_path):
    content = io.BytesIO()
    np.save(content, ARRAYS["x_train"])
    huge = content.getvalue().replace(b"(5, 4, 3), }" + b" " * 12, b"(9999999999999, 4, 3), }")
    assert len(huge) == len(content.getvalue())
    npz(tmp_path, x_train=huge)
    with refused(tmp_path, "allocate"):
        FORM.read(tmp_path)


@pytest.mark.all
@pytest.mark.skipif(not SHARED.exists(), reason="the data are not beside this checkout")
def test_shared_mnist():
    data = datasets.make(f"npz:{SHARED / 'mnist.npz'}")
    assert data.train["x"].shape == (60000, 28, 28)
    assert data.train["x"].dtype == np.uint8
    assert data.train["y"][:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert (data.num_classes, len(data.test["y"])) == (10, 10000)
    sizes = np.bincount(data.users)
    assert (len(sizes), sizes.min(), sizes.max(), np.median(sizes)) == (539, 19, 131, 116)


def test_examples_are_held_once(tmp_path):
    x = np.zeros((1000, 2000), np.float32)
    npz(tmp_path, x_train=x, y_train=np.arange(1000) % 10, x_test=x[:100], y_test=np.arange(100))
    tracemalloc.start()
    data = FORM.read(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert data.train["x"].nbytes + data.test["x"].nbytes < peak < 1.2 * 1100 * 2000 * 4
