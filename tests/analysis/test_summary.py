"""The summary of a comparison, and its confidence intervals."""

import numpy as np
import pytest
from summary_helpers import ALL_DIVERGED, FIRST, HALF_DIVERGED, NAN, OTHER, rows

from fedjax_algos.analysis.summary import confidence_half_width, summarise


def test_the_interval_uses_student_s_t():
    """Three values: t(.975, 2) = 4.302653, standard deviation 1."""
    half_width = confidence_half_width(np.array([1.0, 2.0, 3.0]))
    assert half_width == pytest.approx(4.302653 / np.sqrt(3), abs=1e-6)
    assert np.isnan(confidence_half_width(np.array([1.0])))


def test_the_target_is_the_first_method_s_best_on_the_same_seed():
    first = [[0.1, 0.5, 0.4], [0.1, 0.3, 0.8], [0.1, 0.6, 0.6], [0.1, 0.2, 0.9]]
    other = [[0.5, 0.9, 0.9], [0.1, 0.8, 0.7], [0.1, 0.2, 0.5], [0.1, 0.2, 0.3]]
    worse = [[0.1, 0.1, 0.5], *[[0.0, 0.0, 0.0]] * 3]
    table = summarise(rows("first", first) + rows("other", other) + rows("worse", worse))
    assert [line.label for line in table] == ["first", "other", "worse"]
    a, b, c = table
    assert (a.final, a.best) == (pytest.approx(0.675), pytest.approx(0.7))
    assert (a.rounds, a.seeds_reaching) == (10, 4)  # of 10, 20, 10, 20: the lower median
    assert (b.rounds, b.upload_bytes, b.seeds_reaching) == (10, 1000, 2)  # of 0, 10, never, never
    assert (c.rounds, c.upload_bytes, c.seeds_reaching) == (None, None, 1)
    assert a.seconds == 2.5


def test_a_given_target_replaces_the_first_method_s_best():
    measured = rows("first", FIRST) + rows("other", OTHER)
    first, other = summarise(measured)
    assert (first.rounds, first.seeds_reaching) == (10, 2)  # of 20 and 10
    first, other = summarise(measured, target=0.65)
    assert (first.rounds, first.seeds_reaching) == (10, 1)
    assert (other.rounds, other.seeds_reaching) == (20, 2)
    first, other = summarise(measured, target=0.85)
    assert (first.rounds, first.seeds_reaching, other.seeds_reaching) == (None, 0, 1)


def test_flops_to_the_target_are_those_that_were_measured():
    first, other = summarise(rows("first", FIRST, flops=3.14e11) + rows("other", OTHER))
    assert (first.flops, other.flops) == (3.14e12, None)
    assert summarise(rows("first", FIRST))[0].flops is None


def test_diverged_runs_are_counted():
    measured = rows("half", HALF_DIVERGED) + rows("all", ALL_DIVERGED) + rows("fine", OTHER)
    half, everywhere, fine = summarise(measured)
    assert (half.seeds_diverged, everywhere.seeds_diverged, fine.seeds_diverged) == (1, 2, 0)
    assert half.best == pytest.approx(0.5)  # before it diverged
    assert (half.rounds, half.seeds_reaching) == (10, 2)
    assert (everywhere.rounds, everywhere.seeds_reaching) == (None, 0)
    assert summarise(rows("all", ALL_DIVERGED[:1]) + rows("fine", OTHER[:1]))[1].rounds is None


def test_a_loss_that_is_not_finite_is_a_diverged_run():
    """The largest of logits that are all NaN is the first, so that an accuracy stays finite."""
    measured = rows("first", FIRST)
    measured[-1]["test_loss"] = NAN
    assert summarise(measured)[0].seeds_diverged == 1
