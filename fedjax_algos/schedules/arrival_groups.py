"""FedCompass's server: arrival groups, the clients in them, and a queue of events.

Algorithms 1 to 3 of https://arxiv.org/abs/2309.14675; `compass` says in words what it does.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.schedules.plan import AGGREGATE, AGGREGATED, FIRST, IN_FLIGHT, LOST, Plan, Weather
from fedjax_algos.schedules.weather import require_absence

_ENDS, _TIMER, _REJOINS = range(3)  # events, in their order at equal times
_ROUNDING = 1e-6  # of a step: 1e6 s is exact to 1e-10 s, which is 1e-7 of a step of 1 ms
_PATIENCE = 1000  # lost visits a client without an arrival

Measure = Callable[[int, int, int, float], float]


class Rules(NamedTuple):
    """The options of `compass`, resolved."""

    min_steps: int  # Qmin
    max_steps: int  # Qmax
    slack: float  # lambda
    first_steps: int
    speed_weight: float  # rho
    code: bool  # the released code's variant
    measure: Measure | None


class CompassTrace(NamedTuple):
    """A plan beside the decisions that led to it, for pictures of the timeline.

    Arrival groups are numbered from 1; 0 stands for a visit before the client has been measured,
    which belongs to none, and for the server step of its arrival.
    """

    plan: Plan
    # dispatches, as in the plan; NaN in the visits that belong to no arrival group
    arrival_group: np.ndarray  # int32[D]
    expected: np.ndarray  # float64[D]: Ta of its group
    latest: np.ndarray  # float64[D]: Tmax of its group
    seconds_per_step: np.ndarray  # float64[D]: S, on which its number of steps was decided
    late: np.ndarray  # bool[D]: arrived after Tmax
    # server steps, as in the plan
    aggregated_group: np.ndarray  # int32[U]


Arrived = tuple[int, int, int]  # how-manyeth arrival, dispatch, server steps since its version


@dataclass(slots=True)
class Group:
    """An arrival group."""

    number: int
    expected: Any  # Ta
    latest: Any  # Tmax
    members: list[int] = field(default_factory=list)  # CL and ACL
    pending: int = 0  # length of CL
    arrived: list[Arrived] = field(default_factory=list)  # of the ACL


class Server:
    """The paper's dictionaries and a queue of events. Times are `Any`: floats or Fractions."""

    def __init__(self, rules: Rules, weather: Weather, num_clients: int):
        self.rules, self.weather = rules, weather
        exact = isinstance(weather.seconds(0, 0, rules.first_steps), Fraction)
        number = (lambda value: Fraction(str(value))) if exact else float  # .9 becomes 9/10
        self.slack, self.speed_weight = number(rules.slack), number(rules.speed_weight)
        self.rounding = 0 if exact else _ROUNDING
        self.queue: list[tuple[Any, int, int]] = []  # (time, kind, client or group)
        self.groups: dict[int, Group] = {}  # that can still be aggregated, in order of creation
        self.general: list[Arrived] = []  # the late, until the next aggregation
        self.num_groups = self.num_arrivals = 0
        self.speed: list[Any] = [math.nan] * num_clients  # S_i
        self.visits = [0] * num_clients
        # each client's visit in flight: its group, dispatch and duration, and
        self.group = [Group(0, math.nan, math.nan)] * num_clients  # 0: to be measured, in no group
        self.dispatch = [0] * num_clients
        self.duration: list[Any] = [0] * num_clients
        self.away: dict[int, Any] = {}  # for how many seconds its client leaves, if it does
        # the records
        self.dispatches: list[tuple] = []
        self.contributions: list[tuple[int, int, int]] = []
        self.steps: list[tuple[Any, int, int]] = []  # as many as there are new versions
        self.lost: list[int] = []
        self.late: list[int] = []

    def run(self, arrivals: float, seconds: Any) -> None:
        queue, losses = self.queue, 0
        for client in range(len(self.visits)):
            self.assign(client, 0)
        patience = _PATIENCE * len(self.visits) if arrivals < math.inf else math.inf
        while queue and queue[0][0] <= seconds and self.num_arrivals < arrivals:
            now, kind, who = heapq.heappop(queue)
            if kind == _TIMER:
                self.expire(who, now)
            elif kind == _REJOINS:
                self.assign(who, now)
            elif who in self.away:
                self.lose(who, now)
                losses += 1
                if losses > patience:
                    break
            else:
                self.receive(who, now)
                losses = 0
        if self.num_arrivals < arrivals < math.inf:
            raise ValueError(
                f"only {self.num_arrivals} of arrivals={arrivals} come, because clients leave for "
                "good or in nearly every visit; give fewer arrivals, or seconds"
            )

    def assign(self, client: int, now: Any) -> None:
        """AssignGroup and JoinGroup; a client that has not been measured is sent off alone."""
        speed, most = self.speed[client], self.rules.max_steps
        if math.isnan(speed):
            self.send(client, now, self.rules.first_steps)
            return
        chosen, num_steps = None, self.rules.min_steps
        for group in self.groups.values():
            possible = int((group.expected - now) / speed + self.rounding)
            if num_steps <= possible <= most:
                chosen, num_steps = group, possible
        if chosen is None:
            chosen, num_steps = self.create(speed, now)
        chosen.members.append(client)
        chosen.pending += 1
        self.group[client] = chosen
        self.send(client, now, num_steps)

    def create(self, speed: Any, now: Any) -> tuple[Group, int]:
        """CreateGroup."""
        best, most, code = -1, self.rules.max_steps, self.rules.code
        for group in self.groups.values():
            reference = group.latest if code else group.expected
            if now < reference:
                fastest = min(map(self.speed.__getitem__, group.members))
                back = reference + fastest * most  # Texp
                possible = int((back - now) / speed + self.rounding)
                if possible <= most or not code:
                    best = max(best, possible)
        num_steps = max(best, self.rules.min_steps) if 0 <= best <= most else most
        duration = num_steps * speed
        self.num_groups += 1
        group = Group(self.num_groups, now + duration, now + duration * self.slack)
        self.groups[group.number] = group
        heapq.heappush(self.queue, (group.latest, _TIMER, group.number))
        return group, num_steps

    def send(self, client: int, now: Any, num_steps: int) -> None:
        visit, group, speed = self.visits[client], self.group[client], self.speed[client]
        duration = self.weather.seconds(client, visit, num_steps)
        if not 0 < duration < math.inf:
            raise ValueError(
                f"visit {visit} of client {client} takes {duration} s for {num_steps} steps; give "
                "a weather with times above 0"
            )
        end = now + duration
        absence = self.weather.absence(client, visit)
        if absence is not None:
            require_absence(client, visit, absence)
            share, self.away[client] = absence
            end = now + share * duration
        elif abs(end - group.expected) <= self.rounding * speed:
            end = group.expected
        elif abs(end - group.latest) <= self.rounding * speed:
            end = group.latest
        times = now, end, group.expected, group.latest, speed
        self.visits[client] += 1
        self.dispatch[client], self.duration[client] = len(self.dispatches), duration
        self.dispatches.append((client, visit, num_steps, len(self.steps), group.number, *times))
        heapq.heappush(self.queue, (end, _ENDS, client))

    def receive(self, client: int, now: Any) -> None:
        dispatch, group = self.dispatch[client], self.group[client]
        _, visit, num_steps, version = self.dispatches[dispatch][:4]
        duration, measure = self.duration[client], self.rules.measure
        new = measure(client, visit, num_steps, duration) if measure else duration / num_steps
        if group.number:
            new = (1 - self.speed_weight) * self.speed[client] + self.speed_weight * new
        self.speed[client] = new
        arrived = (self.num_arrivals, dispatch, len(self.steps) - version)
        self.num_arrivals += 1
        if not group.number:
            self.step(now, FIRST, 0, [arrived])
            self.assign(client, now)
        elif group.number in self.groups:
            group.arrived.append(arrived)
            group.pending -= 1
            if not group.pending:
                self.expire(group.number, now)
        else:  # the timer has closed it, so this is after Tmax
            self.late.append(dispatch)
            self.general.append(arrived)
            self.assign(client, now)

    def lose(self, client: int, now: Any) -> None:
        self.lost.append(self.dispatch[client])
        away, group = self.away.pop(client), self.group[client]
        if away < math.inf:
            heapq.heappush(self.queue, (now + away, _REJOINS, client))
        if group.number in self.groups:
            group.members.remove(client)
            group.pending -= 1
            if not group.pending:
                self.expire(group.number, now)

    def expire(self, number: int, now: Any) -> None:
        """GroupAggregate, where somebody has arrived; closes the group."""
        group = self.groups.pop(number, None)
        if group is None or not group.arrived:
            return
        self.step(now, AGGREGATE, number, sorted(self.general + group.arrived))
        self.general = []
        clients = (self.dispatches[dispatch][0] for _, dispatch, _ in group.arrived)
        for client in sorted(clients, key=self.speed.__getitem__):  # ties stay in order of arrival
            self.assign(client, now)

    def step(self, now: Any, kind: int, number: int, arrived: list[Arrived]) -> None:
        step = len(self.steps)
        for _, dispatch, then in arrived:
            staleness = step - self.dispatches[dispatch][3] if self.rules.code else then
            self.contributions.append((dispatch, staleness, step))
        self.steps.append((now, kind, number))

    def trace(self) -> CompassTrace:
        rows = np.array(self.dispatches, float).T
        client, visit, num_steps, version, arrival_group = rows[:5].astype(np.int32)
        started, ended, expected, latest, seconds_per_step = rows[5:].copy()
        dispatch, staleness, step = np.array(self.contributions, np.int32).reshape(-1, 3).T.copy()
        time, kind, aggregated_group = np.array(self.steps, float).reshape(-1, 3).T.copy()
        fate = np.full(len(client), IN_FLIGHT, np.int8)
        fate[dispatch], fate[self.lost] = AGGREGATED, LOST
        late = np.zeros(len(client), bool)
        late[self.late] = True
        facts = client, visit, num_steps, num_steps, version, started, ended, fate
        steps = time, kind.astype(np.int32)
        plan = Plan(*facts, dispatch, staleness, step, *steps)
        decisions = arrival_group, expected, latest, seconds_per_step, late
        return CompassTrace(plan, *decisions, aggregated_group.astype(np.int32))
