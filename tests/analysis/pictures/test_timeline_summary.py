"""Idle time and counts of plans, by hand."""

import re
from fractions import Fraction

import numpy as np
import pytest
from plan_helpers import plan_by_hand, plan_of_figure_1, plan_without_server_steps

from fedjax_algos.analysis.pictures import PlanSummary, idle_share, summarise_plan
from fedjax_algos.asynchrony import FixedSystem
from fedjax_algos.asynchrony.planning import barrier, immediate


def test_idle_share_by_hand():
    # until 8 s: client 1 trains 6 s and 1 s, client 2 trains 2 s and 3 s
    share = idle_share(plan_by_hand(), 4)
    assert share.dtype == np.float64
    np.testing.assert_array_equal(share, [0, 1 / 8, 3 / 8, 1])


@pytest.mark.parametrize(
    ("end", "expected"),
    [(2, [0, 0, 0]), (5, [0, 0, 3 / 5]), (16, [6 / 16, 9 / 16, 7 / 16])],
)
def test_idle_share_until_another_end(end, expected):
    np.testing.assert_allclose(idle_share(plan_by_hand(), 3, end), expected, rtol=1e-15)


def test_idle_share_of_schedules():
    system = FixedSystem([Fraction(1), Fraction(2), Fraction(5)])
    np.testing.assert_array_equal(idle_share(immediate(steps=3)(system, 3, arrivals=40), 3), 0)
    waiting = idle_share(barrier(steps=3)(system, 3, arrivals=12), 3)
    np.testing.assert_allclose(waiting, [0.8, 0.6, 0], rtol=1e-15)
    np.testing.assert_array_equal(idle_share(plan_of_figure_1(), 5), 0)


def test_lost_dispatches_count_until_the_client_leaves():
    system = FixedSystem([1, 1], {(0, 0): (Fraction(1, 4), 3)})  # away from 1 s to 4 s
    plan = immediate(steps=4)(system, 2, arrivals=3)
    np.testing.assert_array_equal(plan.time, [4, 8, 8])
    np.testing.assert_array_equal(idle_share(plan, 2), [3 / 8, 0])


def test_the_summary_by_hand():
    summary = summarise_plan(plan_by_hand(), 3)
    assert summary == PlanSummary(2, 3, 1, 3, 1 / 3, 1, (0 + 1 / 8 + 3 / 8) / 3, 8.0)
    assert {type(value) for value in summary} == {int, float}


def test_a_plan_without_server_steps_has_idle_time_until_an_end():
    np.testing.assert_array_equal(
        idle_share(plan_without_server_steps(), 3, 8.0), [0, 1 / 8, 3 / 8]
    )


ERRORS = {
    "num_clients=2; give": lambda: idle_share(plan_by_hand(), 2),
    "dispatches client 2": lambda: summarise_plan(plan_by_hand(), 2),
    "end=0 is out of range": lambda: idle_share(plan_by_hand(), 3, 0),
    "or give end": lambda: idle_share(plan_without_server_steps(), 3),
    "the plan has no server step": lambda: summarise_plan(plan_without_server_steps(), 3),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ERRORS[message]()
