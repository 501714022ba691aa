"""The loop under all schedules on the virtual clock: dispatches, and a queue of what comes next.

A visit of a client that drops out is lost when the client leaves, and the server learns of it then.
At equal times arrivals and losses come first, in client order, then the other events as listed.
Times are `Any`, in the weather's numbers: with `fractions.Fraction`s they are exact; floats are
equal only if all their digits are, and are sums of the visits' seconds.
"""

import heapq
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedjax_algos.asynchrony.plan import AGGREGATED, IN_FLIGHT, LOST, Plan, Weather
from fedjax_algos.asynchrony.system_model import require_absence

# Events. Losses wait as arrivals: which of the two it is turns out only when the visit ends.
ARRIVES, TIMER, REJOINS, STARTS, LEAVES = range(5)
_PATIENCE = 1000  # lost visits a client without an arrival


class EventLoop:
    """What a planner drives. Arguments and errors are those of `base.Planner`."""

    def __init__(
        self, weather: Weather, num_clients: int, arrivals: int | None, seconds: float | None
    ):
        if (arrivals is None) == (seconds is None):
            raise ValueError(
                f"arrivals={arrivals} and seconds={seconds} do not say when to stop; give exactly "
                "one of them"
            )
        for name, count in (("num_clients", num_clients), ("arrivals", arrivals)):
            if count is not None and not (1 <= count < math.inf and count == int(count)):
                raise ValueError(f"{name}={count} is out of range; give a whole number above 0")
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"seconds={seconds} is out of range; give a number above 0")
        self.num_clients = num_clients
        self.seconds, self.absence = weather.seconds, weather.absence
        self.last_arrival = math.inf if arrivals is None else arrivals
        self.horizon = math.inf if seconds is None else seconds
        self.queue: list[tuple[Any, int, int]] = []  # (time, event, client or what the planner put)
        # of dispatches
        self.client: list[int] = []
        self.visit: list[int] = []
        self.num_steps: list[int] = []
        self.version: list[int] = []
        self.started: list[Any] = []
        self.ended: list[Any] = []
        self.arrived: list[int] = []  # dispatches, as they come
        self.lost: list[int] = []
        # of clients
        self.visits = [0] * num_clients
        self.current = [0] * num_clients  # its last dispatch
        self.away: dict[int, Any] = {}  # for how long, where this dispatch will be lost

    def send(
        self,
        client: int,
        num_steps: int,
        version: int,
        now: Any,
        due: tuple[Any, ...] = (),
        rounding: Any = 0,
    ) -> Any:
        """Dispatches a client and returns the seconds of its whole visit.

        An arrival within `rounding` seconds of one of the times `due` is at that time.
        """
        visit = self.visits[client]
        self.visits[client] = visit + 1
        duration = self.seconds(client, visit, num_steps)
        if not 0 < duration < math.inf:
            raise ValueError(
                f"visit {visit} of client {client} takes {duration} s for {num_steps} steps; give "
                "a weather with times above 0"
            )
        end = now + duration
        absence = self.absence(client, visit)
        if absence is not None:
            require_absence(client, visit, absence)
            share, self.away[client] = absence
            end = now + share * duration
        elif due:
            for time in due:
                if abs(end - time) <= rounding:
                    end = time
                    break
        self.current[client] = len(self.client)
        self.client.append(client)
        self.visit.append(visit)
        self.num_steps.append(num_steps)
        self.version.append(version)
        self.started.append(now)
        self.ended.append(end)
        heapq.heappush(self.queue, (end, ARRIVES, client))
        return duration

    def put(self, time: Any, event: int, who: int) -> None:
        """Lets an event come when all that is before it at this time has happened."""
        heapq.heappush(self.queue, (time, event, who))

    def events(self) -> Iterator[tuple[Any, int, int]]:
        """What comes until the horizon: time, event, and client or what was put."""
        queue, arrived, away = self.queue, self.arrived, self.away
        patience = _PATIENCE * self.num_clients if self.last_arrival < math.inf else math.inf
        in_vain = 0  # losses since the last arrival
        while (
            queue
            and queue[0][0] <= self.horizon
            and len(arrived) < self.last_arrival
            and in_vain <= patience
        ):
            event = now, kind, client = heapq.heappop(queue)
            if kind != ARRIVES:
                yield event
            elif client not in away:
                arrived.append(self.current[client])
                in_vain = 0
                yield event
            else:
                self.lost.append(self.current[client])
                in_vain += 1
                seconds_away = away.pop(client)
                if seconds_away < math.inf:
                    heapq.heappush(queue, (now + seconds_away, REJOINS, client))
                yield now, LEAVES, client
        if len(arrived) < self.last_arrival < math.inf:
            raise ValueError(
                f"only {len(arrived)} of arrivals={self.last_arrival} come, because clients leave "
                "for good or in nearly every visit; give fewer arrivals, or seconds"
            )

    def plan(
        self,
        dispatch: ArrayLike,
        staleness: ArrayLike,
        step: ArrayLike,
        time: ArrayLike,
        group: ArrayLike,
    ) -> Plan:
        """The plan, given its contributions and server steps."""
        dispatch = np.array(dispatch, np.int32)
        fate = np.full(len(self.client), IN_FLIGHT, np.int8)
        fate[dispatch] = AGGREGATED
        fate[self.lost] = LOST
        num_steps = np.array(self.num_steps, np.int32)
        return Plan(
            client=np.array(self.client, np.int32),
            visit=np.array(self.visit, np.int32),
            num_steps=num_steps,
            full_steps=num_steps,
            version=np.array(self.version, np.int32),
            started=np.array(self.started, float),
            ended=np.array(self.ended, float),
            fate=fate,
            dispatch=dispatch,
            staleness=np.array(staleness, np.int32),
            step=np.array(step, np.int32),
            time=np.array(time, float),
            group=np.array(group, np.int32),
        )
