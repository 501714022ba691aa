"""Training on a virtual clock: which client is dispatched when, and what a server step consists of.

A system model says how long clients take and when they are unavailable; a schedule plans a run in
that system before any training. `schedules` and `system_models` hold the factories by name.
"""

from fedjax_algos.asynchrony.arrival_groups import CompassTrace
from fedjax_algos.asynchrony.compass import compass
from fedjax_algos.asynchrony.compatibility import check_asynchronous, check_schedule
from fedjax_algos.asynchrony.csv_system import csv
from fedjax_algos.asynchrony.event_loop import EventLoop
from fedjax_algos.asynchrony.fedscale_system import fedscale
from fedjax_algos.asynchrony.fixed_system import FixedSystem
from fedjax_algos.asynchrony.plan import (
    Plan,
    SystemModel,
    SystemModelWithSessions,
    plan_dispatches,
)
from fedjax_algos.asynchrony.policies import barrier, buffered, immediate, tiers, tiers_of
from fedjax_algos.asynchrony.registry import Planner, schedules
from fedjax_algos.asynchrony.system_model import (
    SystemModelFactory,
    SystemModelWithSpeeds,
    simulated,
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
    "check_schedule",
    "compass",
    "csv",
    "fedscale",
    "immediate",
    "plan_dispatches",
    "schedules",
    "simulated",
    "system_models",
    "system_of",
    "tiers",
    "tiers_of",
    "traced",
]
