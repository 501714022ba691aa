"""The registry of schedules, and the planners that their factories return."""

from collections.abc import Callable
from typing import Protocol

from fedjax_algos.asynchrony.plan import Plan, SystemModel
from fedjax_algos.core.registry import Registry


class Planner(Protocol):
    """Makes the plan of a run: what the factories of schedules return."""

    def __call__(
        self,
        system: SystemModel,
        num_clients: int,
        *,
        arrivals: int | None = None,
        seconds: float | None = None,
    ) -> Plan:
        """Plans a run until a number of arrivals or of simulated seconds.

        Args:
          system: durations of dispatches, and clients that leave; times away may be `math.inf`.
          num_clients: m, the number of clients, at least 1.
          arrivals: number of updates to receive, without lost ones; the plan ends with the last.
          seconds: simulated seconds; events at exactly this time are included.

        Returns:
          The timeline. Its `trace` is the schedule's own record, if it keeps one.

        Raises:
          ValueError: unless exactly one of `arrivals` and `seconds` is given and it is above 0, for
            invalid durations or unavailability, or if clients leave so often that too few arrive.
        """


schedules = Registry[Planner]("schedule", Callable)
