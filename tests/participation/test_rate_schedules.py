"""Learning rate schedules: each rule by hand, and their use in rounds."""

import numpy as np
import pytest
from helpers import fixed

import fedjax_algos as fa
from fedjax_algos.participation import Cohorts, rate_schedules

COUNTS = np.array([4, 4, 4])
RATES = {
    "constant": [0.8, 0.8, 0.8, 0.8, 0.8],
    "exponential:decay=0.5": [0.8, 0.4, 0.2, 0.1, 0.05],
    "step:factor=0.1,every=2": [0.8, 0.8, 0.08, 0.08, 0.008],
    "step:factor=2,every=3": [0.8, 0.8, 0.8, 1.6, 1.6],
    "inverse": [0.8, 0.4, 0.8 / 3, 0.2, 0.16],
    "inverse:decay=0.25": [0.8, 0.64, 0.8 / 1.5, 0.8 / 1.75, 0.4],
}


def test_every_schedule_is_tested():
    assert {spec.partition(":")[0] for spec in RATES} == set(rate_schedules)


@pytest.mark.parametrize(("spec", "expected"), RATES.items())
def test_rates_by_hand(spec, expected):
    rate = rate_schedules.make(spec, 0.8)
    np.testing.assert_allclose(rate(np.arange(5)), expected, rtol=1e-15)
    assert np.shape(rate(4)) == ()
    assert rate(np.zeros((2, 3), np.int32)).tolist() == [[0.8] * 3] * 2


def rounds_of(rate, **keywords):
    local = fa.Local(batch_size=4, learning_rate=rate, steps=1, **keywords)
    sampler = fixed([[0, 1], [0, 2], [0, 1]])
    return Cohorts(COUNTS, local, cohort_size=2, seed=0, sampler=sampler)


def test_rates_of_the_round_and_of_the_dispatch():
    """They continue over calls."""
    rate = rate_schedules["exponential"](0.5, decay=0.5)
    expected = {
        "round": [[0.5, 0.5], [0.25, 0.25], [0.125, 0.125]],
        "dispatch": [[0.5, 0.5], [0.25, 0.5], [0.125, 0.25]],
    }
    for rate_by, rates in expected.items():
        drawn = rounds_of(rate, rate_by=rate_by)
        values = np.concatenate([drawn.dispatches(n).learning_rate for n in (1, 2)])
        np.testing.assert_array_equal(values, rates)
        assert values.dtype == np.float32


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (np.inf, "learning_rate=inf"),
        (lambda t: 0.2 - 0.1 * t, "is 0.0 at count 2"),
        (rate_schedules["step"](1.0, factor=1e-200, every=1), "is 0.0 at count 2"),
    ],
)
def test_rates_that_are_not_positive_are_rejected(rate, message):
    with pytest.raises(ValueError, match=message):
        rounds_of(rate).dispatches(3)
