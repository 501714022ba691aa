"""Runs plans: waves of training, and after each wave the server steps that it makes possible.

The device holds the server state and the sums of the current server step. It also has a row for
each version that a dispatch will still start from, and for each update that has not arrived yet.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from fedjax_algos.asynchrony.plan import Plan
from fedjax_algos.asynchrony.planning import check_asynchronous
from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import check_device_memory
from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Algorithm, Dispatch, Metrics
from fedjax_algos.core.checks import check_kind, check_whole
from fedjax_algos.core.options import NonFinite, check_choice
from fedjax_algos.core.trees import take, tree_bytes
from fedjax_algos.engine.asynchronous.call_tables import call_tables, narrow, row_counts
from fedjax_algos.engine.asynchronous.in_flight import InFlightState, initial_in_flight, run_waves
from fedjax_algos.engine.asynchronous.waves import InFlightRows, Waves, choose_slots, make_waves
from fedjax_algos.engine.checks import check_options
from fedjax_algos.engine.exchange import shared_of
from fedjax_algos.engine.non_finite import check_excluded
from fedjax_algos.engine.placed.cohort_data import CohortData
from fedjax_algos.engine.placed.devices import Devices, mesh_of, replicate, wait_on_cpu
from fedjax_algos.engine.placed.sharded_data import DeviceData, RunData
from fedjax_algos.engine.placed_algorithm import PlacedAlgorithm
from fedjax_algos.engine.slots import Placement, default_layout
from fedjax_algos.engine.state import FederatedState


class InFlightMemory(NamedTuple):
    """Memory for versions and updates in flight, besides the server state and the clients' rows.

    Attributes:
      version_rows, version_bytes: versions that dispatches still start from, and their bytes.
      update_rows, update_bytes: updates that are trained and have not arrived, and their bytes.
      runs: number of merged runs, which share the rows.
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
    """The result of a plan after some server steps."""

    server_steps: int  # made so far
    state: FederatedState
    metrics: Metrics  # of the contributions since the last stop
    in_flight: InFlightState  # read by the rest of the run, with the metrics


