"""The functions of an `Executor`, one protocol each, and what they return."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from fedjax_algos.asynchrony.plan import Plan
from fedjax_algos.core import Dispatch, Metrics
from fedjax_algos.engine.asynchronous.in_flight import InFlightState
from fedjax_algos.engine.asynchronous.waves import Waves
from fedjax_algos.engine.sharded_data import DeviceData, RunData
from fedjax_algos.engine.state import FederatedState


class InFlightMemory(NamedTuple):
    """Memory for what is in flight, besides the server state and the clients' rows.

    Attributes:
      version_rows: versions from which dispatches still start, with all that is broadcast.
      version_bytes: of all rows.
      update_rows: updates that are trained and have not arrived.
      update_bytes: of all rows.
      runs: merged runs, which share the rows.
    """

    version_rows: int
    version_bytes: int
    update_rows: int
    update_bytes: int
    runs: int = 1

    @property
    def bytes(self) -> int:
        """Bytes of all versions and updates."""
        return self.version_bytes + self.update_bytes

    def __str__(self) -> str:
        rows = f"{self.version_rows} models and {self.update_rows} updates"
        runs = f" (of {self.runs} merged runs)" if self.runs > 1 else ""
        return f"at most {rows} in flight, {self.bytes / 1e6:.3g} MB{runs}"


class PlanStop(NamedTuple):
    """A run of a plan after some server steps."""

    server_steps: int  # that have been made
    state: FederatedState
    metrics: Metrics  # of the contributions since the last stop
    in_flight: InFlightState  # what the rest of the run reads, besides the metrics


# from the initial (in-flight state, metrics) to (server steps, both after so many)
ResumeFn = Callable[[InFlightState, Metrics], tuple[int, InFlightState, Metrics]]


class RunPlanFn(Protocol):
    """Executes a plan.

    The plan begins at the given state and with dispatch 0 of each client. Several runs are executed
    as one if plans, data and states are merged by `merge_plans`, `merge_data` and `merge_states`:
    then metrics have leaves [runs, ...], and a stop restarts the sums of its own run only.

    Args:
      state: of `init`. It is CONSUMED: its buffers are reused.
      data: all clients' examples, as `put_data` placed them.
      plan: the timeline.
      dispatches: of `plan_dispatches`: NumPy arrays with leaves [dispatches].
      stops: ascending numbers of server steps after which to yield, from 1 to the plan's last.
      waves: of the executor's `waves`; None makes them.
      resume: goes on after a stop of an earlier run with the same arguments: it takes what is in
        flight before the first wave, and the metrics, and returns the number of server steps at
        that stop with what was in flight then, and the metrics. None begins the plan.

    Returns:
      An iterator over `PlanStop`s, after each of `stops` and after the last server step. Metrics
      are means over the contributions since the last stop. The yielded arrays are CONSUMED when the
      iterator advances: read or copy them before. Client rows in a yielded state may be ahead of
      the clock: they include all dispatches trained so far.

    Raises:
      ValueError: for stops out of order or range, for dispatches or a state that do not fit the
        plan, and for a plan that contradicts itself.
    """

    def __call__(
        self,
        state: FederatedState,
        data: DeviceData,
        plan: Plan,
        dispatches: Dispatch,
        *,
        stops: Sequence[int] = (),
        waves: Waves | None = None,
        resume: ResumeFn | None = None,
    ) -> Iterator[PlanStop]: ...


class MakeWavesFn(Protocol):
    """Makes the waves of a plan, with the executor's number of slots.

    Args:
      state: of `init`, or its shapes; not consumed.
      plan: the timeline.

    Raises:
      ValueError: for a plan that contradicts itself.
    """

    def __call__(self, state: FederatedState, plan: Plan) -> Waves: ...


class InFlightMemoryFn(Protocol):
    """Computes how much memory a run needs for what is in flight, before it begins.

    Args:
      state: of `init`, or its shapes; not consumed.
      data: all clients' examples, or their shapes.
      dispatches: of `plan_dispatches`.
      waves: of the executor's `waves`.
    """

    def __call__(
        self, state: FederatedState, data: RunData, dispatches: Dispatch, waves: Waves
    ) -> InFlightMemory: ...
