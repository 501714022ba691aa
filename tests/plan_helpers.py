"""Plans written by hand."""

from fractions import Fraction

import numpy as np

from fedjax_algos.asynchrony import FixedSystem
from fedjax_algos.asynchrony.compass import CompassTrace, compass
from fedjax_algos.asynchrony.plan import AGGREGATED, IN_FLIGHT, LOST, Plan

# client, number, version, started, ended, fate; the second update of client 1 ends in a buffer
DISPATCHES = [
    (0, 0, 0, 0, 4, AGGREGATED),
    (1, 0, 0, 0, 6, AGGREGATED),
    (2, 0, 0, 0, 2, LOST),
    (0, 1, 1, 4, 8, AGGREGATED),
    (2, 1, 1, 5, 12, IN_FLIGHT),
    (1, 1, 1, 6, 7, IN_FLIGHT),
    (0, 2, 2, 8, 10, IN_FLIGHT),
]


def plan_by_hand(contributions=((0, 0, 0), (1, 1, 1), (3, 0, 1)), times=(4, 8), groups=(0, 0)):
    """A plan of three clients; a contribution is (dispatch, staleness, server step)."""
    client, number, version, started, ended, fate = np.array(DISPATCHES).T
    dispatch, staleness, step = np.array(contributions, np.int32).reshape(-1, 3).T
    num_steps = np.full(len(client), 10)
    started, ended, time = (np.array(values, float) for values in (started, ended, times))
    facts = client, number, num_steps, num_steps, version, started, ended, fate.astype(np.int8)
    return Plan(*facts, dispatch, staleness, step, time, np.array(groups, np.int32))


def trace_by_hand():
    """Arrival groups for that plan."""
    group, unknown = np.array([0, 0, 0, 1, 1, 2, 2], np.int32), np.full(7, np.nan)
    return CompassTrace(group, unknown, unknown, unknown, np.arange(7) == 3, np.array([0, 1]))


def plan_without_server_steps():
    """The dispatches of that plan alone."""
    return plan_by_hand(contributions=(), times=(), groups=())


def plan_of_figure_1():
    """The five clients of the FedCompass paper's figure 1, 45 minutes."""
    system = FixedSystem([60 / Fraction(rate) for rate in ("10", "5", "4", "2.5", "2")])
    return compass(min_steps=20, max_steps=100)(system, 5, seconds=2700)
