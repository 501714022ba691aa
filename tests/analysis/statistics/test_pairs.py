"""Differences between two methods on the same seeds, by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from summary_helpers import NAN

from fedjax_algos.analysis.statistics import Estimate, paired_difference


def show(value):
    return f"{value:+z.1f}"


def test_differences_are_of_the_same_seed():
    """Seeds differ by tens, methods by one half: only pairs show it."""
    reference = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    values = reference + [0.4, 0.5, 0.6, 0.5, 0.5]
    difference = paired_difference(values, reference, range(5))
    # standard deviation sqrt(.005), t(.975, 4) = 2.776445
    assert difference.estimate.mean == pytest.approx(0.5)
    assert difference.estimate.interval == pytest.approx(2.776445 * math.sqrt(0.005 / 5))
    assert difference.text(show) == "+0.5 ± 0.1"
    assert Estimate(tuple(values)).interval > 15
    assert paired_difference(values[:2], reference[:2], (3, 7)).text(show) == "+0.4, +0.5"
    assert paired_difference(values[:3], reference[:3], (3, 7, 9)).text(show) == "+0.4..+0.6"


def test_diverged_seeds_are_named():
    values, reference = np.array([1.0, NAN, 3.0, 2.0]), np.array([1.0, 1.0, 1.0, NAN])
    difference = paired_difference(values, reference, (3, 7, 11, 12))
    assert difference.without == (7, 12)
    assert difference.text(show) == "+0.0, +2.0 (without seeds 7, 12)"
    record = difference.record("final")
    assert record["final_difference"] == 1
    assert record["final_difference_seeds"] == 2
    assert record["final_difference_without"] == "7 12"
    one = paired_difference(values[:2], reference[:2], (3, 7))
    assert one.text(show) == "+0.0 (without seed 7)"
    none = paired_difference(values[1:2], reference[1:2], (7,))
    assert none.text(show) == "none (without seed 7)"
    assert math.isnan(none.record("final")["final_difference"])


def test_ties_are_zero_without_a_sign_of_minus():
    values = np.array([0.25] * 5)
    assert paired_difference(values, values, range(5)).text(show) == "+0.0 ± 0.0"
    assert paired_difference(values - 0.01, values, range(5)).text(show) == "+0.0 ± 0.0"


VALUES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8)


@given(VALUES)
def test_the_mean_difference_is_the_difference_of_the_means_and_changes_its_sign(pairs):
    a, b = np.array(pairs).T
    forth, back = (paired_difference(*two, range(len(a))).estimate for two in ((a, b), (b, a)))
    assert forth.mean == pytest.approx(a.mean() - b.mean(), abs=1e-12)
    assert forth.values == tuple(-value for value in back.values)
    assert forth.interval == pytest.approx(back.interval, nan_ok=True)
