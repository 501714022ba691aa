"""FedCompass's server: arrival groups, and the clients in them.

Algorithms 1 to 3 of https://arxiv.org/abs/2309.14675; `compass` says in words what it does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.asynchrony.event_loop import ARRIVES, LEAVES, REJOINS, TIMER, EventLoop
from fedjax_algos.asynchrony.plan import AGGREGATE, FIRST, Plan

_ROUNDING = 1e-6  # of a step: 1e6 s is exact to 1e-10 s, which is 1e-7 of a step of 1 ms

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
    """The paper's dictionaries. Times are `Any`: floats or Fractions."""

    def __init__(self, rules: Rules, loop: EventLoop):
        self.rules, self.loop = rules, loop
        exact = isinstance(loop.seconds(0, 0, rules.first_steps), Fraction)
        number = (lambda value: Fraction(str(value))) if exact else float  # .9 becomes 9/10
        self.slack, self.speed_weight = number(rules.slack), number(rules.speed_weight)
        self.rounding = 0 if exact else _ROUNDING
        self.groups: dict[int, Group] = {}  # that can still be aggregated, in order of creation
        self.general: list[Arrived] = []  # the late, until the next aggregation
        self.speed: list[Any] = [math.nan] * loop.num_clients  # S_i
        # by client, of its visit in flight; group 0 is none: the client is to be measured
        self.group = [Group(0, math.nan, math.nan)] * loop.num_clients
        self.duration: list[Any] = [0] * loop.num_clients
        # the records
        self.times: list[tuple[Any, Any]] = [(math.nan, math.nan)]  # Ta and Tmax of each group
        self.joined: list[int] = []  # by dispatch: its group
        self.assumed: list[Any] = []  # by dispatch: S
        self.contributions: list[tuple[int, int, int]] = []
        self.steps: list[tuple[Any, int, int]] = []  # as many as there are new versions
        self.late: list[int] = []  # dispatches

    def run(self) -> CompassTrace:
        for client in range(self.loop.num_clients):
            self.assign(client, 0)
        react = {ARRIVES: self.receive, LEAVES: self.lose, REJOINS: self.assign, TIMER: self.expire}
        for now, event, who in self.loop.events():
            react[event](who, now)
        return self.trace()

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
        group = Group(len(self.times), now + duration, now + duration * self.slack)
        self.groups[group.number] = group
        self.times.append((group.expected, group.latest))
        self.loop.put(group.latest, TIMER, group.number)
        return group, num_steps

    def send(self, client: int, now: Any, num_steps: int) -> None:
        group, speed = self.group[client], self.speed[client]
        self.joined.append(group.number)
        self.assumed.append(speed)
        due = group.expected, group.latest
        self.duration[client] = self.loop.send(
            client, num_steps, len(self.steps), now, due, self.rounding * speed
        )

    def receive(self, client: int, now: Any) -> None:
        loop, group, measure = self.loop, self.group[client], self.rules.measure
        dispatch, duration = loop.current[client], self.duration[client]
        visit, num_steps = loop.visit[dispatch], loop.num_steps[dispatch]
        new = measure(client, visit, num_steps, duration) if measure else duration / num_steps
        if group.number:
            new = (1 - self.speed_weight) * self.speed[client] + self.speed_weight * new
        self.speed[client] = new
        arrived = len(loop.arrived), dispatch, len(self.steps) - loop.version[dispatch]
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
        group = self.group[client]
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
        clients = (self.loop.client[dispatch] for _, dispatch, _ in group.arrived)
        for client in sorted(clients, key=self.speed.__getitem__):  # ties stay in order of arrival
            self.assign(client, now)

    def step(self, now: Any, kind: int, number: int, arrived: list[Arrived]) -> None:
        step, version, code = len(self.steps), self.loop.version, self.rules.code
        for _, dispatch, then in arrived:
            staleness = step - version[dispatch] if code else then
            self.contributions.append((dispatch, staleness, step))
        self.steps.append((now, kind, number))

    def trace(self) -> CompassTrace:
        arrival_group = np.array(self.joined, np.int32)
        expected, latest = np.array(self.times, float)[arrival_group].T.copy()
        dispatch, staleness, step = np.array(self.contributions, np.int32).reshape(-1, 3).T
        time, kind, aggregated_group = np.array(self.steps, float).reshape(-1, 3).T
        late = np.zeros(len(arrival_group), bool)
        late[self.late] = True
        return CompassTrace(
            self.loop.plan(dispatch, staleness, step, time, kind),
            arrival_group,
            expected,
            latest,
            np.array(self.assumed, float),
            late,
            aggregated_group.astype(np.int32),
        )
