"""The registry of schedules, and what their factories return."""

from typing import Protocol

from fedjax_algos.asynchrony.plan import Plan, Weather
from fedjax_algos.core.registry import Registry

schedules = Registry("schedule")


class Planner(Protocol):
    """What the schedules' factories return.

    Args:
      weather: how long visits take, and who leaves; seconds away may be `math.inf`.
      num_clients: m, at least 1.
      arrivals: updates to receive, lost ones not counted; no event comes after the last.
      seconds: of virtual time; what happens at that moment is included.

    Raises:
      ValueError: if not exactly one of arrivals and seconds is given, for one that is not above 0,
        times or absences that cannot be, or where clients leave so often that too few arrive.
    """

    def __call__(
        self,
        weather: Weather,
        num_clients: int,
        *,
        arrivals: int | None = None,
        seconds: float | None = None,
    ) -> Plan: ...
