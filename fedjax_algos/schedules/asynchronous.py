"""Schedules on the virtual clock in which every visit has the same number of steps.

`barrier` is FedAvg's and FedAvgM's, `immediate` FedAsync's, `buffered` FedBuff's, `tiers` FedAT's,
as FedCompass compares them: Li et al., ICLR 2024, https://arxiv.org/abs/2309.14675.

A visit of a client that drops out is lost when the client leaves, and the server learns of it then.
At equal times arrivals and losses come first, in client order, then rejoins, then new rounds. Times
are in the weather's numbers, so `fractions.Fraction`s are exact; floats are equal only if all their
digits are, and are sums of the visits' seconds.
"""

import heapq
import math
from typing import Annotated, Any, Protocol

import numpy as np

from fedjax_algos.registry import Range
from fedjax_algos.schedules.base import schedules
from fedjax_algos.schedules.plan import AGGREGATED, IN_FLIGHT, LOST, Plan, Weather
from fedjax_algos.schedules.weather import Forecast, require_absence

Count = Annotated[int, Range(1)]

# Events, in their order at equal times; an end turns out to be a loss only when it comes.
_ENDS, _REJOINS, _STARTS, _LEAVES = range(4)
_NEXT_CLIENT = 16  # a stream of NumPy's generators; those of weather are below
_PATIENCE = 1000  # lost visits a client without an arrival


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


@schedules
def barrier(*, steps: Count) -> Planner:
    """Rounds of all clients, `steps` each: a server step when the last of them has arrived.

    Nobody waits for a client that has left; it enters the first round that starts when it is back
    or later. A round in which nobody arrives makes no server step, and is followed by one of those
    who are back, or of the first to come back. Staleness is 0, and so is the plan's group.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    https://arxiv.org/abs/1602.05629, with all clients.

    Args:
      steps: Q, of each visit.
    """

    def plan(weather, num_clients, *, arrivals=None, seconds=None):
        clock = _Clock(weather, num_clients, steps, arrivals, seconds)
        return _rounds(clock, [0] * num_clients)

    return plan


@schedules
def tiers(*, steps: Count, ratio: Annotated[float, Range(1)] = 2.0) -> Planner:
    """Clients of like speed run rounds of their own, as in `barrier`, from the latest global model.

    The end of a tier's round is a server step, and its group is the tier, 0 for the fastest. Each
    tier keeps the clients that `tiers_of` gives it, also where their speeds change. Tiers that
    start together start from the same model. Staleness is not counted: it is 0.

    Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System
    with Asynchronous Tiers", https://arxiv.org/abs/2010.05958.

    Args:
      steps: Q, of each visit.
      ratio: upsilon, of the times of a tier's slowest and fastest clients.

    Raises:
      ValueError: when called with a weather without `expected_seconds_per_step`.
    """

    def plan(weather, num_clients, *, arrivals=None, seconds=None):
        if not isinstance(weather, Forecast):
            raise ValueError(
                f"tiers: {type(weather).__name__} does not know clients' mean speeds; give a "
                "weather with expected_seconds_per_step(client), as those of this package"
            )
        clock = _Clock(weather, num_clients, steps, arrivals, seconds)
        return _rounds(clock, tiers_of(weather, num_clients, ratio).tolist())

    return plan


def tiers_of(weather: Forecast, num_clients: int, ratio: float = 2.0) -> np.ndarray:
    """int32[num_clients]: each client's tier, 0 for the fastest; there are max + 1 of them.

    In order of their seconds per step t_i, clients join a tier while t_i <= ratio * t of its
    fastest; the next one opens another.
    """
    times = [weather.expected_seconds_per_step(client) for client in range(num_clients)]
    result, tier, most = np.empty(num_clients, np.int32), -1, -math.inf
    for client in sorted(range(num_clients), key=times.__getitem__):
        if times[client] > most:
            tier += 1
            most = times[client] * ratio * (1 + 1e-9)  # .01 * (.47 / .01) is less than .47
        result[client] = tier
    return result


@schedules
def immediate(
    *, steps: Count, concurrency: Count | None = None, seed: Annotated[int, Range(0)] = 0
) -> Planner:
    """Each arrival is a server step, and its client goes on at once with the new model.

    Staleness counts the server steps since the client received its model. A client that has left
    gets the model of the moment when it is back. The plan's group is 0.

    Xie et al., "Asynchronous Federated Optimization", https://arxiv.org/abs/1903.03934.

    Args:
      steps: Q, of each visit.
      concurrency: clients that train at once; see `buffered`.
      seed: of the draws among idle clients.

    Raises:
      ValueError: when called with fewer clients than `concurrency`.
    """
    return buffered(steps=steps, size=1, concurrency=concurrency, seed=seed)


