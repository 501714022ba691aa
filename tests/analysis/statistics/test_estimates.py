"""Estimates over seeds and paired differences, against numbers by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from summary_helpers import NAN

from fedjax_algos.analysis.statistics import (
    SPREADS,
    Estimate,
    choose_spread,
    confidence_half_width,
    describe_estimates,
    paired_difference,
    spread,
)


def show(value):
    return f"{value:.1f}"


def test_the_interval_uses_student_s_t():
    """Three values: t(.975, 2) = 4.302653, standard deviation 1."""
    half_width = confidence_half_width(np.array([1.0, 2.0, 3.0]))
    assert half_width == pytest.approx(4.302653 / np.sqrt(3), abs=1e-6)
    assert np.isnan(confidence_half_width(np.array([1.0])))


@pytest.mark.parametrize(
    ("values", "text", "legend"),
    [
        ([95.1], "95.1", "of one seed"),
        ([95.9, 95.1], "95.9, 95.1", "of each of 2 seeds"),  # in the order of the seeds
        ([95.5, 95.9, 95.1], "95.1..95.9", "lowest..highest of 3 seeds"),
        ([95.5, 95.9, 95.1, 95.2], "95.1..95.9", "lowest..highest of 4 seeds"),
        # t(.975, 4) = 2.776445, standard deviation sqrt(2.5)
        ([1, 2, 3, 4, 5], "3.0 ± 2.0", "mean of 5 seeds ± half the 95% confidence interval"),
    ],
)
def test_below_five_seeds_there_is_no_interval(values, text, legend):
    assert Estimate(tuple(values)).text(show) == text
    assert describe_estimates(len(values)) == legend


def test_two_seeds_have_no_interval_of_103():
    """Half the interval of two seeds, 12.7 standard errors, was larger than 100%."""
    two = Estimate((0.335, 0.497))
    assert 100 * confidence_half_width(np.array(two.values)) == pytest.approx(102.9, abs=0.1)
    assert math.isnan(two.interval)
    assert two.record("final") == {
        "final": pytest.approx(0.416),
        "final_interval": pytest.approx(NAN, nan_ok=True),
        "final_lowest": 0.335,
        "final_highest": 0.497,
    }


def test_diverged_seeds_are_counted_instead_of_a_mean():
    assert Estimate((0.5, NAN, 0.7)).text(show) == "1/3 diverged"
    assert Estimate((NAN, NAN)).text(show) == "diverged"
    assert Estimate((0.5, float("inf"), 0.1, 0.2, 0.3)).text(show) == "1/5 diverged"
    assert math.isnan(Estimate((0.5, NAN)).mean)


def test_the_sign_of_a_mean_is_not_that_of_its_interval():
    assert Estimate((1.0, 2, 3, 4, 5)).text(lambda value: f"{value:+.1f}") == "+3.0 ± 2.0"


def test_figures_draw_what_tables_say():
    curves = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [4.0, 5.0], [5.0, 5.0]])
    low, high = spread(curves)
    np.testing.assert_allclose([low, high], [[1.036757, 5], [4.963243, 5]], rtol=1e-6)
    np.testing.assert_array_equal(spread(curves[:4]), [[1, 5], [4, 5]])
    np.testing.assert_array_equal(spread(curves, "range"), [curves.min(0), curves.max(0)])
    assert [choose_spread(seeds) for seeds in (1, 2, 4, 5)] == [*["range"] * 3, "interval"]
    assert SPREADS == {"interval": "95% confidence interval", "range": "lowest to highest"}


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12), st.randoms())
def test_the_order_of_the_seeds_does_not_matter(values, random):
    """But for two seeds, whose values are shown in their order."""
    shuffled = random.sample(values, len(values))
    one, other = Estimate(tuple(values)), Estimate(tuple(shuffled))
    assert one.record("x") == pytest.approx(other.record("x"), abs=1e-12, nan_ok=True)
    if len(values) != 2:
        assert one.text(show).replace("-0.0", "0.0") == other.text(show).replace("-0.0", "0.0")
    low, high = spread(np.array(values))
    assert low - 1e-9 <= one.mean <= high + 1e-9


def signed(value):
    return f"{value:+z.1f}"


def test_differences_are_of_the_same_seed():
    """Seeds differ by tens, methods by one half: only pairs show it."""
    reference = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    values = reference + [0.4, 0.5, 0.6, 0.5, 0.5]
    difference = paired_difference(values, reference, range(5))
    # standard deviation sqrt(.005), t(.975, 4) = 2.776445
    assert difference.estimate.mean == pytest.approx(0.5)
    assert difference.estimate.interval == pytest.approx(2.776445 * math.sqrt(0.005 / 5))
    assert difference.text(signed) == "+0.5 ± 0.1"
    assert Estimate(tuple(values)).interval > 15
    assert paired_difference(values[:2], reference[:2], (3, 7)).text(signed) == "+0.4, +0.5"
    assert paired_difference(values[:3], reference[:3], (3, 7, 9)).text(signed) == "+0.4..+0.6"


def test_diverged_seeds_are_named():
    values, reference = np.array([1.0, NAN, 3.0, 2.0]), np.array([1.0, 1.0, 1.0, NAN])
    difference = paired_difference(values, reference, (3, 7, 11, 12))
    assert difference.without == (7, 12)
    assert difference.text(signed) == "+0.0, +2.0 (without seeds 7, 12)"
    record = difference.record("final")
    assert record["final_difference"] == 1
    assert record["final_difference_seeds"] == 2
    assert record["final_difference_without"] == "7 12"
    one = paired_difference(values[:2], reference[:2], (3, 7))
    assert one.text(signed) == "+0.0 (without seed 7)"
    none = paired_difference(values[1:2], reference[1:2], (7,))
    assert none.text(signed) == "none (without seed 7)"
    assert math.isnan(none.record("final")["final_difference"])


def test_ties_are_zero_without_a_sign_of_minus():
    values = np.array([0.25] * 5)
    assert paired_difference(values, values, range(5)).text(signed) == "+0.0 ± 0.0"
    assert paired_difference(values - 0.01, values, range(5)).text(signed) == "+0.0 ± 0.0"


VALUES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8)


@given(VALUES)
def test_the_mean_difference_is_the_difference_of_the_means_and_changes_its_sign(pairs):
    a, b = np.array(pairs).T
    forth, back = (paired_difference(*two, range(len(a))).estimate for two in ((a, b), (b, a)))
    assert forth.mean == pytest.approx(a.mean() - b.mean(), abs=1e-12)
    assert forth.values == tuple(-value for value in back.values)
    assert forth.interval == pytest.approx(back.interval, nan_ok=True)
