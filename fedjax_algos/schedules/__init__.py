"""Schedules say when: who is dispatched with how much work. Ids and times, no models.

The names of factories for specs such as `cyclic:num_groups=10` stand in the registries `samplers`
(who is in a cohort), `works` (who finishes how much) and `rates` (clients' rates over time).
"""

from fedjax_algos.schedules.rates import Rate, constant, exponential, inverse, rates, step
from fedjax_algos.schedules.samplers import (
    cohort_count,
    cyclic,
    dirichlet,
    samplers,
    with_replacement,
)
from fedjax_algos.schedules.synchronous import Sampler, Synchronous, Work, uniform
from fedjax_algos.schedules.works import deadline, deadline_of, full, partial, works

__all__ = [
    "Rate",
    "Sampler",
    "Synchronous",
    "Work",
    "cohort_count",
    "constant",
    "cyclic",
    "deadline",
    "deadline_of",
    "dirichlet",
    "exponential",
    "full",
    "inverse",
    "partial",
    "rates",
    "samplers",
    "step",
    "uniform",
    "with_replacement",
    "works",
]
