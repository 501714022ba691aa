"""System models in rounds: sessions and lateness by hand, on the host and traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_algos as fa
from fedjax_algos.asynchrony import FixedSystem, in_session, late, simulated
from fedjax_algos.core.types import with_arrays
from fedjax_algos.participation import Cohorts, traced_samplers
from fedjax_algos.participation.systems.fedscale import Sessions

COUNTS = np.array([4, 8, 12, 4])
LOCAL = fa.Local(4, 0.1, epochs=1)  # 1, 2, 3 and 1 steps


TIMES = [1.0, 2.0, 3.0, 4.0]


class SystemOfSessions(FixedSystem):
    """Client i steps in i + 1 seconds and is there from 0 to 10 + 10 i in each 40 seconds."""

    def unavailability_at(self, client, now, seconds):
        """See `SystemModelWithSessions`."""
        return Sessions.of((0,), (10 + 10 * client,), 40).unavailability(now, seconds)


def make(seed, *, download_bytes=0, upload_bytes=0):
    return SystemOfSessions(TIMES)


def draw(cohort_size=4, seed=2, **options):
    cohorts = Cohorts(COUNTS, LOCAL, cohort_size=cohort_size, seed=seed, **options)
    return cohorts.dispatches(8)


def digits(cohorts):
    """The clients of each cohort, in order."""
    return " ".join("".join(map(str, sorted(cohort))) for cohort in cohorts)


def test_cohorts_are_the_clients_in_a_session():
    """Rounds of 15 seconds, at 0, 15, 30, 5, 20, 35, 10 and 25 s of the period; ends count."""
    drawn = draw(sampler=in_session(seconds=15, system=make)).client
    assert digits({*cohort} - {4} for cohort in drawn) == "0123 123 23 0123 123 3 0123 23"


def test_late_clients_fail():
    """Their dispatches take 1, 4, 9 and 4 seconds."""
    plain = FixedSystem(TIMES, {(0, 1): (0.5, 7.0)})
    for work, late_client in ((None, 2), (lambda *given: np.ones_like(given[3]), None)):
        drawn = draw(failures=late(seconds=4.0, system=lambda seed: plain), work=work)
        expected = (drawn.client != late_client) & ((drawn.client != 0) | (drawn.number != 1))
        np.testing.assert_array_equal(drawn.arrives, expected)


def test_clients_that_leave_fail():
    """Rounds of nine seconds, in which all can finish, start at 0, 9, 18, 27, 36, 5, 14, 23 s."""
    drawn = draw(failures=late(seconds=9.0, system=make))
    answered = (set(i[arrives]) for i, arrives in zip(drawn.client, drawn.arrives, strict=True))
    assert digits(answered) == "0123 0123 23 3 3 0123 123 3"


@pytest.mark.all
def test_traced_rounds_ask_the_same_system():
    system = simulated(speeds="exponential", seconds_per_step=1.0, dropout=0.2)
    options = {"cohort_size": 3, "failures": late(seconds=2.0, system=system)}
    sampler = traced_samplers["in_session"](seconds=15, system=make)

    def dispatches(seed):
        return fa.traced_dispatches(seed, COUNTS, LOCAL, rounds=8, sampler=sampler, **options)

    drawn = with_arrays(jax.jit(jax.vmap(dispatches))(jnp.arange(2)))
    for seed in range(2):
        expected = draw(sampler=in_session(seconds=15, system=make), **options, seed=seed)
        for name in expected._fields:
            ours, theirs = getattr(drawn, name)[seed], getattr(expected, name)
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
    assert 0 < expected.arrives.sum() < (expected.client < 4).sum()


def test_wrong_systems_are_refused():
    with pytest.raises(ValueError, match="late has no system model"):
        late(seconds=1.0)
    with pytest.raises(ValueError, match="in_session has no system model with sessions"):
        in_session(seconds=1.0, system=simulated())
