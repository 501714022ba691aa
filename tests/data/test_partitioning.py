"""Partitions: what all share, each one's rule by hand, and each one's distribution."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_algos as fa
from fedjax_algos.data import partitions
from fedjax_algos.data.partitioning import base
from fedjax_algos.data.partitioning.classes import _distinct, _holders
from fedjax_algos.data.partitioning.dirichlet import _fill
from fedjax_algos.data.partitioning.pachinko import CIFAR100_COARSE

SEVEN = (0, 0, 1, 1, 2, 2, 2)  # a hierarchy of seven labels
CASES = {
    "class_partition": {},
    "classes_per_client": {},
    "dirichlet": {},
    "dirichlet_balanced": {"tries": 3},
    "dirichlet_classes": {},
    "dual_dirichlet": {},
    "iid": {},
    "pachinko": {"hierarchy": SEVEN},
    "quantity": {},
}  # and natural, whose first argument is no label
EQUAL_SIZES = ["dirichlet_balanced", "dirichlet_classes", "iid", "pachinko"]
SMALLEST = {"dirichlet": 2, "dual_dirichlet": 2, "quantity": 2}


def make(name, labels, num_clients, seed, **keywords):
    return partitions[name](labels, num_clients, seed, **(CASES.get(name, {}) | keywords))


def rows(partition):
    return np.split(partition.indices, partition.offsets[1:-1])


def histogram(labels, partition):
    """int[num_clients, num_classes]."""
    num_classes = max(labels) + 1
    return np.array([np.bincount(labels[row], minlength=num_classes) for row in rows(partition)])


def second_moment(counts, totals):
    """An unbiased estimate of E[p^2] from counts that are binomial(totals, p)."""
    return np.mean(counts * (counts - 1)) / np.mean(totals * (totals - 1))


# What all partitions share


def test_every_partition_is_tested():
    assert {*CASES, "natural"} == set(partitions)


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**31), st.integers(4, 60), st.integers(0, 2**31))
def test_every_example_has_one_client(name, label_seed, num_clients, seed):
    labels = np.random.default_rng(label_seed).integers(0, 7, 400)
    partition = make(name, labels, num_clients, seed)
    assert sorted(partition.indices) == list(range(400))
    assert partition.num_clients == num_clients
    assert partition.counts().sum() == 400
    assert partition.indices.dtype == partition.offsets.dtype == np.int32
    assert partition.counts().min() >= SMALLEST.get(name, 1)
    if name in EQUAL_SIZES:
        assert np.ptp(partition.counts()) <= 1


@pytest.mark.parametrize("name", CASES)
def test_the_seed_alone_decides(name):
    labels = np.random.default_rng(0).integers(0, 7, 400)
    kept = labels.copy()
    state = np.random.get_state()[1].copy()  # noqa: NPY002 (it must not be used)
    first = make(name, labels, 12, 5)
    assert make(name, labels, 12, 5).digest() == first.digest()
    assert make(name, labels.astype(np.uint8), 12, 5).digest() == first.digest()
    assert make(name, labels, 12, 6).digest() != first.digest()
    np.testing.assert_array_equal(labels, kept)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


@pytest.mark.parametrize("name", CASES)
def test_clients_hold_random_examples_of_their_classes(name):
    """The place of an example within its class says nothing about who holds it."""
    labels = np.repeat(np.arange(7), 600)
    owners = np.empty(len(labels), int)
    partition = make(name, labels, 10, 3)
    owners[partition.indices] = np.repeat(np.arange(10), partition.counts())
    places = np.arange(len(labels)) % 600
    for label in range(7):
        of_class = owners[labels == label]
        if np.ptp(of_class):
            assert abs(np.corrcoef(of_class, places[labels == label])[0, 1]) < 0.17  # 4 sigma


@pytest.mark.parametrize("name", CASES)
def test_examples_of_a_client_are_in_random_order(name):
    """So that a cut of a client's rows is a fair sample of it."""
    labels = np.repeat(np.arange(7), 600)
    for row in rows(make(name, labels, 10, 3)):
        if len(row) > 100:
            assert abs(np.corrcoef(row, np.arange(len(row)))[0, 1]) < 5 / np.sqrt(len(row))


