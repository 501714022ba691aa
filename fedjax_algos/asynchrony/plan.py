"""Defines plans (which client trains when, from which model) and the event loop that makes them.

On a virtual clock, arrival times never depend on the values of a model. A planner therefore records
the whole timeline as a `Plan` on the host; the executor then trains what the plan contains.

If a client becomes unavailable, its dispatch is lost when it leaves, and the server learns of it at
that time. At equal times, arrivals and losses come first, in the order of the clients, then the
other events in the order of their constants. Times have the type of the system model's numbers,
such as `fractions.Fraction`, which are exact.
"""

import heapq
import math
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import check_int32, check_memory
from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Dispatch, Local
from fedjax_algos.core.checks import check_callable, check_kind, check_whole
from fedjax_algos.core.options import is_number
from fedjax_algos.participation.cohorts import checked_counts, first_steps, rate_at, rate_counts
from fedjax_algos.participation.systems import system_model
from fedjax_algos.participation.systems.system_model import SystemModel, SystemModelWithSessions

AGGREGATED, IN_FLIGHT, LOST = range(3)  # fates of a dispatch
AGGREGATE, FIRST = range(2)  # FedCompass's server steps: of an arrival group, of a first arrival
# Events. A loss is queued as an arrival and becomes LEAVES when its time comes.
ARRIVES, TIMER, REJOINS, STARTS, LEAVES = range(5)
_DISPATCH_BYTES = 300  # of lists and numbers while a plan is made
_FIRST_PROJECTION = 2**14  # dispatches; their number is projected here and at each doubling
_MAX_LOSSES_PER_CLIENT = 1000  # on average, since the last arrival of any client


class Plan(NamedTuple):
    """A timeline in NumPy arrays: dispatches [D], contributions [C], server steps [U], in order.

    Version v is the global model after v server steps; server step u makes version u + 1. A
    contribution is an update that has arrived and is part of a server step; they are ordered by
    server step and then by arrival. In a merged plan of R runs (`merge_plans`), the first R
    versions are the runs' initial models, and server step u makes version u + R.

    Attributes:
      client: int32[D]: the client of each dispatch.
      number: int32[D]: number of this dispatch of the client, from 0.
      num_steps: int32[D]: local steps that the client does.
      full_steps: int32[D]: local steps of its complete local update.
      version: int32[D]: the global model that it starts from.
      started: float64[D]: simulated seconds.
      ended: float64[D]: when it arrives or is lost; may be after the horizon.
      fate: int8[D]: AGGREGATED, IN_FLIGHT (or buffered) at the horizon, or LOST.
      dispatch: int32[C]: the dispatch of each contribution.
      staleness: int32[C]: server steps since its version; 0 if the planner counts none.
      step: int32[C]: the server step that it is part of, in ascending order.
      time: float64[U]: when each server step is made, in simulated seconds.
      group: int32[U]: the group given to `server_update`; see each planner.
      run: int32[U]: the run of each server step; None for one run.
      trace: the planner's record of its decisions, such as `CompassTrace`, or None.
    """

    client: np.ndarray
    number: np.ndarray
    num_steps: np.ndarray
    full_steps: np.ndarray
    version: np.ndarray
    started: np.ndarray
    ended: np.ndarray
    fate: np.ndarray
    dispatch: np.ndarray
    staleness: np.ndarray
    step: np.ndarray
    time: np.ndarray
    group: np.ndarray
    run: np.ndarray | None = None
    trace: Any = None

    @property
    def num_runs(self) -> int:
        """R, the number of runs; each makes at least one server step."""
        return 1 if self.run is None else int(self.run.max()) + 1

    @property
    def num_versions(self) -> int:
        """Number of versions at the horizon, including the initial models."""
        return len(self.time) + self.num_runs

    def __repr__(self) -> str:
        sizes = {"dispatches": len(self.client), "lost": int((self.fate == LOST).sum())}
        sizes |= {"contributions": len(self.dispatch), "server_steps": len(self.time)}
        return describe(self, **sizes, runs=self.num_runs)


