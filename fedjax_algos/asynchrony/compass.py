"""FedCompass's planner: chooses clients' numbers of steps so that their group arrives together.

`CompassServer` applies Algorithms 1 to 3 of Li et al., "FedCompass: Efficient Cross-Silo Federated
Learning on Heterogeneous Client Devices using a Computing Power-Aware Scheduler", ICLR 2024,
https://arxiv.org/abs/2309.14675.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from fedjax_algos.asynchrony import plan as plans
from fedjax_algos.asynchrony.plan import AGGREGATE, FIRST, EventLoop, Plan
from fedjax_algos.asynchrony.planning import Planner, planners
from fedjax_algos.base.errors import require
from fedjax_algos.core.options import Count, PositiveShare, Range

_ROUNDING = 1e-6  # of a step: 1e6 s is exact to 1e-10 s, which is 1e-7 of a step of 1 ms

Measure = Callable[[int, int, int, float], float]  # see the option `measure` of `compass`


@planners.register
def compass(
    *,
    min_steps: Count = 20,
    max_steps: Count = 100,
    slack: Annotated[float, Range(1)] = 1.2,
    first_steps: Count | None = None,
    mode: Literal["paper", "code"] = "paper",
    speed_weight: PositiveShare | None = None,
    measure: Measure | None = None,
) -> Planner:
    """Gives client i Q_i = floor((Ta - t) / S_i) steps, so that it arrives with its group at Ta.

    All clients start with `first_steps`. A first arrival is a server step of its own (FIRST). At
    each arrival, at time t, S_i = duration / Q_i is measured, and the client is assigned:

    - It joins the group with the largest Q_i in [Qmin, Qmax], the latest such group in a tie.
    - If no group fits, it creates one that others can join later. Take an existing group g that is
      still expected (t < Ta_g), and its fastest client f: with Qmax more steps after Ta_g, f
      arrives at Ta_g + Qmax S_f. So that f can join the new group, Q_i is
      max_g floor((Ta_g + Qmax S_f - t) / S_i), but at least Qmin and at most Qmax; without such a g
      it is Qmax. The new group has Ta = t + Q_i S_i and Tmax = t + lambda Q_i S_i.

    A group is aggregated (AGGREGATE) when all its clients have arrived, or at Tmax if some have.
    Its clients are then assigned in ascending order of S_i, ties in order of arrival.

    A client is late if it arrives after its group's Tmax; the group is closed at Tmax even if none
    of its clients has arrived. A late client makes no server step and is assigned again at once
    with the current model. Its update is kept and is part of the next aggregation of any group; if
    the run ends before that, the update is not used.

    Staleness is counted at arrival. At equal times, timers come after arrivals.

    Where the paper is ambiguous: an aggregated group is closed before its clients are assigned, and
    a timer makes no server step if no client of the group has arrived. `mode="code"` differs from
    the paper as the authors' release does (https://github.com/APPFL/FedCompass): when a group is
    created, Tmax_g takes the place of Ta_g, and every g that would make Q_i more than Qmax is
    skipped; S_i is a moving average; staleness is counted at aggregation; and the first dispatches
    have Qmax steps. Unlike there, a client's late update is not overwritten by its next one.

    The paper does not cover clients that leave. Here the dispatch is lost, and the server learns of
    it at that time. The client is removed from its group; if all others have arrived, the group is
    aggregated at once. A client that rejoins is assigned with its last S_i and the current model,
    or starts with `first_steps` again if it has never arrived.

    `fractions.Fraction` times are exact; floats count as Ta or Tmax within a millionth of a step.

    Args:
      min_steps: Qmin, at least 1.
      max_steps: Qmax, at least Qmin.
      slack: lambda, at least 1: the latest arrival factor.
      first_steps: local steps of unmeasured clients; None is Qmin, or Qmax in "code".
      mode: "paper" or "code".
      speed_weight: rho in S_i <- (1 - rho) S_i + rho new, in (0, 1]; None is 1, or .9 in "code".
      measure: a function (client, number, num_steps, seconds of the dispatch) -> new S_i in seconds
        per step; None is seconds / num_steps.

    Returns:
      A planner. The `trace` of its plans is a `CompassTrace`.

    Raises:
      ValueError: if `min_steps` is above `max_steps`.
    """
    message = f"compass: min_steps={min_steps} is above max_steps={max_steps}; give a smaller one"
    require(min_steps <= max_steps, message)
    code = mode == "code"
    first_steps = first_steps or (max_steps if code else min_steps)
    speed_weight = speed_weight or (0.9 if code else 1)
    rules = min_steps, max_steps, slack, first_steps, speed_weight, code, measure

    def plan(system, num_clients, *, arrivals=None, seconds=None):
        return CompassServer(EventLoop(system, num_clients, arrivals, seconds), *rules).run()

    return plan


class CompassTrace(NamedTuple):
    """The decisions that led to a plan of `compass`, in NumPy arrays: dispatches [D], steps [U].

    Arrival groups are numbered from 1. 0 stands for a dispatch of a client that has not been
    measured, which belongs to no group, and for the server step of its arrival.

    Attributes:
      arrival_group: int32[D]: the arrival group of each dispatch.
      expected: float64[D]: Ta of its group; NaN for no group.
      latest: float64[D]: Tmax of its group; NaN for no group.
      seconds_per_step: float64[D]: the S_i that gave its number of steps, or NaN.
      late: bool[D]: whether it arrived after Tmax.
      aggregated_group: int32[U]: the arrival group of each server step.
    """

    arrival_group: np.ndarray
    expected: np.ndarray
    latest: np.ndarray
    seconds_per_step: np.ndarray
    late: np.ndarray
    aggregated_group: np.ndarray


Arrived = tuple[int, int, int]  # number of the arrival, dispatch, server steps since its version


@dataclass(slots=True)
class ArrivalGroup:
    """An arrival group."""

    number: int
    expected: Any  # Ta
    latest: Any  # Tmax
    members: list[int] = field(default_factory=list)  # all its clients (CL and ACL in the paper)
    arrived: list[Arrived] = field(default_factory=list)  # those that have arrived (ACL)


class CompassServer:
    """Assigns clients to arrival groups and aggregates groups. Times are floats or Fractions."""

    def __init__(
        self, loop: EventLoop, min_steps, max_steps, slack, first_steps, speed_weight, code, measure
    ):
        self.loop, self.min_steps, self.max_steps = loop, min_steps, max_steps
        self.first_steps, self.code, self.measure = first_steps, code, measure
        exact = isinstance(loop.seconds(0, 0, first_steps), Fraction)
        as_number = (lambda value: Fraction(str(value))) if exact else float  # .9 becomes 9/10
        self.slack, self.speed_weight = as_number(slack), as_number(speed_weight)
        self.rounding = 0 if exact else _ROUNDING
        self.groups: dict[int, ArrivalGroup] = {}  # not yet aggregated, in order of creation
        self.late_arrivals: list[Arrived] = []  # since the last aggregation
        self.speed: list[Any] = [math.nan] * loop.num_clients  # S_i
        # by client, for its dispatch in flight; in group 0 the client has not been measured
        self.group = [ArrivalGroup(0, math.nan, math.nan)] * loop.num_clients
        self.duration: list[Any] = [0] * loop.num_clients
        # records
        self.num_groups = 0
        self.dispatches: list[tuple[int, Any, Any, Any]] = []  # group, its Ta and Tmax, and S_i
        self.contributions: list[tuple[int, int, int]] = []
        self.steps: list[tuple[Any, int, int]] = []  # server steps
        self.late: list[int] = []  # dispatches

    def run(self) -> Plan:
        """Returns the plan, with a `CompassTrace`."""
        for client in range(self.loop.num_clients):
            self._assign(client, 0)
        handlers: dict[int, Any] = {plans.ARRIVES: self._receive, plans.LEAVES: self._lose}
        handlers |= {plans.REJOINS: self._assign, plans.TIMER: self._expire}
        for now, event, number in self.loop.events():
            handlers[event](number, now)
        return self._plan()

    def _assign(self, client: int, now: Any) -> None:
        """AssignGroup and JoinGroup; a client that has not been measured belongs to no group."""
        speed, max_steps = self.speed[client], self.max_steps
        if math.isnan(speed):
            self._dispatch(client, now, self.first_steps)
            return
        chosen, num_steps = None, self.min_steps
        for group in self.groups.values():
            possible = int((group.expected - now) / speed + self.rounding)
            if num_steps <= possible <= max_steps:
                chosen, num_steps = group, possible
        if chosen is None:
            chosen, num_steps = self._create(speed, now)
        chosen.members.append(client)
        self.group[client] = chosen
        self._dispatch(client, now, num_steps)

    def _create(self, speed: Any, now: Any) -> tuple[ArrivalGroup, int]:
        """CreateGroup: returns a new group, and the number of steps of its first client."""
        best, max_steps, code = -1, self.max_steps, self.code
        for group in self.groups.values():
            reference = group.latest if code else group.expected
            if now < reference:
                fastest = min(map(self.speed.__getitem__, group.members))
                back = reference + fastest * max_steps  # Texp
                possible = int((back - now) / speed + self.rounding)
                if possible <= max_steps or not code:
                    best = max(best, possible)
        num_steps = max(best, self.min_steps) if 0 <= best <= max_steps else max_steps
        duration = num_steps * speed
        self.num_groups += 1
        group = ArrivalGroup(self.num_groups, now + duration, now + duration * self.slack)
        self.groups[group.number] = group
        self.loop.put(group.latest, plans.TIMER, group.number)
        return group, num_steps

    def _receive(self, client: int, now: Any) -> None:
        """Measures the speed of a client that arrives, then uses its update or keeps a late one."""
        loop, group, measure = self.loop, self.group[client], self.measure
        dispatch, duration = loop.current[client], self.duration[client]
        number, num_steps = loop.number[dispatch], loop.num_steps[dispatch]
        new = measure(client, number, num_steps, duration) if measure else duration / num_steps
        if group.number:
            new = (1 - self.speed_weight) * self.speed[client] + self.speed_weight * new
        self.speed[client] = new
        arrived = len(loop.arrived), dispatch, len(self.steps) - loop.version[dispatch]
        if not group.number:
            self._step(now, FIRST, 0, [arrived])
            self._assign(client, now)
        elif group.number in self.groups:
            group.arrived.append(arrived)
            if len(group.arrived) == len(group.members):
                self._expire(group.number, now)
        else:  # the timer has closed the group, so the client is late
            self.late.append(dispatch)
            self.late_arrivals.append(arrived)
            self._assign(client, now)

    def _lose(self, client: int, now: Any) -> None:
        """Removes a client that is lost from its group."""
        group = self.group[client]
        if group.number in self.groups:
            group.members.remove(client)
            if len(group.arrived) == len(group.members):
                self._expire(group.number, now)

    def _expire(self, number: int, now: Any) -> None:
        """GroupAggregate, if any client of the group has arrived; closes the group."""
        group = self.groups.pop(number, None)
        if group is None or not group.arrived:
            return
        self._step(now, AGGREGATE, number, sorted(self.late_arrivals + group.arrived))
        self.late_arrivals = []
        clients = (self.loop.client[dispatch] for _, dispatch, _ in group.arrived)
        for client in sorted(clients, key=self.speed.__getitem__):  # ties stay in order of arrival
            self._assign(client, now)

    def _dispatch(self, client: int, now: Any, num_steps: int) -> None:
        group, speed, version = self.group[client], self.speed[client], len(self.steps)
        self.dispatches.append((group.number, group.expected, group.latest, speed))
        snap = (group.expected, group.latest), self.rounding * speed
        self.duration[client] = self.loop.dispatch(client, num_steps, version, now, *snap)

    def _step(self, now: Any, kind: int, number: int, arrived: list[Arrived]) -> None:
        """Records a server step."""
        step, version, code = len(self.steps), self.loop.version, self.code
        for _, dispatch, at_arrival in arrived:
            staleness = step - version[dispatch] if code else at_arrival
            self.contributions.append((dispatch, staleness, step))
        self.steps.append((now, kind, number))

    def _plan(self) -> Plan:
        group, expected, latest, speed = np.array(self.dispatches, float).T.copy()
        dispatch, staleness, step = np.array(self.contributions, np.int32).reshape(-1, 3).T
        time, kind, aggregated = np.array(self.steps, float).reshape(-1, 3).T
        late = np.isin(np.arange(len(group)), self.late)
        group, aggregated = group.astype(np.int32), aggregated.astype(np.int32)
        trace = CompassTrace(group, expected, latest, speed, late, aggregated)
        return self.loop.plan(dispatch, staleness, step, time, kind, trace)