# initial (in-flight state, metrics) -> (server steps, both after these steps)
ResumeFn = Callable[[InFlightState, Metrics], tuple[int, InFlightState, Metrics]]


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class Executor(PlacedAlgorithm):
    """An algorithm compiled for plans, as `make_executor` returns it.

    Attributes:
      algorithm, slots, waves_per_call, non_finite: as in `make_executor`.
      layout: how the slots of a wave are computed: "sequential" or "vmapped".
      placement, client_state, sharded: as in an `Engine`.
      num_devices: number of devices that divide the slots.
    """

    slots: Literal["auto"] | int
    layout: Literal["sequential", "vmapped"]
    waves_per_call: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.num_devices = self.placement.num_devices
        initial = partial(initial_in_flight, self.algorithm, self._mesh)
        self._initial = jax.jit(initial, static_argnums=4, donate_argnums=0)
        run = partial(run_waves, self.algorithm, self.layout, self._mesh)
        self._run_waves = jax.jit(run, donate_argnums=0)

    @property
    def wide(self) -> bool:
        """bool: whether a wave is faster than its dispatches one after another."""
        return self.slots != 1 and (self.layout == "vmapped" or self.num_devices > 1)

    def __repr__(self) -> str:
        options = {"slots": self.slots, "layout": self.layout, "devices": self.num_devices}
        return describe(self, **options, algorithm=self.algorithm)

    def waves(self, state: FederatedState, plan: Plan, begun: InFlightRows | None = None) -> Waves:
        """Makes the waves of a plan; ValueError for a plan that contradicts itself.

        Args:
          state, plan: the result of `init`, or its shapes, and the timeline.
          begun: `Waves.rows_after` some server steps, to make only the waves of the rest. They have
            at least as many rows as the whole plan, so that its program is reused.
        """
        stateful, slots = bool(jax.tree.leaves(state.origin)), self.slots
        if slots == "auto":
            slots = choose_slots(plan, self.layout, devices=self.num_devices, stateful=stateful)
        waves = make_waves(plan, slots, stateful=stateful)
        if begun is None:
            return waves
        rest = make_waves(plan, slots, stateful=stateful, begun=begun)
        return rest._replace(
            num_version_rows=max(rest.num_version_rows, waves.num_version_rows),
            num_update_rows=max(rest.num_update_rows, waves.num_update_rows),
        )

    def memory(
        self, state: FederatedState, data: RunData, dispatches: Dispatch, waves: Waves
    ) -> InFlightMemory:
        """Computes the memory that a run needs for versions and updates in flight.

        Args:
          state, data: the results of `init` and `put_data`, or their shapes.
          dispatches, waves: the results of `plan_dispatches` and `waves`.
        """
        in_flight, _ = self._initial.eval_shape(*self._arguments(state, data, dispatches, waves))
        versions, updates = row_counts(waves)
        version_bytes, update_bytes = map(tree_bytes, (in_flight.versions, in_flight.updates))
        return InFlightMemory(versions, version_bytes, updates, update_bytes, state.seed.size)

    def run(
        self,
        state: FederatedState,
        data: DeviceData,
        plan: Plan,
        dispatches: Dispatch,
        *,
        stops: Sequence[int] = (),
        waves: Waves | None = None,
        resume: ResumeFn | None = None,
    ) -> Iterator[PlanStop]:
        """Executes a plan from the given state, with dispatch 0 of each client.

        Several runs are executed as one if their plans, data and states are merged (`merge_plans`,
        `merge_data` and `merge_states`). Then metrics have leaves [runs, ...], and a stop restarts
        the sums of its own run only.

        Args:
          state: the result of `init`. It is CONSUMED: its buffers are reused.
          data: all clients' examples, as `put_data` placed them.
          plan: the timeline.
          dispatches: the result of `plan_dispatches`: NumPy arrays [dispatches].
          stops: ascending server steps to yield after, from 1 to the plan's last.
          waves: the result of `waves`; None makes them.
          resume: continues after a stop of an earlier run of the same plan, with waves that are
            `begun`. It takes the in-flight state and the metrics before the first wave, and returns
            the server steps, the state and the metrics at that stop. None begins the plan.

        Returns:
          An iterator over `PlanStop`s, after each of `stops` and after the last server step.
          Metrics are means over the contributions since the last stop. The yielded arrays are
          CONSUMED when the iterator advances. Client rows include all dispatches trained so far.

        Raises:
          ValueError: for stops out of order or range, for a plan that contradicts itself, and for
            dispatches or a state that do not fit the plan.
        """
        last = _check_run(state, data, plan, dispatches, stops)
        if plan.num_runs == 1:
            self._checked.check(state, data, dispatches, ("dispatches",))
        waves = self.waves(state, plan) if waves is None else waves
        sizes = self.num_devices, self.waves_per_call, data.num_clients
        calls = partial(call_tables, plan, dispatches, waves, *sizes, [*stops, last])
        arguments = self._arguments(state, data, dispatches, waves)
        return self._execute(data, arguments, calls, resume)

    def _arguments(self, state, data, dispatches, waves):
        """Returns the arguments of `initial`, which reads only the shapes of an example."""
        data = data.empty() if isinstance(data, CohortData) else data
        dispatch = replicate(self._mesh, jax.tree.map(narrow, take(dispatches, 0)))
        initial = *state[:3], state.dispatched, state.excluded
        shared = shared_of(state)._replace(statistics=())  # each version has its own
        return initial, shared, data, dispatch, row_counts(waves)

    def _execute(self, data, arguments, calls, resume):
        shapes, _ = self._initial.eval_shape(*arguments)
        name = "the models, updates and client rows in flight"
        fix = "give a smaller model, fewer clients, or a planner with a smaller concurrency"
        check_device_memory(name, tree_bytes(shapes), fix, devices=self.num_devices)
        in_flight, metrics = self._initial(*arguments)
        after, shared = 0, arguments[1]
        if resume is not None:
            after, in_flight, metrics = resume(in_flight, metrics)
        for stop, table, present in _with_data(data, calls(after)):
            arguments = metrics, shared, present, replicate(self._mesh, table)
            in_flight, metrics = wait_on_cpu(self._mesh, self._run_waves(in_flight, *arguments))
            if present is not data:  # keeps the examples of only one call in use
                jax.block_until_ready(metrics)
            check_excluded(self.non_finite, in_flight.excluded)
            if stop is not None:
                yield PlanStop(stop, in_flight.state(shared), metrics, in_flight)