@schedules
def buffered(
    *,
    steps: Count,
    size: Count = 10,
    concurrency: Count | None = None,
    seed: Annotated[int, Range(0)] = 0,
) -> Planner:
    """Every `size` arrivals are a server step; who arrives goes on at once with the model of then.

    The client that completes a buffer gets the new model. One client may be in a buffer twice.
    Staleness counts the server steps from the client's broadcast to its arrival. Updates in a
    buffer that is not full at the horizon have the fate IN_FLIGHT. The plan's group is 0.

    With `concurrency`, only so many clients train at once: when a visit ends or is lost, the next
    one is of a client that is drawn uniformly among those neither training nor away, who just
    arrived included. Without, everybody trains, and a client that has left gets the model of the
    moment when it is back.

    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation",
    https://arxiv.org/abs/2106.06639.

    Args:
      steps: Q, of each visit.
      size: K.
      concurrency: clients that train at once; None is all of them.
      seed: of the draws among idle clients.

    Raises:
      ValueError: when called with fewer clients than `concurrency`.
    """

    def plan(weather, num_clients, *, arrivals=None, seconds=None):
        clock = _Clock(weather, num_clients, steps, arrivals, seconds)
        if concurrency is not None and concurrency > num_clients:
            raise ValueError(
                f"concurrency={concurrency} is out of range; give 1 to {num_clients}, the number "
                "of clients"
            )
        return _buffers(clock, size, concurrency or num_clients, seed)

    return plan


