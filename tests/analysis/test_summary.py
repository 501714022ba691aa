"""The summary of a comparison, and its confidence intervals."""

import numpy as np
import pytest

from fedjax_algos.analysis.summary import confidence_half_width, summarise


def test_the_interval_uses_student_s_t():
    """Three values: t(.975, 2) = 4.302653, standard deviation 1."""
    half_width = confidence_half_width(np.array([1.0, 2.0, 3.0]))
    assert half_width == pytest.approx(4.302653 / np.sqrt(3), abs=1e-6)
    assert np.isnan(confidence_half_width(np.array([1.0])))


def rows(method, by_seed):
    return [
        {
            "method": method,
            "seed": seed,
            "round": 10 * index,
            "test_accuracy": accuracy,
            "upload_bytes": 1000 * index,
            "wall_seconds": 1.0 + seed,
        }
        for seed, curve in enumerate(by_seed)
        for index, accuracy in enumerate(curve)
    ]


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