@pytest.mark.parametrize("name", CASES)
def test_sizes_of_mnist_and_a_thousand_clients(name):
    labels = np.random.default_rng(0).integers(0, 7, 60_000)
    partition = make(name, labels, 1000, 0)
    assert len(np.unique(partition.indices)) == 60_000
    assert partition.counts().min() >= SMALLEST.get(name, 1)


@pytest.mark.parametrize("name", CASES)
def test_one_client_holds_everything(name):
    labels = np.random.default_rng(0).integers(0, 7, 100)
    options = {"classes": 7} if name == "classes_per_client" else {}
    assert sorted(make(name, labels, 1, 0, **options).indices) == list(range(100))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("labels", "num_clients", "message"),
    [
        (np.zeros((4, 2), int), 2, r"shape \(4, 2\); give one label for each example"),
        (np.arange(7), 0, "num_clients=0 is out of range; give at least 1"),
        (np.arange(7), 8, "7 examples cannot give 8 clients [12] each; use at most [37]"),
    ],
)
def test_wrong_arguments(name, labels, num_clients, message):
    with pytest.raises(ValueError, match=message):
        make(name, labels, num_clients, 0)


# The parts that they are made of


@given(st.lists(st.integers(0, 12), min_size=1, max_size=9), st.integers(1, 4))
def test_raised_takes_from_the_largest_one_by_one(sizes, least):
    if sum(sizes) < len(sizes) * least:
        return
    expected = list(sizes)
    while min(expected) < least:
        expected[expected.index(max(expected))] -= 1
        expected[expected.index(min(expected))] += 1
    result = base.raised(np.array(sizes), least)
    assert sorted(result) == sorted(expected)
    assert all(new <= old for new, old in zip(result, sizes, strict=True) if old >= least)


def test_divide_rounds_the_cumulative_sums():
    weights = np.array([[1, 0.1, 0], [1, 0.2, 5], [1, 0.7, 0]])
    table = base.divide(weights, np.array([10, 7, 4]))  # cuts 3.3 6.7, 0.7 2.1, 0 4
    np.testing.assert_array_equal(table, [[3, 1, 0], [4, 1, 4], [3, 5, 0]])


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.integers(1, 300))
def test_divide_gives_no_client_the_remainder(seed, num_clients):
    """Flooring each part would leave the last one with up to N - 1 more than its share."""
    weights = np.random.default_rng(seed).dirichlet(np.ones(num_clients), 3).T
    sizes = np.array([50, 500, 1])
    table = base.divide(weights, sizes)
    np.testing.assert_array_equal(table.sum(axis=0), sizes)
    assert np.abs(table - weights * sizes).max() < 1 + 1e-9


def test_resize_moves_only_the_surplus():
    owners = np.array([0, 0, 0, 0, 1, 2, 2])
    moved = base.resize(owners, np.array([2, 3, 2]), np.random.default_rng(0))
    np.testing.assert_array_equal(np.bincount(moved), [2, 3, 2])
    np.testing.assert_array_equal(moved[4:], [1, 2, 2])


@pytest.mark.parametrize("concentration", [[0.2, 0.2, 0.2], [0.05, 1.0, 3.0]])
def test_log_dirichlet_has_the_moments_of_dirichlet(concentration):
    a = np.array(concentration)
    draws = np.exp(base.log_dirichlet(np.random.default_rng(0), np.tile(a, (40_000, 1))))
    np.testing.assert_allclose(draws.sum(axis=1), 1)
    np.testing.assert_allclose(draws.mean(axis=0), a / a.sum(), atol=0.008)
    square = a * (a + 1) / (a.sum() * (a.sum() + 1))
    np.testing.assert_allclose((draws**2).mean(axis=0), square, atol=0.008)


