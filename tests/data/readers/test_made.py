"""Data sets that need no file: scikit-learn's digits, and synthetic data."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedjax_algos.data import datasets
from fedjax_algos.data.readers.made import synthetic


def test_digits():
    images, labels = load_digits(return_X_y=True)
    data = datasets["digits"]()
    assert repr(data) == "Dataset(train=1433, test=364, x=float32[64], num_classes=10)"
    found = np.concatenate([data.train["x"], data.test["x"]]).sum(0)
    np.testing.assert_array_equal(found * 16, images.sum(0))
    zeros = np.flatnonzero(labels == 0)
    np.testing.assert_array_equal(data.test["x"][data.test["y"] == 0] * 16, images[zeros[::5]])
    assert np.bincount(data.test["y"]).min() == 35
    assert (data.train["x"].min(), data.train["x"].max()) == (0.0, 1.0)


def test_sizes_users_and_seeds():
    data = datasets.make("synthetic:0.5")
    counts = np.bincount(data.users)
    assert len(counts) == 30
    assert counts.min() >= 45  # nine tenths of at least 50
    assert len(data.test["x"]) >= 30 * 5
    assert (data.example_shape, data.num_classes) == ((60,), 10)
    assert (data.train["x"].dtype, data.train["y"].dtype) == (np.float32, np.int32)
    assert (np.diff(data.users) >= 0).all()
    np.testing.assert_array_equal(synthetic(alpha=0.5).train["x"], data.train["x"])
    assert synthetic(alpha=0.5, seed=2).train["x"].shape != data.train["x"].shape
    for fraction in (0.0001, 0.9999):  # every client is in both parts
        data = synthetic(train_fraction=fraction, clients=5)
        assert len(np.unique(data.users)) == 5
        assert len(data.test["x"]) >= 5


@pytest.mark.all
def test_sizes_are_lognormal_and_inputs_have_falling_variances():
    """log(n - 50) of the examples has mean 4 and deviation 2, but for the rounding."""
    data = synthetic(iid=True, clients=300, train_fraction=0.99, seed=3)
    logs = np.log(np.maximum(np.bincount(data.users) / 0.99 - 50, 0.5))
    assert np.median(logs) == pytest.approx(4, abs=0.3)
    assert np.subtract(*np.percentile(logs, [84, 16])) / 2 == pytest.approx(2, abs=0.4)
    x = data.train["x"]
    np.testing.assert_allclose(x.var(0) / np.arange(1, 61) ** -1.2, 1, atol=0.1)
    np.testing.assert_allclose(x.mean(0), 0, atol=0.05)


@pytest.mark.all
def test_beta_spreads_the_inputs():
    """A client's mean input has variance beta^2 over clients and 1 over features."""
    for beta, expected in ((0.0, pytest.approx(1 / 60, rel=0.5)), (3.0, pytest.approx(9, rel=0.3))):
        data = synthetic(alpha=0, beta=beta, clients=200)
        means = [data.train["x"][data.users == user].mean() for user in range(200)]
        assert np.var(means) == expected


@pytest.mark.all
def test_one_model_serves_all_clients_only_where_iid():
    """Least squares on half of the clients predicts the others where all share a model."""
    for data, low, high in ((synthetic(iid=True), 0.6, 1.0), (synthetic(), 0.0, 0.4)):
        inputs = np.c_[data.train["x"], np.ones(len(data.train["x"]))]
        labels, known = data.train["y"], data.users < 15
        weights = np.linalg.lstsq(inputs[known], np.eye(10)[labels[known]], rcond=None)[0]
        assert low < np.mean((inputs[~known] @ weights).argmax(1) == labels[~known]) < high
