"""Simulated systems: their distributions, which depend on (seed, client, dispatch) alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedjax_algos.asynchrony import system_models
from fedjax_algos.participation.local_work import SpeedDistribution, relative_times

SPECS = ["simulated", "simulated:speeds=exponential,change=0.3,dropout=0.2"]
SEEDS = st.integers(0, 2**31 - 1)
simulated = system_models["simulated"]


def per_step(system, clients, dispatches):
    """float[clients, dispatches] seconds per step."""
    return np.array([[system.seconds(i, v, 1) for v in range(dispatches)] for i in range(clients)])


def unavailabilities(system, clients, dispatches):
    return [system.unavailability(i, v) for i in range(clients) for v in range(dispatches)]


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=15)
@given(SEEDS, st.lists(st.tuples(st.integers(0, 600), st.integers(0, 300)), max_size=30))
def test_the_order_of_queries_does_not_matter(spec, seed, queries):
    one, other = system_models.make(spec)(seed), system_models.make(spec)(seed)
    answers = {q: (one.seconds(*q, 7), one.unavailability(*q)) for q in queries}
    for q in sorted(queries, reverse=True):
        assert (other.seconds(*q, 7), other.unavailability(*q)) == answers[q]
    for q in reversed(queries):  # unavailability before seconds
        assert system_models.make(spec)(seed).unavailability(*q) == answers[q][1]


@pytest.mark.parametrize("spec", SPECS)
def test_seeds_clients_and_dispatches_differ(spec):
    times = np.stack([per_step(system_models.make(spec)(seed), 300, 12) for seed in (0, 1, 2**40)])
    assert len(np.unique(times)) == times.size


def test_dropouts_do_not_change_times_and_changes_of_speed_do_not_change_the_jitter():
    plain = per_step(simulated()(5), 40, 200)
    np.testing.assert_array_equal(plain, per_step(simulated(dropout=0.5)(5), 40, 200))
    options = {"speeds": "homogeneous", "dropout": 0.5}
    fixed, moved = (simulated(change=change, **options)(5) for change in (0, 0.5))
    np.testing.assert_array_equal(per_step(fixed, 40, 200), per_step(moved, 40, 200))
    assert unavailabilities(fixed, 4, 99) == unavailabilities(moved, 4, 99)


@pytest.mark.parametrize("options", [("normal", 0.01, None), ("exponential", 0.3, 0.5)])
def test_mean_times_are_those_of_the_deadline(options):
    named = dict(zip(("speeds", "time_floor", "time_bin"), options, strict=True))
    system = simulated(seconds_per_step=0.8, jitter=0, **named)(7)
    expected = 0.8 * relative_times(SpeedDistribution(*options), 7, 9000)
    for client in (0, 1, 255, 256, 4095, 4096, 8999):
        assert system.expected_seconds_per_step(client) == expected[client]
        assert {system.seconds(client, number, 1) for number in (0, 3, 4, 90)} == {expected[client]}
        assert system.seconds(client, 0, 20) == 20 * expected[client]


def test_times_vary_by_the_jitter_in_each_dispatch():
    system = simulated(speeds="normal")(0)
    times = per_step(system, 30, 2000)
    means = np.array([system.expected_seconds_per_step(client) for client in range(30)])
    z = (times / means[:, None] - 1) / 0.05
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(z)[np.triu_indices(30, 1)]).max() < 4.5 / 2000**0.5
    assert abs((z[:, 1:] * z[:, :-1]).mean()) < 4 / 60000**0.5


def test_the_jitter_keeps_times_at_half_or_more():
    times = per_step(simulated(speeds="homogeneous", jitter=1)(0), 10, 2000)
    assert times.min() == 0.05
    share = stats.norm.cdf(-0.5)
    assert abs((times == 0.05).mean() - share) < 4 * (share * (1 - share) / 20000) ** 0.5


@pytest.mark.parametrize("speeds", ["normal", "exponential"])
def test_speeds_change(speeds):
    """With probability .1 before each dispatch but the first, to an independent draw."""
    system = simulated(speeds=speeds, seconds_per_step=2, jitter=0, change=0.1)(0)
    times = per_step(system, 300, 400) / 2
    np.testing.assert_array_equal(times[:, 0], relative_times(SpeedDistribution(speeds), 0, 300))
    changed = times[:, 1:] != times[:, :-1]
    assert abs(changed.mean() - 0.1) < 4 * (0.1 * 0.9 / changed.size) ** 0.5
    assert np.abs(changed.mean(0) - 0.1).max() < 5 * (0.1 * 0.9 / 300) ** 0.5
    fresh = times[:, 1:][changed]
    if speeds == "normal":
        assert stats.kstest((fresh - 1) / 0.3, "truncnorm", (-0.95 / 0.3, np.inf)).pvalue > 1e-3
        assert times.min() > 0.05
    else:
        assert times.min() == 0.01
        assert stats.kstest(fresh[fresh > 0.01] - 0.01, "expon").pvalue > 1e-3
    before = times[:, :-1][changed]
    assert abs(np.corrcoef(before, fresh)[0, 1]) < 4 / changed.sum() ** 0.5


def test_dropouts():
    """The number of lost dispatches, when they are lost, and the time away."""
    system = simulated(dropout=0.2, unavailable_seconds=30)(1)
    found = unavailabilities(system, 300, 200)
    lost = np.array([each for each in found if each is not None])
    assert abs(len(lost) / len(found) - 0.2) < 4 * (0.2 * 0.8 / len(found)) ** 0.5
    assert stats.kstest(lost[:, 0], "uniform").pvalue > 1e-3
    assert stats.kstest(lost[:, 1] / 30, "expon").pvalue > 1e-3
    grid = np.array([each is not None for each in found]).reshape(300, 200)
    assert np.abs(grid.mean(0) - 0.2).max() < 5 * (0.16 / 300) ** 0.5
    assert np.abs(grid.mean(1) - 0.2).max() < 5 * (0.16 / 200) ** 0.5
    assert simulated()(1).unavailability(0, 0) is None
    times = per_step(simulated(dropout=0.2, speeds="homogeneous")(1), 300, 200)
    assert abs(np.corrcoef(times.ravel(), grid.ravel())[0, 1]) < 4 / grid.size**0.5


def test_communication_is_added_to_each_dispatch():
    options = {"speeds": "homogeneous", "seconds_per_step": 0.5, "jitter": 0}
    sent = {"download_bytes": 150, "upload_bytes": 50}
    assert simulated(**options)(0, **sent).seconds(4, 9, 10) == 5
    make = simulated(communication_seconds=3, bytes_per_second=100, **options)
    assert make(0).seconds(4, 9, 10) == 8
    assert make(0, **sent).seconds(4, 9, 10) == 10
    assert make(0, **sent).expected_seconds_per_step(0) == 0.5


WRONG = """speeds=fast seconds_per_step=0 jitter=-1 change=1.5 communication_seconds=-1 dropout=1
  bytes_per_second=0 unavailable_seconds=0 time_floor=-1 time_bin=0 time_bin=0.5"""


def test_wrong_options():
    for wrong in WRONG.split():  # the last one is for exponential speeds
        with pytest.raises(ValueError, match=wrong.replace("=", "='?")):
            system_models.make(f"simulated:{wrong}")
    for seed, options in ((-1, {}), (0, {"upload_bytes": -2}), (0, {"download_bytes": -2})):
        with pytest.raises(ValueError, match=r"=-[12] is out of range"):
            simulated()(seed, **options)
