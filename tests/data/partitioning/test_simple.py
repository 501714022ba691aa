"""Partitions without labels: by quantity, and by natural clients."""

from collections import Counter

import numpy as np
import pytest
from partition_helpers import histogram, make, rows

import fedjax_algos as fa
from fedjax_algos.data import partitions


def test_quantity_sizes_are_dirichlet():
    """Variance (N - 1) / (N^2 (N beta + 1)); clients have the overall label distribution."""
    labels, num_clients, beta = np.arange(4000) % 4, 5, 0.5
    made = [make("quantity", labels, num_clients, s, min_examples=1) for s in range(600)]
    shares = np.array([p.counts() for p in made]) / 4000
    variance = (num_clients - 1) / (num_clients**2 * (num_clients * beta + 1))
    assert shares.var() == pytest.approx(variance, rel=0.06)
    table = histogram(labels, made[0])
    np.testing.assert_allclose(table, table.sum(axis=1, keepdims=True) / 4 + np.zeros(4), atol=50)


def test_quantity_repairs_small_clients():
    assert set(make("quantity", np.zeros(50), 10, 0, beta=1e-6, min_examples=5).counts()) == {5}
    counts = make("quantity", np.zeros(500), 10, 0, beta=1e-6, min_examples=5).counts()
    assert sorted(counts) == [5] * 9 + [455]


# natural


USERS = np.array(["eve", "bob", "eve", "ann", "bob", "eve"])


def test_natural_takes_natural_clients_in_order():
    partition = partitions["natural"](USERS, 3, 0)
    assert [row.tolist() for row in rows(partition)] == [[3], [1, 4], [0, 2, 5]]
    assert partitions["natural"](USERS, 3, 9).digest() == partition.digest()
    large = partitions["natural"](USERS, 2, 0, min_examples=2)
    assert [row.tolist() for row in rows(large)] == [[1, 4], [0, 2, 5]]
    assert fa.federate({"x": np.arange(6)}, large).num_clients == 2


def test_natural_chooses_clients_uniformly_by_the_seed():
    users = np.repeat(np.arange(10) * 7 - 3, np.arange(1, 11))
    chosen = Counter()
    for seed in range(500):
        partition = partitions["natural"](users, 4, seed)
        names = [set(users[row]) for row in rows(partition)]
        assert all(len(name) == 1 for name in names)
        order = [int(name.pop()) for name in names]
        assert order == sorted(set(order))
        assert [np.sum(users == name) for name in order] == list(partition.counts())
        chosen.update(order)
    assert all(abs(n / 500 - 0.4) < 0.09 for n in chosen.values())


@pytest.mark.parametrize(
    ("users", "num_clients", "message"),
    [
        (USERS, 4, "4 clients are more than the 3 natural clients with at least 1 .*; use at most"),
        (USERS, 0, "num_clients=0 is out of range"),
        (USERS.reshape(2, 3), 2, r"shape \(2, 3\)"),
    ],
)
def test_natural_rejects_impossible_arguments(users, num_clients, message):
    with pytest.raises(ValueError, match=message):
        partitions["natural"](users, num_clients, 0)
