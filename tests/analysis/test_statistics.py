"""Estimates, paired differences, diverged runs, the best method, and costs with censored seeds."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from summary_helpers import NAN, rows

from fedjax_algos.analysis import statistics
from fedjax_algos.analysis.pictures.curves import spread
from fedjax_algos.analysis.rows import finite_quality, gini
from fedjax_algos.analysis.statistics import CostToTarget, Estimate, mark_best, paired_difference
from fedjax_algos.analysis.summary import ratio_on_common_seeds, summarise
from fedjax_algos.cli.method_tables import non_finite_lines

INF = math.inf
plain, signed = "{:g}".format, "{:+z.1f}".format


@pytest.mark.parametrize(
    ("values", "text", "legend"),
    [
        ([95.1], "95.1", "of one seed"),
        ([95.9, 95.1], "95.9, 95.1", "of each of 2 seeds"),  # in the order of the seeds
        ([95.5, 95.9, 95.1, 95.2], "95.1..95.9", "lowest..highest of 4 seeds"),
        # t(.975, 4) = 2.776445, standard deviation sqrt(2.5)
        ([1, 2, 3, 4, 5], "3.0 ± 2.0", "mean of 5 seeds ± half the 95% confidence interval"),
        ([0.5, NAN, 0.7], "1/3 diverged", "lowest..highest of 3 seeds"),
        ([NAN, NAN], "diverged", "of each of 2 seeds"),
    ],
)
def test_below_five_seeds_there_is_no_interval(values, text, legend):
    assert Estimate(tuple(values)).text("{:.1f}".format) == text
    assert statistics.describe_estimates(len(values)) == legend


def test_figures_draw_what_tables_say():
    """The interval by Student's t: t(.975, 2) = 4.302653 for a standard deviation of 1."""
    half_width = statistics.confidence_half_width
    assert half_width(np.array([1.0, 2.0, 3.0])) == pytest.approx(2.484138, abs=1e-6)
    assert np.isnan(half_width(np.array([1.0])))
    curves = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [4.0, 5.0], [5.0, 5.0]])
    low, high = spread(curves)
    np.testing.assert_allclose([low, high], [[1.036757, 5], [4.963243, 5]], rtol=1e-6)
    np.testing.assert_array_equal(spread(curves[:4]), [[1, 5], [4, 5]])
    np.testing.assert_array_equal(spread(curves, "range"), [[1, 5], [5, 5]])


def test_differences_are_of_the_same_seed():
    """Seeds differ by tens, methods by one half: only pairs show it."""
    reference = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    values = reference + [0.4, 0.5, 0.6, 0.5, 0.5]
    difference = paired_difference(values, reference, range(5))
    # standard deviation sqrt(.005), t(.975, 4) = 2.776445
    assert difference.estimate.mean == pytest.approx(0.5)
    assert difference.estimate.interval == pytest.approx(2.776445 * math.sqrt(0.005 / 5))
    assert difference.text(signed) == "+0.5 ± 0.1"
    assert paired_difference(values[:2], reference[:2], (3, 7)).text(signed) == "+0.4, +0.5"
    assert paired_difference(values[:3], reference[:3], (3, 7, 9)).text(signed) == "+0.4..+0.6"
    for tie in (reference, reference - 0.01):  # without a sign of minus
        assert paired_difference(tie, reference, range(5)).text(signed) == "+0.0 ± 0.0"


def test_diverged_seeds_are_named():
    values, reference = np.array([1.0, NAN, 3.0, 2.0]), np.array([1.0, 1.0, 1.0, NAN])
    difference = paired_difference(values, reference, (3, 7, 11, 12))
    assert difference.without == (7, 12)
    assert difference.text(signed) == "+0.0, +2.0 (without seeds 7, 12)"
    record = difference.record("final")
    found = [record[f"final_difference{name}"] for name in ("", "_seeds", "_without")]
    assert found == [1, 2, "7 12"]
    none = paired_difference(values[1:2], reference[1:2], (7,))
    assert none.text(signed) == "none (without seed 7)"
    assert math.isnan(none.record("final")["final_difference"])


@pytest.mark.parametrize(
    ("row", "finite"),
    [
        ({"test_accuracy": 0.5, "test_loss": None}, True),
        ({"test_accuracy": 0.5, "test_loss": 0.1, "train_loss": NAN}, True),  # all left out
        ({"test_accuracy": 0.5, "test_loss": float("inf")}, False),
        ({"test_accuracy": NAN, "test_loss": 0.1}, False),
        ({"test_loss": 0.1}, False),
    ],
)
def test_the_test_accuracy_and_the_test_loss_decide(row, finite):
    assert finite_quality(row) == (0.5 if finite else pytest.approx(NAN, nan_ok=True))