def make_executor(
    algorithm: Algorithm,
    *,
    slots: Literal["auto"] | int = "auto",
    layout: Literal["auto", "sequential", "vmapped"] = "auto",
    waves_per_call: int = 32,
    devices: Devices = None,
    non_finite: NonFinite = "exclude",
    devices_per_client: int = 1,
    model_sharding: Any = None,
) -> Executor:
    """Compiles an algorithm for plans.

    A server step sums `contribute(update, dispatch, staleness)` over its contributions in their
    order, and calls `server_update` with the sums, their number and the plan's group. Dispatches
    start from the broadcast of their version even if they are trained later. The model's statistics
    become the mean over the contributions of each server step. Dispatches that are lost or have not
    arrived at the end of the plan are not trained.

    Args:
      algorithm: any algorithm without a prelude and with `reduce="sum"`. Its trait `asynchrony`
        lists the planners that it is meant for.
      slots: number of dispatches in a wave, a multiple of the number of devices; 1 is immediate
        execution, and "auto" is the smallest number whose waves cost about the least.
      layout: "sequential" trains the dispatches of a wave one after another, with the same bits for
        any number of slots, "vmapped" all at once. "auto" is "sequential" on a CPU and "vmapped"
        elsewhere.
      waves_per_call: maximal number of waves in one call of the compiled program.
      devices: devices that divide the slots of a wave, as for `make_engine`. Each one
        holds the server state, all rows and all examples.
      non_finite, devices_per_client, model_sharding: as in `make_engine`.

    Raises:
      ValueError: for an unknown layout or non_finite, `slots` or `waves_per_call` below 1, slots
        that do not divide over the devices, or an algorithm that needs synchronous rounds.
    """
    check_options(algorithm, "auto", non_finite)
    check_asynchronous(algorithm)
    check_whole("waves_per_call", waves_per_call)
    mesh = mesh_of(algorithm.problem, devices, devices_per_client, model_sharding)
    placement = Placement("auto", mesh)
    check_choice("layout", layout, ("auto", "sequential", "vmapped"))
    layout = default_layout() if layout == "auto" else layout
    if slots != "auto":
        check_whole("slots", slots)
        found = f"slots={slots} do not divide over {placement.num_devices} devices; give a multiple"
        require(slots % placement.num_devices == 0, found)
    arguments = algorithm, placement, non_finite
    return Executor(*arguments, slots=slots, layout=layout, waves_per_call=waves_per_call)


def _with_data(data, calls):
    """Yields the calls and their data; for stored data, the examples of the clients they train."""
    if not isinstance(data, CohortData):
        return ((*call, data) for call in calls)
    tables, upcoming = itertools.tee(calls)
    cohorts = data.cohorts(table.slots.dispatch.client[: table.num_waves] for _, table in upcoming)
    return ((*call, cohort) for call, cohort in zip(tables, cohorts, strict=True))


def _check_run(state, data, plan, dispatches, stops):
    """Checks the arguments of a plan, or a merged one, and returns its last server step."""
    check_kind("plan", plan, Plan, "give what a planner returned")
    check_kind("state", state, FederatedState, "give what executor.init returned")
    check_kind("data", data, DeviceData, "give what federate or executor.put_data returned")
    check_kind("dispatches", dispatches, Dispatch, "give the result of plan_dispatches")
    last, largest = len(plan.time), plan.client.max(initial=0)
    ascending = not len(stops) or (np.diff(stops, prepend=0).min() >= 1 and stops[-1] <= last)
    found = f"stops={list(stops)} are out of range"
    require(ascending, f"{found}; give ascending server steps from 1 to {last}")
    runs, number = state.seed.size, len(dispatches.client)
    found = f"the plan has {plan.num_runs} runs, {len(plan.client)} dispatches and client {largest}"
    found += f", but given are {runs} runs, {number} dispatches, {data.num_clients} clients"
    fits = (runs, number) == (plan.num_runs, len(plan.client)) and largest < data.num_clients
    fits = fits and not (runs > 1 and isinstance(data, CohortData))
    fix = "give the state, the data and the plan_dispatches that it was made for, merged like it"
    require(fits, f"{found}; {fix}")
    return last
