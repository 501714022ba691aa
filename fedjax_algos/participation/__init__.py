"""Participation: the clients that train in each round, their local steps and learning rates."""

from fedjax_algos.participation.availability import available as available
from fedjax_algos.participation.availability import on_off as on_off
from fedjax_algos.participation.cohorts import Cohorts as Cohorts
from fedjax_algos.participation.local_work import LocalWork as LocalWork
from fedjax_algos.participation.local_work import deadline as deadline
from fedjax_algos.participation.local_work import deadline_of as deadline_of
from fedjax_algos.participation.local_work import full as full
from fedjax_algos.participation.local_work import local_works as local_works
from fedjax_algos.participation.local_work import partial as partial
from fedjax_algos.participation.rate_schedules import RateSchedule as RateSchedule
from fedjax_algos.participation.rate_schedules import constant as constant
from fedjax_algos.participation.rate_schedules import exponential as exponential
from fedjax_algos.participation.rate_schedules import inverse as inverse
from fedjax_algos.participation.rate_schedules import rate_schedules as rate_schedules
from fedjax_algos.participation.rate_schedules import step as step
from fedjax_algos.participation.sampling import Failures as Failures
from fedjax_algos.participation.sampling import Sampler as Sampler
from fedjax_algos.participation.sampling import by_client as by_client
from fedjax_algos.participation.sampling import cohort_count as cohort_count
from fedjax_algos.participation.sampling import cyclic as cyclic
from fedjax_algos.participation.sampling import dirichlet as dirichlet
from fedjax_algos.participation.sampling import failures as failures
from fedjax_algos.participation.sampling import independent as independent
from fedjax_algos.participation.sampling import samplers as samplers
from fedjax_algos.participation.sampling import uniform_cohorts as uniform  # noqa: F401
from fedjax_algos.participation.sampling import with_replacement as with_replacement
from fedjax_algos.participation.sampling_designs import by_size as by_size
from fedjax_algos.participation.sampling_designs import clustered_by_size as clustered_by_size
from fedjax_algos.participation.sampling_designs import poisson as poisson
from fedjax_algos.participation.sampling_designs import seen as seen
from fedjax_algos.participation.traced import TracedSampler as TracedSampler
from fedjax_algos.participation.traced import TracedWork as TracedWork
from fedjax_algos.participation.traced import differentiable as differentiable
from fedjax_algos.participation.traced import traced_dispatches as traced_dispatches
from fedjax_algos.participation.traced import traced_samplers as traced_samplers