class _Clock:
    """The visits so far, and a queue of what comes next. Times are `Any`: floats or Fractions."""

    def __init__(
        self,
        weather: Weather,
        num_clients: int,
        steps: int,
        arrivals: int | None,
        seconds: float | None,
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
        self.seconds, self.absence = weather.seconds, weather.absence
        self.steps = steps
        self.last_arrival = math.inf if arrivals is None else arrivals
        self.horizon = math.inf if seconds is None else seconds
        self.queue: list[tuple[Any, int, int]] = []  # (time, event, client or tier)
        # of dispatches
        self.client: list[int] = []
        self.visit: list[int] = []
        self.version: list[int] = []
        self.started: list[Any] = []
        self.ended: list[Any] = []
        self.arrived: list[int] = []  # dispatches, as they come
        self.lost: list[int] = []
        # of clients
        self.visits = [0] * num_clients
        self.current = [0] * num_clients  # its last dispatch
        self.away: dict[int, Any] = {}  # for how long, where this dispatch will be lost
        self.in_vain = 0  # losses since the last arrival

    def send(self, client: int, version: int, now: Any) -> None:
        """Dispatches a client."""
        visit = self.visits[client]
        self.visits[client] = visit + 1
        duration = self.seconds(client, visit, self.steps)
        if not 0 < duration < math.inf:
            raise ValueError(
                f"visit {visit} of client {client} takes {duration} s for {self.steps} steps; give "
                "a weather with times above 0"
            )
        absence = self.absence(client, visit)
        if absence is not None:
            require_absence(client, visit, absence)
            share, self.away[client] = absence
            duration = share * duration
        end = now + duration
        self.current[client] = len(self.client)
        self.client.append(client)
        self.visit.append(visit)
        self.version.append(version)
        self.started.append(now)
        self.ended.append(end)
        heapq.heappush(self.queue, (end, _ENDS, client))

    def next(self) -> tuple[Any, int, int] | None:
        """The next event: time, kind, and client or tier. None at the horizon."""
        queue = self.queue
        if (
            not queue
            or queue[0][0] > self.horizon
            or len(self.arrived) == self.last_arrival
            or self.in_vain > _PATIENCE * len(self.visits)
        ):
            return None
        event = heapq.heappop(queue)
        now, kind, client = event
        if kind == _ENDS:
            if client in self.away:
                return self._lose(client, now)
            self.arrived.append(self.current[client])
            self.in_vain = 0
        return event

    def _lose(self, client: int, now: Any) -> tuple[Any, int, int]:
        self.lost.append(self.current[client])
        away = self.away.pop(client)
        if away < math.inf:
            heapq.heappush(self.queue, (now + away, _REJOINS, client))
        if self.last_arrival < math.inf:
            self.in_vain += 1
        return now, _LEAVES, client

    def start_later(self, tier: int, now: Any) -> None:
        """Lets the tier's round start when all else has happened at this time."""
        heapq.heappush(self.queue, (now, _STARTS, tier))

    def plan(
        self,
        dispatch: np.ndarray,
        staleness: np.ndarray,
        step: np.ndarray,
        time: np.ndarray,
        group: np.ndarray,
    ) -> Plan:
        """The plan, given its contributions and server steps."""
        if len(self.arrived) < self.last_arrival < math.inf:
            raise ValueError(
                f"only {len(self.arrived)} of arrivals={self.last_arrival} come, because clients "
                "leave for good or in nearly every visit; give fewer arrivals, or seconds"
            )
        fate = np.full(len(self.client), IN_FLIGHT, np.int8)
        fate[dispatch] = AGGREGATED
        fate[self.lost] = LOST
        num_steps = np.full(len(self.client), self.steps, np.int32)
        return Plan(
            client=np.array(self.client, np.int32),
            visit=np.array(self.visit, np.int32),
            num_steps=num_steps,
            full_steps=num_steps,
            version=np.array(self.version, np.int32),
            started=np.array(self.started, float),
            ended=np.array(self.ended, float),
            fate=fate,
            dispatch=dispatch.astype(np.int32),
            staleness=staleness.astype(np.int32),
            step=step.astype(np.int32),
            time=time,
            group=group.astype(np.int32),
        )


def _buffers(clock: _Clock, size: int, places: int, seed: int) -> Plan:
    """As many clients in flight as there are places; who has arrived is replaced at once."""
    rng = np.random.default_rng([seed, _NEXT_CLIENT])
    idle = list(range(len(clock.visits)))[::-1]
    event: tuple[Any, int, int] | None = (0, _STARTS, 0)
    while event is not None:
        now, kind, client = event
        if kind in (_ENDS, _LEAVES):
            places += 1
        if kind in (_ENDS, _REJOINS):
            idle.append(client)
        while idle and places:
            if len(idle) > places:
                chosen = int(rng.random() * len(idle))
                idle[chosen], idle[-1] = idle[-1], idle[chosen]
            clock.send(idle.pop(), len(clock.arrived) // size, now)
            places -= 1
        event = clock.next()
    num_steps = len(clock.arrived) // size
    dispatch = np.array(clock.arrived[: num_steps * size], int)
    step = np.repeat(np.arange(num_steps), size)
    staleness = step - np.array(clock.version)[dispatch]
    time = np.array(clock.ended, float)[dispatch[size - 1 :: size]]
    return clock.plan(dispatch, staleness, step, time, np.zeros(num_steps))


def _rounds(clock: _Clock, tier_of: list[int]) -> Plan:
    """Each tier by itself: a round ends when nobody in it is expected any more."""
    num_tiers = max(tier_of) + 1
    waiting: list[list[int]] = [[] for _ in range(num_tiers)]  # clients for the next round
    arrived: list[list[int]] = [[] for _ in range(num_tiers)]  # this round's dispatches
    expected = [0] * num_tiers
    for client, tier in enumerate(tier_of):
        waiting[tier].append(client)
    for tier in range(num_tiers):
        clock.start_later(tier, 0)
    dispatch: list[int] = []
    times: list[Any] = []
    groups: list[int] = []
    sizes: list[int] = []
    while (event := clock.next()) is not None:
        now, kind, who = event
        if kind == _STARTS:
            if not expected[who]:
                for client in sorted(waiting[who]):
                    clock.send(client, len(times), now)
                expected[who] = len(waiting[who])
                waiting[who].clear()
            continue
        tier = tier_of[who]
        if kind == _ENDS:
            arrived[tier].append(clock.current[who])
        if kind in (_ENDS, _REJOINS):
            waiting[tier].append(who)
        if kind in (_ENDS, _LEAVES):
            expected[tier] -= 1
        if expected[tier]:
            continue
        if arrived[tier]:
            dispatch += arrived[tier]
            sizes.append(len(arrived[tier]))
            times.append(now)
            groups.append(tier)
            arrived[tier].clear()
        if waiting[tier]:
            clock.start_later(tier, now)
    step = np.repeat(np.arange(len(sizes)), np.array(sizes, int))
    return clock.plan(
        np.array(dispatch, int),
        np.zeros(len(dispatch)),
        step,
        np.array(times, float),
        np.array(groups, int),
    )