@pytest.mark.parametrize("alpha", [1e-300, 1e-9, 1e-3])
def test_shares_survive_when_all_but_the_smallest_are_struck_out(alpha):
    logs = base.log_dirichlet(np.random.default_rng(0), np.full(50, alpha))
    left = base.shares(logs, np.arange(50) == np.argmin(logs))
    assert left.max() == left.sum() == 1


def one_by_one(number, q, left):
    """{counts: probability} of draws without replacement, by the rule's own words."""
    if not number:
        return {(0,) * len(q): 1.0}
    result = Counter()
    still = [p * (n > 0) for p, n in zip(q, left, strict=True)]
    for c in np.flatnonzero(still):
        rest = [n - (i == c) for i, n in enumerate(left)]
        for counts, probability in one_by_one(number - 1, q, rest).items():
            more = tuple(n + (i == c) for i, n in enumerate(counts))
            result[more] += probability * still[c] / sum(still)
    return result


@pytest.mark.parametrize(("number", "left"), [(3, (1, 2, 3)), (4, (2, 0, 5)), (6, (1, 2, 3))])
def test_drawing_together_is_drawing_one_by_one(number, left):
    q, times, rng = (0.7, 0.2, 0.1), 20_000, np.random.default_rng(0)
    drawn = Counter(
        tuple(int(n) for n in base.draw(rng, number, np.log(q), np.array(left)))
        for _ in range(times)
    )
    expected = one_by_one(number, q, left)
    assert sum(expected.values()) == pytest.approx(1)
    assert set(drawn) <= set(expected)
    for counts, probability in expected.items():
        assert drawn[counts] / times == pytest.approx(probability, abs=0.015)


# One class each: alpha = 0


@pytest.mark.parametrize("name", ["dirichlet_balanced", "dirichlet_classes"])
def test_alpha_0_gives_one_class_each(name):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
    table = histogram(labels, make(name, labels, 20, 1, alpha=0.0))
    assert (table.max(axis=1) == 30).all()
    assert ((table > 0).sum(axis=0) == 2).all()
    classes = [int(row.argmax()) for row in table]
    assert classes != sorted(classes)


@pytest.mark.parametrize("name", ["dirichlet_balanced", "dirichlet_classes"])
def test_alpha_0_cuts_shards_of_sorted_labels(name):
    labels = np.array([1, 0, 1, 0, 2, 0, 1])  # sorted 000 1112: shards 000, 11, 12
    shards = [sorted(labels[row]) for row in rows(make(name, labels, 3, 0, alpha=0.0))]
    assert sorted(shards) == [[0, 0, 0], [1, 1], [1, 2]]


# GHBM's two splits


def test_balanced_gives_nothing_to_full_clients():
    per_class = np.array([90, 10, 50, 50])
    for seed in range(20):
        table = _fill(per_class, 5, 0.3, np.random.default_rng(seed))
        np.testing.assert_array_equal(table.sum(axis=0), per_class)
        held = np.cumsum(table, axis=1)
        assert not table[:, 1:][held[:, :-1] >= 40].any()


def test_balanced_first_class_has_dirichlet_shares():
    shares = [
        _fill(np.array([1000, 9000]), 5, 0.5, np.random.default_rng(seed))[:, 0] / 1000
        for seed in range(800)
    ]
    assert np.var(shares) == pytest.approx(4 / (25 * 3.5), rel=0.05)


def test_balanced_keeps_the_most_even_try_and_moves_the_surplus():
    labels = np.repeat(np.arange(6), 100)
    rng = np.random.default_rng(4)
    tries = [_fill(np.full(6, 100), 10, 0.5, rng) for _ in range(30)]
    surplus = [np.maximum(table.sum(axis=1) - 60, 0).sum() for table in tries]
    best = int(np.argmin([table.sum(axis=1).std() for table in tries]))
    result = histogram(labels, make("dirichlet_balanced", labels, 10, 4, alpha=0.5, tries=30))
    distances = [np.abs(result - table).sum() for table in tries]
    assert distances[best] <= 2 * surplus[best]
    assert np.argmin(distances) == best


