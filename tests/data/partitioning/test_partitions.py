"""What all partitions share and are made of, and how they are named on the command line."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_helpers import CASES, histogram, make, rows

import fedjax_algos as fa
from fedjax_algos.data import partitions
from fedjax_algos.data.partitioning import base
from fedjax_algos.data.partitioning.by_labels import draw_balanced_table

EQUAL_SIZES = ["dirichlet_balanced", "dirichlet_classes", "iid", "pachinko"]
SMALLEST = {"dirichlet": 2, "dual_dirichlet": 2, "quantity": 2}


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=6)
@given(st.integers(0, 2**31), st.integers(4, 60), st.integers(0, 2**31))
def test_every_example_has_one_client(name, label_seed, num_clients, seed):
    labels = np.random.default_rng(label_seed).integers(0, 7, 400)
    partition = make(name, labels, num_clients, seed)
    assert sorted(partition.indices) == list(range(400))
    assert partition.num_clients == num_clients
    assert partition.indices.dtype == partition.offsets.dtype == np.int32
    assert partition.counts().min() >= SMALLEST.get(name, 1)
    if name in EQUAL_SIZES:
        assert np.ptp(partition.counts()) <= 1


@pytest.mark.parametrize("name", CASES)
def test_partitions_depend_on_the_seed_alone(name):
    labels = np.random.default_rng(0).integers(0, 7, 400)
    original = labels.copy()
    first = make(name, labels, 12, 5)
    assert make(name, labels, 12, 5).digest() == first.digest()
    assert make(name, labels.astype(np.uint8), 12, 5).digest() == first.digest()
    assert make(name, labels, 12, 6).digest() != first.digest()
    np.testing.assert_array_equal(labels, original)


@pytest.mark.parametrize("name", CASES)
def test_clients_hold_random_examples_of_their_classes(name):
    """The position of an example is uncorrelated with its client, and with its place there."""
    labels = np.repeat(np.arange(7), 600)
    owners = np.empty(len(labels), int)
    partition = make(name, labels, 10, 3)
    owners[partition.indices] = np.repeat(np.arange(10), partition.counts())
    positions = np.arange(len(labels)) % 600
    for label in range(7):
        of_class = owners[labels == label]
        if np.ptp(of_class):
            assert abs(np.corrcoef(of_class, positions[labels == label])[0, 1]) < 0.17  # 4 sigma
    for row in rows(partition):
        if len(row) > 100:
            assert abs(np.corrcoef(row, np.arange(len(row)))[0, 1]) < 5 / np.sqrt(len(row))

    one = make(name, labels, 1, 0, **({"classes": 7} if name == "classes_per_client" else {}))
    assert sorted(one.indices) == list(range(len(labels)))  # a single client holds all


def check_dirichlet(shares, concentration):
    """Shares of N clients have mean 1/N and variance (N - 1) / (N^2 (N c + 1))."""
    assert shares.mean() == pytest.approx(1 / 5, abs=1e-12)
    assert shares.var() == pytest.approx(4 / (25 * (5 * concentration + 1)), rel=0.05)


@pytest.mark.parametrize(
    ("name", "classes", "concentration", "options"),
    [
        ("dirichlet", 1, 0.5, {"alpha": 0.5}),
        ("quantity", 4, 0.5, {"beta": 0.5}),
        ("dual_dirichlet", 2, 2.0, {"alpha1": 10.0, "alpha2": 1e7}),  # w ~ Dir(alpha1 / N)
    ],
)
def test_sizes_are_dirichlet(name, classes, concentration, options):
    labels = np.arange(1000) % classes
    made = [make(name, labels, 5, seed, min_examples=1, **options) for seed in range(300)]
    check_dirichlet(np.array([partition.counts() for partition in made]) / 1000, concentration)
    table = histogram(labels, made[0])
    expected = table.sum(axis=1, keepdims=True) / classes + np.zeros(classes)
    np.testing.assert_allclose(table, expected, atol=30)  # all have the same distribution


def test_the_first_class_of_a_balanced_table_is_dirichlet():
    sizes = np.array([1000, 9000])
    tables = [draw_balanced_table(sizes, 5, 0.5, np.random.default_rng(s)) for s in range(300)]
    check_dirichlet(np.array([table[:, 0] for table in tables]) / 1000, 0.5)


WRONG = [  # of all partitions
    (np.zeros((4, 2), int), 2, r"shape \(4, 2\)"),
    (np.arange(7), 0, "num_clients=0 is out of range"),
    (np.arange(7), 8, r"\(7,\) cannot give 8 clients [12] each; .* at most [37] clients"),
]
IMPOSSIBLE = [
    ("classes_per_client:4", np.arange(30) % 3, 5, "classes=4 .*; give 1 to 3"),
    ("classes_per_client", np.arange(70) % 7, 3, "classes=2 .*; give 3 to 7"),
    ("classes_per_client:1", np.repeat([4, 9], [50, 3]), 8, "9 has 3 examples for"),
    ("class_partition:max_classes=2", np.arange(99) % 10, 10, "min_classes=3 and max_classes=2"),
    ("class_partition:max_classes=5", np.arange(99) % 4, 10, "max_classes=5 .* 1 to 4"),
    ("class_partition", np.arange(1000) % 100, 10, "max_classes=5 .* a maximum of 10 to 100"),
    ("dirichlet_balanced:-1", np.arange(60), 3, "alpha=-1.* is out of range"),
    ("dirichlet_balanced:tries=0", np.arange(60), 3, "tries=0.* is out of range"),
    ("natural", np.array(["a", "b"]), 3, "only 2 natural clients have .*; use at most 2"),
    ("natural", np.array(["a", "b"]), 0, "num_clients=0 is out of range"),
    ("natural:min_examples=0", np.arange(60), 3, "min_examples=0.* is out of range"),
    ("pachinko", np.arange(101), 2, "hierarchy has 100 entries, but labels run from 0 to 100"),
    ("pachinko", np.arange(99), 2, "hierarchy has 100 entries, but labels run from 0 to 98"),
    ("pachinko", np.arange(-1, 99), 2, "labels run from -1 to 98"),
    ("pachinko", np.arange(100.0), 2, "labels run from 0.0 to 99.0"),
]


IMPOSSIBLE += [(name, *case) for name in CASES for case in WRONG]


@pytest.mark.parametrize(("spec", "labels", "num_clients", "named"), IMPOSSIBLE)
def test_impossible_arguments(spec, labels, num_clients, named):
    with pytest.raises(ValueError, match=named):
        partitions.make(spec, labels, num_clients, 0)


def test_digest_and_representation():
    partition = fa.Partition.of([np.array([2, 0]), np.array([1])])
    assert partition.digest() == "e7a8e1959a064df49a55385d4c2b921f2bc9661b5431d6b6071b243948b35230"
    assert partition.digest() != fa.Partition.of([np.array([2]), np.array([0, 1])]).digest()
    assert repr(partition) == "Partition(clients=2, examples=3, per_client=1..2)"
    assert repr(fa.Partition.of([])) == "Partition(clients=0, examples=0)"


@pytest.mark.parametrize("rows", [[[0, 1], [1, 2]], [[3, 3]], [[5], [], [4, 5]]])
def test_an_example_is_there_once_unless_clients_share_it(rows):
    with pytest.raises(ValueError, match=r"example \d twice; .* or give shared=True"):
        fa.Partition.of(rows)
    assert fa.Partition.of(rows, shared=True).counts().tolist() == list(map(len, rows))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=9), st.integers(1, 4))
def test_raise_to_minimum_takes_from_the_largest_one_by_one(sizes, minimum):
    if sum(sizes) < len(sizes) * minimum:
        return
    expected = list(sizes)
    while min(expected) < minimum:
        expected[expected.index(max(expected))] -= 1
        expected[expected.index(min(expected))] += 1
    result = base.raise_to_minimum(np.array(sizes), minimum)
    assert sorted(result) == sorted(expected)
    assert all(new <= old for new, old in zip(result, sizes, strict=True) if old >= minimum)


def test_divide_by_weights_rounds_the_cumulative_sums():
    weights = np.array([[1, 0.1, 0], [1, 0.2, 5], [1, 0.7, 0]])
    table = base.divide_by_weights(weights, np.array([10, 7, 4]))  # cuts 3.3 6.7, 0.7 2.1, 0 4
    np.testing.assert_array_equal(table, [[3, 1, 0], [4, 1, 4], [3, 5, 0]])


def successive_draws(number, q, available):
    """{counts: probability} of successive draws without replacement, by enumeration."""
    if not number:
        return {(0,) * len(q): 1.0}
    result = Counter()
    shares = [p * (n > 0) for p, n in zip(q, available, strict=True)]
    for c in np.flatnonzero(shares):
        rest = [n - (i == c) for i, n in enumerate(available)]
        for counts, probability in successive_draws(number - 1, q, rest).items():
            more = tuple(n + (i == c) for i, n in enumerate(counts))
            result[more] += probability * shares[c] / sum(shares)
    return result


def test_draws_at_once_are_distributed_as_successive_draws():
    q, available, rng = (0.7, 0.2, 0.1), np.array([2, 0, 5]), np.random.default_rng(0)
    draws = (base.draw_class_counts(rng, 4, np.log(q), available) for _ in range(10_000))
    drawn = Counter(tuple(each.tolist()) for each in draws)
    expected = successive_draws(4, q, available)
    assert sum(expected.values()) == pytest.approx(1)
    assert set(drawn) <= set(expected)
    for counts, probability in expected.items():
        assert drawn[counts] / 10_000 == pytest.approx(probability, abs=0.015)


def test_what_is_held_out():
    """A share of each client and of the total; each example is on one side; the seed draws them."""
    whole = fa.Partition.of([np.arange(10), np.arange(10, 13), [13], np.arange(14, 20)])
    kept, held = base.hold_out(whole, 0.35, 0)
    assert held.counts().tolist() == [4, 1, 0, 2]  # of 3.5, 1.05, 0.35 and 2.1: 7 of 20
    assert kept.counts().tolist() == [6, 2, 1, 4]
    for own, *parts in zip(rows(whole), rows(kept), rows(held), strict=True):
        assert sorted(np.concatenate(parts)) == own.tolist()
    assert base.hold_out(whole, 0.35, 0)[1].digest() == held.digest()
    assert base.hold_out(whole, 0.35, 1)[1].digest() != held.digest()
