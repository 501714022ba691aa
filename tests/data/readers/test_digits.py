"""The digits of scikit-learn: sizes, scale, and the fixed split."""

import numpy as np

from fedjax_algos.data import datasets


def test_digits():
    digits = datasets["digits"]()
    assert digits.example_shape == (64,)
    assert digits.num_classes == 10
    assert len(digits.train["y"]) + len(digits.test["y"]) == 1797
    assert len(digits.test["y"]) == 364
    assert np.bincount(digits.test["y"]).min() == 35
    assert (digits.train["x"].min(), digits.train["x"].max()) == (0.0, 1.0)
    assert digits.train["x"].dtype == np.float32
    assert repr(digits) == "Dataset(train=1433, test=364, x=float32[64], num_classes=10)"