def test_large_alpha_is_iid():
    """alpha = 10,000: the coded form is nearly even; the text's has multinomial noise, and the
    last clients take what it leaves."""
    labels = np.repeat(np.arange(10), 1000)
    even = histogram(labels, make("dirichlet_balanced", labels, 20, 0, alpha=1e4))
    assert np.abs(even - 50).max() <= 4
    noisy = histogram(labels, make("dirichlet_classes", labels, 20, 0, alpha=1e4))[:-3]
    assert np.abs(noisy - 50).max() < 30
    assert noisy[:10].std() == pytest.approx(np.sqrt(500 * 0.1 * 0.9), rel=0.25)


@pytest.mark.parametrize("name", ["dirichlet_balanced", "dirichlet_classes"])
def test_small_alpha_is_heterogeneous(name):
    labels = np.repeat(np.arange(10), 500)

    def purity(alpha):
        table = histogram(labels, make(name, labels, 20, 0, alpha=alpha))
        return (table.max(axis=1) / table.sum(axis=1)).mean()

    low, middle, high = purity(0.1), purity(1.0), purity(100.0)
    assert low > 0.5
    assert low > middle + 0.1
    assert middle > high + 0.1


def test_dirichlet_classes_draws_from_alpha_times_the_prior():
    """The first client meets no exhausted class: E[q_c^2] = p (alpha p + 1) / (alpha + 1)."""
    labels, alpha = np.repeat([0, 1], [1000, 3000]), 2.0
    counts = np.array(
        [
            histogram(labels, make("dirichlet_classes", labels, 40, seed, alpha=alpha))[0]
            for seed in range(800)
        ]
    )
    prior = np.array([0.25, 0.75])
    np.testing.assert_allclose(counts.mean(axis=0) / 100, prior, atol=0.03)
    for c, p in enumerate(prior):
        expected = p * (alpha * p + 1) / (alpha + 1)
        assert second_moment(counts[:, c], np.array([100])) == pytest.approx(expected, abs=0.03)


# FedLGA's classes for each client


@pytest.mark.parametrize(
    ("num_classes", "per_class", "classes", "size"), [(10, 6000, 2, 1200), (100, 500, 20, 1000)]
)
def test_fedlga_devices(num_classes, per_class, classes, size):
    """The paper's 50 devices with 2 of 10, or 20 of 100 classes: all equal."""
    labels = np.repeat(np.arange(num_classes), per_class)
    table = histogram(labels, make("classes_per_client", labels, 50, 0, classes=classes))
    assert ((table > 0).sum(axis=1) == classes).all()
    assert ((table > 0).sum(axis=0) == 10).all()
    assert (table.sum(axis=1) == size).all()


def test_slots_and_parts_differ_by_at_most_one():
    labels = np.repeat([0, 1, 2], [40, 50, 61])
    table = histogram(labels, make("classes_per_client", labels, 5, 0))
    assert sorted((table > 0).sum(axis=0)) == [3, 3, 4]
    for column in table.T:
        assert np.ptp(column[column > 0]) <= 1


