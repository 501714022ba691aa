"""The event loop of all planners on the virtual clock: dispatches, and a queue of events.

A dispatch of a client that becomes unavailable is lost when the client leaves, and the server
learns of it at that time. At equal times, arrivals and losses come first, in the order of the
clients, then the other events in the order of their constants. Times have the type of the system
model's numbers, such as `fractions.Fraction`, which are exact.
"""

import heapq
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedjax_algos.asynchrony.plan import AGGREGATED, IN_FLIGHT, LOST, Plan
from fedjax_algos.asynchrony.systems.system_model import (
    SystemModel,
    SystemModelWithSessions,
    check_unavailability,
)
from fedjax_algos.core.checks import check_whole
from fedjax_algos.core.limits import check_int32, check_memory
from fedjax_algos.core.reprs import describe

# Events. A loss is queued as an arrival and becomes LEAVES when its time has come.
ARRIVES, TIMER, REJOINS, STARTS, LEAVES = range(5)
_DISPATCH_BYTES = 300  # of lists and numbers while a plan is made
_FIRST_PROJECTION = 2**14  # dispatches after which their number is projected, and at each doubling
_MAX_LOSSES_PER_CLIENT = 1000  # in the mean, since the last arrival of any client


class EventLoop:
    """The queue of events and the record of dispatches that a planner works with.

    Args:
      system, num_clients, arrivals, seconds: as in `Planner`.

    Raises:
      ValueError: for an invalid horizon or number of clients, as in `Planner`.
    """

    def __init__(
        self, system: SystemModel, num_clients: int, arrivals: int | None, seconds: float | None
    ):
        if (arrivals is None) == (seconds is None):
            raise ValueError(
                f"arrivals={arrivals} and seconds={seconds} do not define the horizon; give "
                "exactly one of them"
            )
        for name, count in (("num_clients", num_clients), ("arrivals", arrivals)):
            if count is not None:
                check_whole(name, count)
                check_memory(f"a plan of {name}={count}", count * _DISPATCH_BYTES, "give fewer")
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"seconds={seconds} is out of range; give a number above 0")
        self.num_clients = num_clients
        self.seconds, self.unavailability = system.seconds, system.unavailability
        self.sessions = system if isinstance(system, SystemModelWithSessions) else None
        self.max_arrivals = math.inf if arrivals is None else arrivals
        self.horizon = math.inf if seconds is None else seconds
        self.max_losses = math.inf if arrivals is None else _MAX_LOSSES_PER_CLIENT * num_clients
        self.queue: list[tuple[Any, int, int]] = []  # (time, event, client or a planner's number)
        # by dispatch
        self.client: list[int] = []
        self.number: list[int] = []
        self.num_steps: list[int] = []
        self.version: list[int] = []
        self.started: list[Any] = []
        self.ended: list[Any] = []
        self.arrived: list[int] = []  # dispatches, in order of arrival
        self.lost: list[int] = []  # dispatches
        # by client
        self.dispatch_counts = [0] * num_clients
        self.current = [0] * num_clients  # its last dispatch
        self.seconds_away: dict[int, Any] = {}  # of clients whose current dispatch will be lost

    def __repr__(self) -> str:
        return describe(self, clients=self.num_clients, dispatches=len(self.client))

    def dispatch(
        self,
        client: int,
        num_steps: int,
        version: int,
        now: Any,
        snap_times: tuple[Any, ...] = (),
        tolerance: Any = 0,
    ) -> Any:
        """Dispatches a client.

        Args:
          client, num_steps, version: as in `Plan`.
          now: the time.
          snap_times: an arrival within `tolerance` seconds of one of these times is moved to it.
          tolerance: in seconds.

        Returns:
          The seconds that the whole dispatch takes.

        Raises:
          ValueError: for an invalid duration or unavailability.
        """
        made = len(self.client)
        if made >= _FIRST_PROJECTION and not made & (made - 1):
            self._check_size(made, now)
        number = self.dispatch_counts[client]
        self.dispatch_counts[client] = number + 1
        duration = self.seconds(client, number, num_steps)
        if not 0 < duration < math.inf:
            raise ValueError(
                f"dispatch {number} of client {client} takes {duration} s for {num_steps} steps; "
                "give a system model with finite times above 0"
            )
        end = now + duration
        if self.sessions is None:
            unavailability = self.unavailability(client, number)
        else:
            unavailability = self.sessions.unavailability_at(client, now, duration)
        if unavailability is None:
            end = next((time for time in snap_times if abs(end - time) <= tolerance), end)
        else:
            check_unavailability(client, number, unavailability)
            share, self.seconds_away[client] = unavailability
            end = now + share * duration
        self.current[client] = len(self.client)
        self.client.append(client)
        self.number.append(number)
        self.num_steps.append(num_steps)
        self.version.append(version)
        self.started.append(now)
        self.ended.append(end)
        heapq.heappush(self.queue, (end, ARRIVES, client))
        return duration

    def _check_size(self, made, now):
        """Raises ValueError if the dispatches, projected to the horizon, do not fit into memory."""
        ended, projected = made - self.num_clients, float(made)  # at least so many have ended
        if self.horizon < math.inf and ended > 0:
            projected = ended * float(self.horizon) / max(float(now), sys.float_info.min)
        what = f"a plan with about {max(made, projected):.3g} dispatches"
        fix = "give fewer seconds or clients, or more local steps in a dispatch"
        check_int32(what, made, fix)
        # a projection may be wrong by a factor
        check_memory(what, int(max(made, min(projected / 2, 1e18))) * _DISPATCH_BYTES, fix)

    def put(self, time: Any, event: int, number: int) -> None:
        """Queues an event of the planner.

        Args:
          time, event: when it happens, and whether it is TIMER or STARTS.
          number: a number that `events` gives with it, such as that of a group.
        """
        heapq.heappush(self.queue, (time, event, number))

    def events(self) -> Iterator[tuple[Any, int, int]]:
        """Iterates over the events until the horizon: (time, event, client or queued number).

        Raises:
          ValueError: if fewer than the requested number of updates arrive.
        """
        queue, arrived, seconds_away = self.queue, self.arrived, self.seconds_away
        losses = 0  # since the last arrival
        while queue and queue[0][0] <= self.horizon:
            if len(arrived) >= self.max_arrivals or losses > self.max_losses:
                break
            event = now, kind, client = heapq.heappop(queue)
            if kind != ARRIVES:
                yield event
            elif client not in seconds_away:
                arrived.append(self.current[client])
                losses = 0
                yield event
            else:
                self.lost.append(self.current[client])
                losses += 1
                away = seconds_away.pop(client)
                if away < math.inf:
                    heapq.heappush(queue, (now + away, REJOINS, client))
                yield now, LEAVES, client
        if len(arrived) < self.max_arrivals < math.inf:
            raise ValueError(
                f"only {len(arrived)} of arrivals={self.max_arrivals} come, because clients leave "
                "for good or in nearly every dispatch; give fewer arrivals, or seconds"
            )

    def plan(
        self,
        dispatch: ArrayLike,
        staleness: ArrayLike,
        step: ArrayLike,
        time: ArrayLike,
        group: ArrayLike,
        trace: Any = None,
    ) -> Plan:
        """Completes the plan: the loop's dispatches with the planner's server steps.

        Args:
          dispatch, staleness, step: int[C], as in `Plan`.
          time, group: float[U] and int[U], as in `Plan`.
          trace: the planner's own record.
        """

        def whole(values: ArrayLike) -> np.ndarray:
            return np.array(values, np.int32)

        dispatch, num_steps = whole(dispatch), whole(self.num_steps)
        fate = np.full(len(self.client), IN_FLIGHT, np.int8)
        fate[dispatch] = AGGREGATED
        fate[self.lost] = LOST
        return Plan(
            client=whole(self.client),
            number=whole(self.number),
            num_steps=num_steps,
            full_steps=num_steps,
            version=whole(self.version),
            started=np.array(self.started, float),
            ended=np.array(self.ended, float),
            fate=fate,
            dispatch=dispatch,
            staleness=whole(staleness),
            step=whole(step),
            time=np.array(time, float),
            group=whole(group),
            trace=trace,
        )