@pytest.mark.parametrize(
    ("last", "number"),
    [
        ([{"train_loss": NAN, "excluded_updates": 3}], 0),
        ([{"test_loss": NAN}], 1),
        ([{"test_accuracy": NAN}], 1),
        ([], 1),  # its model was not finite in a param that no output needs
    ],
)
def test_all_count_the_same_runs(last, number):
    measured = rows("fedavg", [[NAN, 0.1, 0.5]] * 2, download_bytes=1)
    measured = measured[:-1] + [measured[-1] | change for change in last]
    told = [line for line in non_finite_lines(measured) if "not finite at round" in line]
    assert (len(told), summarise(measured)[0].seeds_diverged) == (number, number)


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_p_values_are_those_of_scipy(seeds):
    first, second = np.random.default_rng(seeds).normal(size=(2, seeds))
    for shift in (0, 1, -5):
        expected = stats.ttest_rel(first + shift, second).pvalue
        found = statistics.paired_p_value(first + shift - second)
        assert found == pytest.approx(expected, rel=1e-12)
    assert statistics.paired_p_value(np.zeros(seeds)) == 1
    assert statistics.paired_p_value(np.full(seeds, -0.5)) == 0


def closed_testing(p_values, sets):
    """Corrected p-values: the largest Bonferroni one of all sets of hypotheses with a given one."""
    return [
        max(min(1, len(own) * min(p_values[i] for i in own)) for own in sets if test in own)
        for test in range(len(p_values))
    ]


def test_holm_is_closed_testing_with_bonferroni():
    """By hand it is 4 * .005, 3 * .01, 2 * .03 and .04, never falling."""
    np.testing.assert_allclose(statistics.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    sets = [own for size in range(6) for own in itertools.combinations(range(6), size + 1)]
    for p_values in np.random.default_rng(0).uniform(size=(3, 6)) ** 4:
        p_values[1] = p_values[4]
        expected = closed_testing(p_values, sets)
        np.testing.assert_allclose(statistics.holm(p_values), expected, rtol=1e-14)


def test_all_pairs_are_corrected_by_what_can_be_true_together():
    """Never below closed testing over the sets of equal pairs of four means, and at most Holm's."""
    pairs = list(itertools.combinations(range(4), 2))
    groups = itertools.product(range(4), repeat=4)
    sets = [[n for n, (a, b) in enumerate(pairs) if own[a] == own[b]] for own in groups]
    sharper = 0
    for seed in range(20):
        values = np.random.default_rng(seed).normal(size=(4, 5)) + np.array([[4], [3], [2], [0]])
        order = np.argsort(-values.mean(1))
        own = [statistics.paired_p_value(values[order[a]] - values[order[b]]) for a, b in pairs]
        found = statistics.p_values_against_best(dict(enumerate(values)))
        found = [found[label] for label in order]
        assert found[0] == 1
        assert np.all(np.array(closed_testing(own, sets)[:3]) <= np.array(found[1:]) + 1e-15)
        assert np.all(found[1:] <= statistics.holm(own)[:3])
        sharper += np.any(found[1:] < statistics.holm(own)[:3])
    assert sharper


def test_marks():
    """p is .05 / 2 for a: enough alone, and beside a third method only if that one is told."""
    quantile = stats.t.isf(0.0125, 4)
    shape = np.array([-1.0, -0.5, 0, 0.5, 1])
    error = shape.std(ddof=1) / np.sqrt(5)
    best = np.zeros(5)
    borderline = shape - quantile * error * 1.001
    near, clear = 10 * shape[[1, 0, 3, 2, 4]] - 0.1, shape - 50
    assert statistics.paired_p_value(best - borderline) == pytest.approx(0.025, rel=0.01)
    assert mark_best({"a": borderline, "b": best}) == {"a": "", "b": "best"}
    assert mark_best({"b": best, "a": borderline, "c": near})["a"] == "not told"  # 3 * .025
    marks = mark_best({"b": best, "a": borderline, "c": clear})
    assert marks == {"b": "best", "a": "", "c": ""}  # one pair is left that can be equal


def test_equal_methods_are_seldom_told_apart():
    """In 2,000 comparisons of five; experiments/marks.py has more of them. It was 9.6%."""
    rng = np.random.default_rng(0)
    told = sum(
        "" in mark_best(dict(enumerate(rng.normal(size=(5, 10))))).values() for _ in range(2000)
    )
    assert 0.01 < told / 2000 < 0.054


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        (
            {"a": [0.1, 0.2, 0.3, 0.4, 0.5]} | {"b": [0.1, 0.2, 0.3, 0.4, 0.5]},
            {"a": "best", "b": "not told"},
        ),
        ({}, {}),
        ({"a": [0.1, 0.2, 0.1, 0.2], "b": [0.7, 0.8, 0.7, 0.8]}, {"a": "", "b": ""}),  # four seeds
        ({"a": [NAN, *[0.9] * 4], "b": [0.1, 0.3, 0.2, 0.1, 0.2]}, {"a": "", "b": "best"}),
        ({"a": [NAN, 0.9, 0.9, 0.9, 0.9]}, {"a": ""}),
    ],
)
def test_what_is_equal_or_not_compared(values, marks):
    assert mark_best(values) == marks