def test_a_double_is_swapped_even_where_no_single_swap_repairs_it():
    """Client 0 has 1 twice, and client 1 has only class 0, which client 0 has as well."""
    held = np.array([[1, 2, 0], [3, 0, 0], [0, 1, 2], [0, 1, 2]])
    repaired = _distinct(held, np.random.default_rng(0))
    np.testing.assert_array_equal(repaired, np.ones((4, 3)))


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(1, 8), st.integers(1, 8))
def test_swaps_always_end(seed, num_clients, num_classes, classes):
    classes = min(classes, num_classes)
    rng = np.random.default_rng(seed)
    slots = np.repeat(np.arange(num_classes), base.even_sizes(num_clients * classes, num_classes))
    held = np.zeros((num_clients, num_classes), int)
    np.add.at(held, (np.repeat(np.arange(num_clients), classes), rng.permutation(slots)), 1)
    repaired = _distinct(held, rng)
    assert repaired.max() == 1
    np.testing.assert_array_equal(repaired.sum(axis=0), held.sum(axis=0))
    np.testing.assert_array_equal(repaired.sum(axis=1), held.sum(axis=1))


def test_all_pairs_of_classes_are_about_equally_frequent():
    labels = np.repeat(np.arange(4), 500)
    pairs = Counter()
    for seed in range(60):
        table = histogram(labels, make("classes_per_client", labels, 40, seed))
        pairs.update(tuple(int(c) for c in np.flatnonzero(row)) for row in table)
    assert set(pairs) == set(itertools.combinations(range(4), 2))
    assert all(abs(n / (60 * 40) - 1 / 6) < 0.03 for n in pairs.values())


def test_no_client_is_preferred():
    """Each client has each class equally often, and each the one example that is over."""
    labels = np.repeat(np.arange(4), 51)
    held, over = np.zeros((10, 4)), np.zeros(10)
    for seed in range(300):
        table = histogram(labels, make("classes_per_client", labels, 10, seed))
        held += table > 0
        over += (table == 11).sum(axis=1)  # 51 examples for 5 clients
    np.testing.assert_allclose(held / 300, 0.5, atol=0.12)
    np.testing.assert_allclose(over / 300, 0.4, atol=0.14)


@pytest.mark.parametrize(
    ("labels", "num_clients", "classes", "message"),
    [
        (np.arange(30) % 3, 5, 4, "classes=4 is more than the 3 that there are; give fewer"),
        (np.arange(70) % 7, 3, 2, "some of the 7 out; use at least 3 classes or 4 clients"),
        (np.repeat([4, 9], [50, 3]), 8, 1, "class 9 has 3 examples for 4 clients; use fewer"),
    ],
)
def test_classes_that_cannot_be_dealt(labels, num_clients, classes, message):
    with pytest.raises(ValueError, match=message):
        make("classes_per_client", labels, num_clients, 0, classes=classes)


# FedCompass' class partition


@pytest.mark.parametrize(
    ("num_clients", "low", "high"),
    [(1, 10, 10), (2, 7, 8), (3, 6, 8), (4, 5, 7), (5, 5, 6), (6, 4, 6), (7, 4, 5), (8, 3, 5),
     (10, 3, 5), (20, 3, 5)],
)  # fmt: skip
def test_class_partition_has_the_table_of_classes(num_clients, low, high):
    labels = np.repeat(np.arange(10), 2000)
    numbers = np.concatenate(
        [
            (histogram(labels, make("class_partition", labels, num_clients, seed)) > 0).sum(axis=1)
            for seed in range(8 if num_clients > 3 else 20)
        ]
    )
    assert set(numbers) == set(range(low, high + 1))


def test_numbers_of_classes_are_uniform_and_classes_too():
    held = np.concatenate([_holders(50, 10, 3, 5, np.random.default_rng(s)) for s in range(60)])
    frequencies = np.bincount(held.sum(axis=1))[3:] / len(held)
    np.testing.assert_allclose(frequencies, [1 / 3] * 3, atol=0.04)
    np.testing.assert_allclose(held.mean(axis=0), [0.4] * 10, atol=0.04)


@pytest.mark.parametrize(("low", "high"), [(2, 2), (1, 2)])
def test_holders_are_repaired_when_no_draw_has_all_classes(low, high):
    """Five clients with at most two of ten classes: every class must have exactly one holder."""
    for seed in range(20):
        held = _holders(5, 10, low, high, np.random.default_rng(seed))
        assert (held.sum(axis=0) == 1).all()
        assert (held.sum(axis=1) == 2).all()


