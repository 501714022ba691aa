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
    ("costs", "horizons", "bounds", "median", "text"),
    [
        ((30, 10, 20), (100,) * 3, (20, 20), 20, "20"),
        ((10, 20, 30, 40), (100,) * 4, (20, 20), 20, "20"),  # the lower one, which was measured
        ((10, INF, 30), (100,) * 3, (30, 30), 30, "30"),  # a mean over the two would be 20
        ((10, INF, 30, INF), (100, 90, 100, 80), (30, 30), 30, "30"),
        ((10, 20, INF), (50, 100, NAN), (20, 20), 20, "20"),  # it never reaches the target
        ((10, INF, INF), (50, 100, NAN), (100, None), None, "> 100"),
        ((10, INF, INF), (50, NAN, NAN), (None, None), None, "diverged"),
        ((INF, INF, INF), (NAN,) * 3, (None, None), None, "diverged"),
        # a run that ended before the others: its seed might be below the median, or above it
        ((INF, 20, 18), (8, 20, 18), (18, 20), None, "18..20"),
        ((INF, 20, 18), (19, 20, 18), (19, 20), None, "19..20"),
        ((INF, 20, 18), (20, 20, 18), (20, 20), 20, "20"),
        ((INF, 20, 20), (8, 20, 20), (20, 20), 20, "20"),  # the median, wherever the first one is
        ((INF, 20, INF), (8, 20, 8), (8, None), None, "> 8"),
        ((INF, 18, INF), (8, 18, 30), (18, None), None, "≥ 18"),  # 18, if the first one is below
        ((INF, INF, INF), (8, 9, 30), (9, None), None, "> 9"),
        # one or two seeds: the values
        ((INF,), (100,), (100, None), None, "> 100"),
        ((5,), (100,), (5, 5), 5, "5"),
        ((5, INF), (15, 15), (5, 5), 5, "5, > 15"),
        ((INF, 20), (15, 30), (15, 20), None, "> 15, 20"),
        ((INF, INF), (NAN, 15), (15, None), None, "diverged, > 15"),
        ((), (), (None, None), None, "-"),  # no seed has a target
    ],
)
def test_medians_of_censored_costs(costs, horizons, bounds, median, text):
    cost = CostToTarget(costs, horizons)
    assert (cost.median, cost.at_least, cost.at_most) == (median, *bounds)
    assert cost.text(show) == text
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
        assert (cost.at_least, cost.text(show)) == (None, "diverged")
        return
    # costs of the completed runs are at distances of .5
    assert cost.at_least in (lowest, lowest - 0.5)
    if highest == INF:
        assert cost.text(show) == f"{'≥' if cost.at_least == lowest else '>'} {cost.at_least}"


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
