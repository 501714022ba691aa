"""Who trains in which round, with how much local work, and at which rate.

Ids, counts and rates only: schedules know nothing of models. The registries `samplers` (who is in a
cohort), `works` (who finishes how much) and `rates` (clients' rates over time) hold the factories
by name, for specs such as `cyclic:num_groups=10`.
"""

from fedjax_algos.schedules.learning_rates import (
    Rate,
    constant,
    exponential,
    inverse,
    rates,
    step,
)
from fedjax_algos.schedules.local_work import deadline, deadline_of, full, partial, works
from fedjax_algos.schedules.sampling import (
    cohort_count,
    cyclic,
    dirichlet,
    samplers,
    with_replacement,
)
from fedjax_algos.schedules.synchronous import Sampler, Synchronous, Work, uniform

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
