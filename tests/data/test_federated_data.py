import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_algos as fa
from fedjax_algos.data import datasets, partitions

labels = st.integers(0, 2**31).map(lambda seed: np.random.default_rng(seed).integers(0, 7, 400))


@settings(deadline=None, max_examples=60)
@given(labels, st.integers(1, 60), st.integers(0, 99), st.sampled_from(["iid", "dirichlet"]))
def test_partitions_divide_all_examples(labels, num_clients, seed, name):
    partition = partitions[name](labels, num_clients, seed)
    assert sorted(partition.indices) == list(range(len(labels)))
    assert partition.num_clients == num_clients
    assert partition.counts().min() >= (1 if name == "iid" else 2)
    again = partitions[name](labels, num_clients, seed)
    assert again.digest() == partition.digest()


def test_iid_sizes_differ_by_at_most_one():
    counts = partitions["iid"](np.zeros(103), 10, 0).counts()
    assert sorted(set(counts)) == [10, 11]


@settings(deadline=None, max_examples=30)
@given(labels, st.floats(1e-4, 1e3), st.integers(1, 20), st.integers(0, 99))
def test_dirichlet_repairs_small_clients(labels, alpha, min_examples, seed):
    partition = partitions["dirichlet"](labels, 20, seed, alpha=alpha, min_examples=min_examples)
    assert partition.counts().min() >= min_examples
    assert sorted(partition.indices) == list(range(len(labels)))


def test_small_alpha_is_heterogeneous():
    """The share of a client's most frequent class, from one class each to all alike."""
    labels = np.repeat(np.arange(10), 500)

    def purity(alpha):
        p = partitions["dirichlet"](labels, 20, 0, alpha=alpha)
        rows = np.split(labels[p.indices], p.offsets[1:-1])
        return np.mean([np.bincount(row).max() / len(row) for row in rows])

    assert purity(0.01) > 0.75 > purity(0.3) > 0.25 > purity(100.0)


def test_dirichlet_shares_are_dirichlet():
    """A client's share of a class has mean 1/N and variance (N - 1) / (N^2 (N alpha + 1))."""
    num_clients, alpha, labels = 5, 0.5, np.zeros(1000, int)
    counts = [
        partitions["dirichlet"](labels, num_clients, seed, alpha=alpha, min_examples=1).counts()
        for seed in range(600)
    ]
    shares = np.array(counts) / 1000
    variance = (num_clients - 1) / (num_clients**2 * (num_clients * alpha + 1))
    assert shares.mean() == pytest.approx(1 / num_clients, abs=1e-12)
    assert shares.var() == pytest.approx(variance, rel=0.05)


def test_digest_is_the_same_everywhere():
    partition = fa.Partition.of([np.array([2, 0]), np.array([1])])
    assert partition.digest() == "e7a8e1959a064df49a55385d4c2b921f2bc9661b5431d6b6071b243948b35230"
    assert partition.digest() != fa.Partition.of([np.array([2]), np.array([0, 1])]).digest()


def test_too_few_examples_for_the_clients():
    with pytest.raises(ValueError, match="9 examples cannot give 5 clients 2 each; use at most 4"):
        partitions["dirichlet"](np.zeros(9), 5, 0)


def test_digits():
    digits = datasets["digits"]()
    assert digits.example_shape == (64,)
    assert digits.num_classes == 10
    assert len(digits.train["y"]) + len(digits.test["y"]) == 1797
    assert len(digits.test["y"]) == 364
    assert np.bincount(digits.test["y"]).min() == 35
    assert (digits.train["x"].min(), digits.train["x"].max()) == (0.0, 1.0)
    assert digits.train["x"].dtype == np.float32


ONE = fa.Partition.of([np.array([0])])


@pytest.mark.parametrize(
    ("examples", "partition", "message"),
    [
        ({"x": np.zeros(3), "y": np.zeros(2)}, ONE, r"\[2, 3\] rows"),
        ({"x": np.zeros(3)}, fa.Partition.of([np.array([3])]), "example 3; there are .* 0 to 2"),
        ({"x": np.zeros(3)}, fa.Partition.of([np.array([-1])]), "names example -1"),
        ({"x": np.zeros(3)}, fa.Partition.of([np.array([0]), np.array([])]), "client 1 holds no"),
        ({"x": np.zeros(3)}, fa.Partition(np.array([0]), np.array([1, 1])), "must run from 0"),
    ],
)
def test_store_refuses_what_does_not_fit(examples, partition, message):
    with pytest.raises(ValueError, match=message):
        fa.federate(examples, partition)


def test_ragged_clients_take_no_more_memory_than_examples_and_indices():
    """One client of 10,000 and 9,999 of ten: a padded table would hold a thousand times more."""
    counts = [10_000] + [10] * 9_999
    total = sum(counts)
    examples = {"x": np.zeros((total, 7), np.uint8), "y": np.zeros(total, np.int32)}
    rows = np.split(np.arange(total), np.cumsum(counts)[:-1])
    data = fa.federate(examples, fa.Partition.of(rows))
    held = sum(leaf.nbytes for leaf in (*data.examples.values(), data.indices, data.offsets))
    assert data.examples["x"].dtype == np.uint8
    assert held == total * (7 + 4) + 4 * total + 4 * (len(counts) + 1)
