"""The best method and what cannot be told from it, against scipy and closed testing."""

import itertools

import numpy as np
import pytest
from scipy import stats

from fedjax_algos.analysis.statistics import holm, mark_best, paired_p_value

NAN = float("nan")


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_p_values_are_those_of_scipy(seeds):
    first, second = np.random.default_rng(seeds).normal(size=(2, seeds))
    for shift in (0, 1, -5):
        expected = stats.ttest_rel(first + shift, second).pvalue
        assert paired_p_value(first + shift - second) == pytest.approx(expected, rel=1e-12)


def test_p_values_without_variance():
    assert paired_p_value([0.0, 0.0, 0.0]) == 1
    assert paired_p_value([0.5, 0.5, 0.5]) == 0
    assert paired_p_value([-0.5, -0.5]) == 0


def closed_testing(p_values):
    """Corrected p-values: the largest Bonferroni one of all sets of hypotheses with a given one."""
    tests = range(len(p_values))
    sets = [c for size in tests for c in itertools.combinations(tests, size + 1)]
    return [
        max(min(1, len(own) * min(p_values[i] for i in own)) for own in sets if test in own)
        for test in tests
    ]


@pytest.mark.parametrize("seed", range(5))
def test_holm_is_closed_testing_with_bonferroni(seed):
    p_values = np.random.default_rng(seed).uniform(size=6) ** 4
    p_values[1] = p_values[4]
    np.testing.assert_allclose(holm(p_values), closed_testing(p_values), rtol=1e-14)


def test_holm_by_hand():
    """The example of Holm's procedure: 4 * .005, 3 * .01, 2 * .03 and .04, never falling."""
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    assert holm([]).tolist() == []
    assert holm([0.7, 0.6]).tolist() == [1, 1]


def test_marks():
    """p is .05 / 2 for a, which is enough alone and not beside two others."""
    quantile = stats.t.isf(0.0125, 4)
    shape = np.array([-1.0, -0.5, 0, 0.5, 1])
    error = shape.std(ddof=1) / np.sqrt(5)
    best = np.zeros(5)
    borderline = shape - quantile * error * 1.001
    near, clear = shape[[1, 0, 3, 2, 4]] - 0.1, shape - 50
    assert paired_p_value(best - borderline) == pytest.approx(0.025, rel=0.01)
    assert mark_best({"a": borderline, "b": best}) == {"a": "", "b": "best"}
    assert mark_best({"b": best, "a": borderline, "c": near})["a"] == ""  # 2 * .025 is at .05
    marks = mark_best({"b": best, "a": borderline, "c": near, "d": near})
    assert marks == {"b": "best", "a": "not told", "c": "not told", "d": "not told"}
    # step down: what is clear is one hypothesis less
    marks = mark_best({"b": best, "a": borderline, "c": near, "d": clear})
    assert marks == {"b": "best", "a": "", "c": "not told", "d": ""}


def test_equal_methods_cannot_be_told_apart():
    assert mark_best({"a": [0.1, 0.2, 0.3], "b": [0.1, 0.2, 0.3]}) == {"a": "best", "b": "not told"}


def test_what_is_not_compared():
    assert mark_best({}) == {}
    assert mark_best({"a": [0.1, 0.2], "b": [0.1, 0.3]}) == {"a": "", "b": ""}
    assert mark_best({"a": [NAN, 0.9, 0.9], "b": [0.1, 0.3, 0.2]}) == {"a": "", "b": "best"}
    assert mark_best({"a": [NAN, 0.9, 0.9]}) == {"a": ""}
