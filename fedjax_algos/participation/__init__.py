"""Who takes part: which clients train in which round, how many steps, at which learning rate.

This folder handles only ids, counts and rates, not models. The registries `samplers` (which clients
are in a cohort), `failures` (which of them do not answer), `local_works` (how much of its local
work each client finishes) and `rate_schedules` (learning rate schedules of the clients) contain the
factories by name, for specs such as `cyclic:num_groups=10`.
"""

from fedjax_algos.participation.cohorts import Cohorts
from fedjax_algos.participation.failing import Failures, failures, independent
from fedjax_algos.participation.local_work import (
    LocalWork,
    deadline,
    deadline_of,
    full,
    local_works,
    partial,
)
from fedjax_algos.participation.rate_schedules import (
    RateSchedule,
    constant,
    exponential,
    inverse,
    rate_schedules,
    step,
)
from fedjax_algos.participation.sampling import (
    Sampler,
    cohort_count,
    cyclic,
    dirichlet,
    samplers,
    with_replacement,
)
from fedjax_algos.participation.sampling import uniform_cohorts as uniform
from fedjax_algos.participation.traced import (
    TracedSampler,
    TracedWork,
    differentiable,
    traced_dispatches,
    traced_samplers,
)

__all__ = [
    "Cohorts",
    "Failures",
    "LocalWork",
    "RateSchedule",
    "Sampler",
    "TracedSampler",
    "TracedWork",
    "cohort_count",
    "constant",
    "cyclic",
    "deadline",
    "deadline_of",
    "differentiable",
    "dirichlet",
    "exponential",
    "failures",
    "full",
    "independent",
    "inverse",
    "local_works",
    "partial",
    "rate_schedules",
    "samplers",
    "step",
    "traced_dispatches",
    "traced_samplers",
    "uniform",
    "with_replacement",
]