def plan_dispatches(plan: Plan, counts: np.ndarray, local: Local) -> Dispatch:
    """Returns the facts that clients receive in a plan's dispatches.

    Args:
      plan: a timeline.
      counts: int[num_clients]: n_i, also of clients that are never dispatched.
      local: how clients train; for `rate_by` the version is the server step.

    Returns:
      NumPy arrays [D]. `server_step` is the version. `first_step` leaves out lost dispatches.

    Raises:
      ValueError: for counts or rates out of range, or a client without a count.
    """
    check_kind("plan", plan, Plan, "give what a planner returned, of EventLoop(...).plan(...)")
    counts, largest = checked_counts(counts), plan.client.max(initial=0)
    found = f"the plan dispatches client {largest}, but there are counts of {len(counts)} clients"
    require(largest < len(counts), f"{found}; give the counts of the plan's data")
    real = jnp.result_type(float)
    shares = counts / counts.sum(dtype=np.int64)
    rate_index = rate_counts(local, plan.number, plan.version, plan.full_steps)
    return Dispatch(
        client=plan.client,
        number=plan.number,
        server_step=plan.version,
        num_steps=plan.num_steps,
        full_steps=plan.full_steps,
        num_examples=counts[plan.client],
        share=shares[plan.client].astype(real),
        learning_rate=np.asarray(rate_at(local.learning_rate, rate_index), real),
        first_step=first_steps(plan.client, np.where(plan.fate == LOST, 0, plan.num_steps)),
    )


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
        found = f"arrivals={arrivals} and seconds={seconds} do not define the horizon"
        require((arrivals is None) != (seconds is None), f"{found}; give exactly one of them")
        found = f"seconds={seconds} is out of range; give a number above 0"
        require(seconds is None or 0 < seconds < math.inf, found)
        for name, count in (("num_clients", num_clients), ("arrivals", arrivals)):
            if count is not None:
                check_whole(name, count)
                check_memory(f"a plan of {name}={count}", count * _DISPATCH_BYTES, "give fewer")
        self.num_clients = num_clients
        fix, name = "give what the factory of a system model makes", type(system).__name__
        for method, more in (("seconds", ["num_steps"]), ("unavailability", [])):
            function = getattr(system, method, None)
            check_callable(f"{name}.{method}", function, fix, "client", "number", *more)
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
        if not (is_number(duration, float) and duration > 0):
            found = f"dispatch {number} of client {client} takes {duration!r} s"
            fix = "give a system model with finite times above 0"
            raise ValueError(f"{found} for {num_steps} steps; {fix}")
        if self.sessions is None:
            unavailability = self.unavailability(client, number)
        else:
            unavailability = self.sessions.unavailability_at(client, now, duration)
        end = now + duration
        if unavailability is None:
            end = next((time for time in snap_times if abs(end - time) <= tolerance), end)
        else:
            system_model.check_unavailability(client, number, unavailability)
            share, self.seconds_away[client] = unavailability
            end = now + share * duration
        self.current[client] = made
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
          number: a number that `events` returns with it, such as a group's.
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
            now, event, client = heapq.heappop(queue)
            if event == ARRIVES and client in seconds_away:
                event, away = LEAVES, seconds_away.pop(client)
                self.lost.append(self.current[client])
                losses += 1
                if away < math.inf:
                    heapq.heappush(queue, (now + away, REJOINS, client))
            elif event == ARRIVES:
                arrived.append(self.current[client])
                losses = 0
            yield now, event, client
        found = f"only {len(arrived)} of arrivals={self.max_arrivals} come, because clients leave"
        fix = "for good or in nearly every dispatch; give fewer arrivals, or seconds"
        require(not len(arrived) < self.max_arrivals < math.inf, f"{found} {fix}")

    def plan(
        self,
        dispatch: ArrayLike,
        staleness: ArrayLike,
        step: ArrayLike,
        time: ArrayLike,
        group: ArrayLike,
        trace: Any = None,
    ) -> Plan:
        """Completes the plan of the loop's dispatches with the planner's server steps.

        Args:
          dispatch, staleness, step: int[C], as in `Plan`.
          time, group: float[U] and int[U], as in `Plan`.
          trace: the planner's own record.
        """
        ints = {name: getattr(self, name) for name in ("client", "number", "num_steps", "version")}
        ints |= {"full_steps": self.num_steps, "dispatch": dispatch, "staleness": staleness}
        ints |= {"step": step, "group": group}
        floats = {"started": self.started, "ended": self.ended, "time": time}
        columns = {name: np.array(values, np.int32) for name, values in ints.items()}
        columns |= {name: np.array(values, float) for name, values in floats.items()}
        fate = np.full(len(self.client), IN_FLIGHT, np.int8)
        fate[columns["dispatch"]] = AGGREGATED
        fate[self.lost] = LOST
        return Plan(**columns, fate=fate, trace=trace)
