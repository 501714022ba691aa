"""Schedules say when: who is dispatched with how much work. Ids and times, no models."""

from fedjax_algos.schedules.synchronous import Synchronous, uniform

__all__ = ["Synchronous", "uniform"]