def test_parts_of_a_class_are_absolute_normals():
    labels = np.zeros(100_000, int)
    options = {"min_classes": 1, "max_classes": 1}
    parts = [
        make("class_partition", labels, 2, seed, mean=4.0, deviation=3.0, **options).counts()[0]
        for seed in range(400)
    ]
    lengths = np.abs(np.random.default_rng(0).normal(4, 3, (200_000, 2)))
    expected = lengths[:, 0] / lengths.sum(axis=1)
    assert np.mean(parts) / 1e5 == pytest.approx(0.5, abs=0.04)
    assert np.std(parts) / 1e5 == pytest.approx(expected.std(), rel=0.1)
    even = make("class_partition", labels, 8, 0, deviation=0.0, **options)
    assert set(even.counts()) == {12_500}


def test_class_partition_fills_small_clients():
    labels = np.arange(60) % 2
    counts = make("class_partition", labels, 20, 0, max_classes=2, min_classes=1, min_examples=3)
    assert set(counts.counts()) == {3}


@pytest.mark.parametrize(
    ("num_classes", "num_clients", "options", "message"),
    [
        (10, 10, {"max_classes": 2}, r"min_classes=3 is above max_classes=2; give both .* 3 to 5"),
        (4, 10, {"max_classes": 5}, "max_classes=5 is more than the 4 that there are"),
        (100, 10, {}, "at most 5 classes each cannot hold 100; give max_classes=10 or more"),
    ],
)
def test_class_partition_refuses_what_cannot_be(num_classes, num_clients, options, message):
    with pytest.raises(ValueError, match=message):
        make("class_partition", np.arange(1000) % num_classes, num_clients, 0, **options)


# FedCompass' dual Dirichlet


@pytest.mark.parametrize(("alpha1", "concentration"), [(None, 1.0), (10.0, 2.0)])
def test_sizes_are_the_first_dirichlet(alpha1, concentration):
    """With equal label distributions the sizes are w ~ Dir(alpha1 / m), by default of ones."""
    m, labels = 5, np.repeat([0, 1], [800, 1200])
    made = [
        make("dual_dirichlet", labels, m, s, alpha1=alpha1, alpha2=1e7, min_examples=1)
        for s in range(600)
    ]
    shares = np.array([p.counts() for p in made]) / 2000
    assert shares.var() == pytest.approx((m - 1) / (m**2 * (m * concentration + 1)), rel=0.06)
    table = histogram(labels, made[0])
    np.testing.assert_allclose(table[:, 0] / table.sum(axis=1), 0.4, atol=0.02)


def test_labels_are_the_formula_of_both():
    """Against the formula itself with NumPy's Dirichlet: mean squares of shares, unequal prior."""
    labels, m = np.repeat([0, 1], [1000, 3000]), 4
    tables = [
        histogram(labels, make("dual_dirichlet", labels, m, s, alpha2=3.0, min_examples=1))
        for s in range(800)
    ]
    mine = ((np.array(tables) / [1000, 3000]) ** 2).mean(axis=(0, 1))
    rng = np.random.default_rng(1)
    w = rng.dirichlet(np.ones(m), 40_000)
    k = rng.dirichlet([0.75, 2.25], (40_000, m))
    shares = w[:, :, None] * k
    expected = ((shares / shares.sum(axis=1, keepdims=True)) ** 2).mean(axis=(0, 1))
    np.testing.assert_allclose(mine, expected, rtol=0.06)
    assert expected[0] > expected[1] + 0.02


@pytest.mark.parametrize("alpha2", [1e-300, 1e-6, 1e-2])
def test_dual_dirichlet_has_no_0_by_0(alpha2):
    labels = np.random.default_rng(0).integers(0, 5, 300)
    partition = make("dual_dirichlet", labels, 30, 0, alpha1=1e-3, alpha2=alpha2)
    assert sorted(partition.indices) == list(range(300))
    assert partition.counts().min() >= 2


