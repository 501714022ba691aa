"""Schedules say when: who is dispatched with how much work. Ids and times, no models.

The names of factories for specs such as `cyclic:num_groups=10` stand in the registries `samplers`
(who is in a cohort), `works` (who finishes how much) and `rates` (clients' rates over time). On the
virtual clock, `schedules` holds planners and `weathers` what clients meet.
"""

from fedjax_algos.schedules.asynchronous import barrier, buffered, immediate, tiers, tiers_of
from fedjax_algos.schedules.base import schedules
from fedjax_algos.schedules.compass import compass
from fedjax_algos.schedules.plan import Plan, Weather, plan_visits
from fedjax_algos.schedules.rates import Rate, constant, exponential, inverse, rates, step
from fedjax_algos.schedules.samplers import (
    cohort_count,
    cyclic,
    dirichlet,
    samplers,
    with_replacement,
)
from fedjax_algos.schedules.synchronous import Sampler, Synchronous, Work, uniform
from fedjax_algos.schedules.weather import simulated, traced, weathers
from fedjax_algos.schedules.works import deadline, deadline_of, full, partial, works

__all__ = [
    "Plan",
    "Rate",
    "Sampler",
    "Synchronous",
    "Weather",
    "Work",
    "barrier",
    "buffered",
    "cohort_count",
    "compass",
    "constant",
    "cyclic",
    "deadline",
    "deadline_of",
    "dirichlet",
    "exponential",
    "full",
    "immediate",
    "inverse",
    "partial",
    "plan_visits",
    "rates",
    "samplers",
    "schedules",
    "simulated",
    "step",
    "tiers",
    "tiers_of",
    "traced",
    "uniform",
    "weathers",
    "with_replacement",
    "works",
]
