"""Training on a virtual clock: who is dispatched when, and what each server step is made of.

A system model says how long clients take and when they are away; a schedule plans a run in that
system, ahead of all training. `schedules` and `weathers` hold the factories by name.
"""

from fedjax_algos.asynchrony.compass import compass
from fedjax_algos.asynchrony.plan import Plan, Weather, plan_visits
from fedjax_algos.asynchrony.policies import barrier, buffered, immediate, tiers, tiers_of
from fedjax_algos.asynchrony.registry import Planner, schedules
from fedjax_algos.asynchrony.system_model import simulated, traced, weathers

__all__ = [
    "Plan",
    "Planner",
    "Weather",
    "barrier",
    "buffered",
    "compass",
    "immediate",
    "plan_visits",
    "schedules",
    "simulated",
    "tiers",
    "tiers_of",
    "traced",
    "weathers",
]
