"""Data sets of arrays: no copies, and the representation."""

import numpy as np

from fedjax_algos.data.dataset import from_arrays

ARRAYS = {
    "x_train": np.arange(60, dtype=np.uint8).reshape(5, 4, 3),
    "y_train": np.array([2, 0, 1, 2, 2], np.int64),
    "x_test": np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
    "y_test": np.array([0.0, 3.0]),
}


def test_arrays_are_not_copied():
    data = from_arrays(*ARRAYS.values())
    assert data.train["x"] is ARRAYS["x_train"]
    x_train, x_test = (ARRAYS[name].astype(np.float32) for name in ("x_train", "x_test"))
    fortran = np.asfortranarray(x_train).astype(">f4", order="K")
    data = from_arrays(fortran, ARRAYS["y_train"], x_test, ARRAYS["y_test"])
    assert data.train["x"].flags.c_contiguous
    assert data.train["x"].dtype == np.float32
    np.testing.assert_array_equal(data.train["x"], x_train)


def test_data_sets_are_shown_in_one_line():
    data = from_arrays(*ARRAYS.values(), users=np.array([7, 7, 9, 9, 9]))
    expected = "train=5, test=2, x=uint8[4, 3], num_classes=4, natural_clients=2"
    assert repr(data) == f"Dataset({expected})"