def test_dual_dirichlet_draws_again_before_it_repairs():
    """A draw with enough for all is kept as drawn; an impossible least size is repaired."""
    labels = np.repeat(np.arange(10), 100)
    seeds = [s for s in range(60) if make("dual_dirichlet", labels, 10, s, min_examples=1)
             .counts().min() < 15]  # fmt: skip
    assert len(seeds) > 10
    for seed in seeds:
        counts = make("dual_dirichlet", labels, 10, seed, min_examples=15).counts()
        assert counts.min() >= 15
    redrawn = [make("dual_dirichlet", labels, 10, s, min_examples=15).counts() for s in seeds]
    assert np.mean([np.count_nonzero(counts == 15) for counts in redrawn]) < 1
    assert set(make("dual_dirichlet", labels, 10, 0, min_examples=100).counts()) == {100}


# Pachinko


def test_cifar100_has_twenty_coarse_labels_of_five():
    assert Counter(CIFAR100_COARSE) == dict.fromkeys(range(20), 5)
    aquatic_mammals = [4, 30, 55, 72, 95]  # beaver, dolphin, otter, seal, whale
    assert [i for i, coarse in enumerate(CIFAR100_COARSE) if coarse == 0] == aquatic_mammals


def test_pachinko_of_cifar100():
    """TFF's sizes: 500 clients with 100 examples; a client's coarse labels are few."""
    labels = np.repeat(np.arange(100), 500)
    partition = partitions["pachinko"](labels, 500, 0)
    assert set(partition.counts()) == {100}
    table = histogram(labels, partition)
    coarse = np.zeros((500, 20), int)
    np.add.at(coarse.T, np.array(CIFAR100_COARSE), table.T)
    first = coarse[:250] / 100
    assert (first.max(axis=1)).mean() > 0.4
    assert second_moment(coarse[:100], np.array([100])) == pytest.approx(1.1 / (20 * 3), rel=0.15)


def first_clients(seeds, **options):
    labels = np.repeat(np.arange(8), 250)
    hierarchy = (5, 5, 7, 7, -1, -1, 0, 0)
    made = [make("pachinko", labels, 20, s, hierarchy=hierarchy, **options) for s in range(seeds)]
    return np.array([np.bincount(labels[rows(p)[0]], minlength=8) for p in made])


def test_pachinko_root_is_dirichlet():
    counts = first_clients(300, root_alpha=0.3, leaf_alpha=5.0).reshape(-1, 4, 2).sum(axis=2)
    expected = 1.3 / (4 * (4 * 0.3 + 1))
    assert second_moment(counts, np.array([100])) == pytest.approx(expected, rel=0.06)


def test_pachinko_leaves_are_dirichlet():
    counts = first_clients(300, root_alpha=1e6, leaf_alpha=1.0).reshape(-1, 4, 2)
    coarse = counts.sum(axis=2)
    assert second_moment(coarse, np.array([100])) == pytest.approx(1 / 16, rel=0.06)
    assert second_moment(counts[..., 0], coarse) == pytest.approx(1 / 3, rel=0.06)


def test_pachinko_stays_in_the_coarse_label_when_a_fine_one_is_exhausted():
    """Client 0 wants one coarse label, whose rare fine label ends; the common one fills up."""
    labels = np.repeat([0, 1, 2, 3], [2, 98, 2, 98])
    for seed in range(20):
        made = make("pachinko", labels, 2, seed, hierarchy=(0, 0, 1, 1), root_alpha=1e-9)
        table = histogram(labels, made)
        assert sorted(table.tolist()) == [[0, 0, 2, 98], [2, 98, 0, 0]]


