"""Training on a virtual clock: which client is dispatched when, and what a server step consists of.

A system model says how long clients take and when they are unavailable; a planner plans a run in
that system before any training. `planners` and `system_models` hold the factories by name.
"""

from fedjax_algos.asynchrony.compass import CompassTrace, compass
from fedjax_algos.asynchrony.plan import EventLoop, Plan, plan_dispatches
from fedjax_algos.asynchrony.planning import (
    Planner,
    barrier,
    buffered,
    check_asynchronous,
    check_planner,
    immediate,
    planners,
    tiers,
    tiers_of,
)
from fedjax_algos.participation.in_rounds import in_session, late
from fedjax_algos.participation.systems.fedscale import fedscale
from fedjax_algos.participation.systems.simulated import simulated
from fedjax_algos.participation.systems.system_model import (
    FixedSystem,
    SystemModel,
    SystemModelFactory,
    SystemModelWithSessions,
    SystemModelWithSpeeds,
    csv,
    system_models,
    system_of,
    traced,
)

__all__ = [
    "CompassTrace",
    "EventLoop",
    "FixedSystem",
    "Plan",
    "Planner",
    "SystemModel",
    "SystemModelFactory",
    "SystemModelWithSessions",
    "SystemModelWithSpeeds",
    "barrier",
    "buffered",
    "check_asynchronous",
    "check_planner",
    "compass",
    "csv",
    "fedscale",
    "immediate",
    "in_session",
    "late",
    "plan_dispatches",
    "planners",
    "simulated",
    "system_models",
    "system_of",
    "tiers",
    "tiers_of",
    "traced",
]
