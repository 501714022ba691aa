"""The registry of schedules: factories of planners."""

from fedjax_algos.registry import Registry

schedules = Registry("schedule")
