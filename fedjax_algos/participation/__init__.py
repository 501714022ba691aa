"""Who takes part: which clients train in which round, how many steps, at which learning rate."""

from fedjax_algos.participation.availability import available, on_off
from fedjax_algos.participation.cohorts import Cohorts
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
    Failures,
    Sampler,
    by_client,
    cohort_count,
    cyclic,
    dirichlet,
    failures,
    independent,
    samplers,
    with_replacement,
)
from fedjax_algos.participation.sampling import uniform_cohorts as uniform
from fedjax_algos.participation.sampling_designs import by_size, clustered_by_size, poisson
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
    "available",
    "by_client",
    "by_size",
    "clustered_by_size",
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
    "on_off",
    "partial",
    "poisson",
    "rate_schedules",
    "samplers",
    "step",
    "traced_dispatches",
    "traced_samplers",
    "uniform",
    "with_replacement",
]
