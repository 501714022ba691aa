"""Estimates over few and many seeds, against numbers by hand."""

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
