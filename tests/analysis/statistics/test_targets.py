"""Costs to reach a target with censored seeds, by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from summary_helpers import NAN

from fedjax_algos.analysis.statistics import CostToTarget, first_at, ratio_on_common_seeds

INF = math.inf


def show(value):
    return f"{value:g}"


@pytest.mark.parametrize(
    ("costs", "horizons", "horizon", "median", "text"),
    [
        ((30, 10, 20), (100,) * 3, None, 20, "20"),
        ((10, 20, 30, 40), (100,) * 4, None, 20, "20"),  # the lower one, which was measured
        ((10, INF, 30), (100,) * 3, 100, 30, "30"),  # a mean over the two would be 20
        ((10, INF, 30, INF), (100, 90, 100, 80), 80, 30, "30"),
        ((10, INF, INF), (50, 100, NAN), 100, None, "> 100"),
        ((INF, INF, INF), (NAN,) * 3, None, None, "diverged"),
        # one or two seeds: the values
        ((INF,), (100,), 100, None, "> 100"),
        ((5,), (100,), None, 5, "5"),
        ((5, INF), (15, 15), 15, 5, "5, > 15"),
        ((INF, 20), (15, 30), 15, 20, "> 15, 20"),
        ((INF, INF), (NAN, 15), 15, None, "diverged, > 15"),
        ((), (), None, None, "-"),  # no seed has a target
    ],
)
def test_censored_seeds_are_later_than_all_others(costs, horizons, horizon, median, text):
    cost = CostToTarget(costs, horizons)
    assert (cost.median, cost.horizon) == (median, horizon)
    assert cost.text(show) == text
    assert cost.record("rounds") == {"rounds": median, "rounds_horizon": horizon}


def test_the_first_evaluation_at_a_target():
    quality = np.array([0.1, NAN, 0.5, 0.4, 0.7])
    assert [first_at(quality, target) for target in (0.05, 0.5, 0.6, 0.8)] == [0, 2, 4, None]
    assert first_at(np.array([0.1, np.float32(0.9)]), 0.9) == 1
    assert first_at(quality, NAN) is None


def test_ratios_are_over_common_seeds():
    """Means over each method's own seeds would be 30 / 40, and call the slower method faster."""
    own, reference = np.array([30.0, INF, INF]), np.array([20.0, 40.0, 60.0])
    assert ratio_on_common_seeds(own, reference) == (1.5, 1)
    assert ratio_on_common_seeds(reference, own) == (20 / 30, 1)
    assert ratio_on_common_seeds(np.array([10.0, 60.0]), np.array([20.0, 50.0])) == (1, 2)
    assert ratio_on_common_seeds(np.array([INF, 5.0]), np.array([5.0, INF])) == (None, 0)
    assert ratio_on_common_seeds(np.array([5.0]), np.array([0.0])) == (None, 1)


COSTS = st.lists(st.integers(1, 50) | st.just(INF), min_size=1, max_size=9)


@given(COSTS, st.integers(0, 100))
def test_a_longer_horizon_never_changes_a_known_median(costs, longer):
    """Seeds that reach the target after 50 rounds are all above those that did before."""
    whole = (50.0,) * len(costs)
    cost = CostToTarget(tuple(costs), whole)
    run_on = CostToTarget(tuple(51 + longer if c == INF else c for c in costs), whole)
    assert run_on.median is not None
    assert run_on.median == cost.median or (cost.median is None and run_on.median > 50)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_exchanged_methods_have_the_inverse_ratio(pairs):
    own, reference = np.array(pairs, float).T
    ratio, common = ratio_on_common_seeds(own, reference)
    inverse, again = ratio_on_common_seeds(reference, own)
    assert common == again == len(pairs)
    assert ratio * inverse == pytest.approx(1)