def test_pachinko_goes_on_to_another_coarse_label_when_one_is_exhausted():
    labels = np.repeat([0, 1, 2], [30, 10, 60])  # coarse 0: 40, coarse 1: 60
    for seed in range(20):
        made = make("pachinko", labels, 2, seed, hierarchy=(0, 0, 1), root_alpha=1e-9)
        first, second = histogram(labels, made)
        assert first.tolist() in ([30, 10, 10], [0, 0, 50])
        assert (first + second).tolist() == [30, 10, 60]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.arange(10), "hierarchy has 7 entries, but labels run from 0 to 9; give whole labels"),
        (np.arange(6), "hierarchy has 7 entries, but labels run from 0 to 5"),
        (np.arange(-1, 7), "labels run from -1 to 6"),
        (np.arange(7.0), "labels run from 0.0 to 6.0; give whole labels"),
    ],
)
def test_pachinko_needs_a_coarse_label_for_each(labels, message):
    with pytest.raises(ValueError, match=message):
        make("pachinko", labels, 2, 0)


def test_pachinko_hierarchy_is_no_text():
    with pytest.raises(ValueError, match="hierarchy is an object; give it in Python"):
        partitions.make("pachinko:hierarchy=3", np.arange(100), 2, 0)


# Sizes without labels


def test_quantity_sizes_are_dirichlet():
    """Variance (N - 1) / (N^2 (N beta + 1)), and labels are as everywhere."""
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


# Users


USERS = np.array(["eve", "bob", "eve", "ann", "bob", "eve"])


def test_natural_takes_all_users_in_order():
    partition = partitions["natural"](USERS, 3, 0)
    assert [row.tolist() for row in rows(partition)] == [[3], [1, 4], [0, 2, 5]]
    assert partitions["natural"](USERS, 3, 9).digest() == partition.digest()


def test_natural_leaves_small_users_out():
    partition = partitions["natural"](USERS, 2, 0, min_examples=2)
    assert [row.tolist() for row in rows(partition)] == [[1, 4], [0, 2, 5]]


def test_natural_chooses_users_evenly_by_the_seed():
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
        (USERS, 4, "4 clients are more than the 3 users with at least 1 examples; use at most 3"),
        (USERS, 0, "num_clients=0 is out of range"),
        (USERS.reshape(2, 3), 2, r"shape \(2, 3\)"),
    ],
)
def test_natural_refuses(users, num_clients, message):
    with pytest.raises(ValueError, match=message):
        partitions["natural"](users, num_clients, 0)


def test_the_store_takes_a_partition_that_leaves_examples_out():
    data = fa.federate({"x": np.arange(6)}, partitions["natural"](USERS, 1, 0))
    assert data.num_clients == 1


# Specs


@pytest.mark.parametrize(
    "spec",
    ["classes_per_client:3", "dirichlet_balanced:0", "dirichlet_classes:alpha=0.5", "quantity:1",
     "dual_dirichlet:alpha1=8,alpha2=1,min_examples=4", "class_partition:2,max_classes=4"],
)  # fmt: skip
def test_partitions_by_spec(spec):
    labels = np.arange(600) % 6
    assert len(partitions.make(spec, labels, 12, 0).indices) == 600


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dirichlet_balanced:-1", "alpha=-1.* is out of range; give a number of at least 0"),
        ("dirichlet_balanced:tries=0", "tries=0.* is out of range"),
        ("dual_dirichlet:alpha2=0", "alpha2=0.* is out of range"),
        ("classes_per_client:1.5", "classes=1.5 is out of range; give a whole number"),
        ("class_partition:mean=0", "mean=0.* is out of range"),
        ("pachinko:root_alpha=0", "root_alpha=0.* is out of range"),
        ("quantity:beta=0", "beta=0.* is out of range"),
        ("natural:min_examples=0", "min_examples=0.* is out of range"),
    ],
)
def test_options_out_of_range(spec, message):
    with pytest.raises(ValueError, match=message):
        partitions.make(spec, np.arange(60) % 6, 3, 0)