@pytest.mark.parametrize(
    ("costs", "horizons", "bounds", "median", "text"),
    [
        ((10, 20, 30, 40), (100,) * 4, (20, 20), 20, "20"),  # the lower one, which was measured
        ((10, INF, 30), (100,) * 3, (30, 30), 30, "30"),  # a mean over the two would be 20
        ((10, INF, INF), (50, 100, NAN), (100, None), None, "> 100"),
        ((INF, INF, INF), (NAN,) * 3, (None, None), None, "diverged"),
        # a run that ended before the others: its seed might be below the median, or above it
        ((INF, 20, 18), (8, 20, 18), (18, 20), None, "18..20"),
        ((INF, 20, 20), (8, 20, 20), (20, 20), 20, "20"),  # the median, wherever the first one is
        ((INF, 20, INF), (8, 20, 8), (8, None), None, "> 8"),
        ((INF, 18, INF), (8, 18, 30), (18, None), None, "≥ 18"),  # 18, if the first one is below
        # one or two seeds: the values
        ((INF,), (100,), (100, None), None, "> 100"),
        ((5, INF), (15, 15), (5, 5), 5, "5, > 15"),
        ((INF, 20), (15, 30), (15, 20), None, "> 15, 20"),
        ((INF, INF), (NAN, 15), (15, None), None, "diverged, > 15"),
        ((), (), (None, None), None, "-"),  # no seed has a target
    ],
)
def test_medians_of_censored_costs(costs, horizons, bounds, median, text):
    cost = CostToTarget(costs, horizons)
    assert (cost.median, cost.at_least, cost.at_most) == (median, *bounds)
    assert cost.text(plain) == text
    record = {"rounds": median, "rounds_at_least": bounds[0], "rounds_at_most": bounds[1]}
    assert cost.record("rounds") == record


END = 6
SEED = st.tuples(st.sampled_from(["reached", "censored", "diverged"]), st.integers(1, END))


@given(st.lists(SEED, min_size=3, max_size=5))
def test_the_median_is_known_where_every_run_to_the_end_would_have_it(seeds):
    """Each censored seed reaches the target just above its horizon, at any later cost, or never."""
    costs = [cost if how == "reached" else INF for how, cost in seeds]
    horizons = [NAN if how == "diverged" else cost for how, cost in seeds]
    cost = CostToTarget(tuple(costs), tuple(horizons))
    later = [
        np.array([*np.arange(end + 0.5, END + 1, 0.5), INF]) if how == "censored" else [known]
        for (how, end), known in zip(seeds, costs, strict=True)
    ]
    completed = np.stack([each.ravel() for each in np.meshgrid(*later)])
    medians = np.sort(completed, axis=0)[(len(seeds) - 1) // 2]
    lowest, highest = medians.min(), medians.max()
    assert cost.median == (lowest if lowest == highest < INF else None)
    assert cost.at_most == (highest if highest < INF else None)
    if lowest == INF:
        assert (cost.at_least, cost.text(plain)) == (None, "diverged")
    else:  # costs of the completed runs are at distances of .5
        assert cost.at_least in (lowest, lowest - 0.5)
    if lowest < highest == INF:
        assert cost.text(plain) == f"{'≥' if cost.at_least == lowest else '>'} {cost.at_least:g}"


def test_the_first_evaluation_at_a_target():
    quality = np.array([0.1, NAN, 0.5, 0.4, 0.7])
    found = [statistics.first_at(quality, target) for target in (0.05, 0.5, 0.6, 0.8, NAN)]
    assert found == [0, 2, 4, None, None]
    assert statistics.first_at(np.array([0.1, np.float32(0.9)]), 0.9) == 1


def test_ratios_are_over_common_seeds():
    """Means over each method's own seeds would be 30 / 40, and call the slower method faster."""
    own, reference = np.array([30.0, INF, INF]), np.array([20.0, 40.0, 60.0])
    assert ratio_on_common_seeds(own, reference) == (1.5, 1)
    assert ratio_on_common_seeds(reference, own) == (20 / 30, 1)
    assert ratio_on_common_seeds(np.array([10.0, 60.0]), np.array([20.0, 50.0])) == (
        1,
        2,
    )
    assert ratio_on_common_seeds(np.array([INF, 5.0]), np.array([5.0, INF])) == (None, 0)
    assert ratio_on_common_seeds(np.array([5.0]), np.array([0.0])) == (None, 1)


@pytest.mark.parametrize("amounts", [[1, 1, 1], [0, 0, 1], [3, 1], [0, 0], [4], [1, 3, 2]])
def test_gini_coefficients(amounts):
    """Half the mean difference of two amounts, relative to their mean."""
    differences = np.abs(np.subtract.outer(amounts, amounts)).mean()
    assert gini(np.array(amounts)) == pytest.approx(differences / (2 * np.mean(amounts) or 1))


def test_columns_of_target_metrics():
    columns = [statistics.metric_column(name) for name in ("dice_score", "client_accuracy_mean")]
    assert columns == ["test_dice_score", "client_accuracy_mean"]
