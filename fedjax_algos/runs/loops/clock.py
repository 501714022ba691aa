"""Runs on the virtual clock: executes plans, single or merged, and evaluates at equal intervals."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_algos.asynchrony.plan import Plan
from fedjax_algos.asynchrony.planning import Planner
from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Batch, Metrics, Model, Params, Row
from fedjax_algos.core.trees import take, tree_bytes
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.data.stored import StoredData
from fedjax_algos.engine.asynchronous import call_tables
from fedjax_algos.engine.asynchronous.executor import Executor, InFlightMemory, PlanStop
from fedjax_algos.engine.asynchronous.in_flight import InFlightState, MovedRows
from fedjax_algos.engine.asynchronous.waves import InFlightRows
from fedjax_algos.engine.exchange import shared_of
from fedjax_algos.engine.fingerprint import array_fingerprint, data_fingerprint
from fedjax_algos.engine.placed.sharded_data import data_shapes
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.participation.systems.system_model import SystemModelFactory
from fedjax_algos.runs.loops import recorder as recording
from fedjax_algos.runs.loops.checkpoints import Checkpoints, RunSaver, Saved, fill, saved_seeds
from fedjax_algos.runs.loops.planned_runs import Clock, PlannedRun, evaluations_by_step, plan_runs
from fedjax_algos.runs.loops.recorder import Measured, Recorder, Stop, follow
from fedjax_algos.runs.loops.run import identity

_ALL = ""  # the folder's name if there is a single checkpoint
_ROWS = "rows_in_flight"  # an array of a checkpoint
_MERGED_BYTES = 2**30  # the default of `merged_bytes` where waves are faster than single dispatches


class AsyncResult(NamedTuple):
    """A finished run: `state` after the last server step, `rows` of the evaluations, and `plan`.

    A planner that keeps a record leaves it in `plan.trace`.
    """

    state: FederatedState
    rows: list[Row]
    plan: Plan

    def __repr__(self) -> str:
        return describe(self, rows=len(self.rows), plan=self.plan, state=self.state)


def simulate_async(
    executor: Executor,
    data: FederatedData | StoredData,
    planner: Planner,
    system: SystemModelFactory,
    *,
    seconds: float,
    seed: int = 0,
    test: Batch | None = None,
    evaluations: int = 20,
    params: Params | Model | None = None,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    on_memory: Callable[[InFlightMemory], None] = lambda memory: None,
    evaluate: Callable | None = None,
    checkpoints: Checkpoints | str | Path | None = None,
    progress: bool = False,
) -> AsyncResult:
    """Runs an algorithm on the virtual clock: plans the whole run, then executes the plan.

    Args:
      executor: a compiled algorithm from `make_executor`.
      data: the clients' examples, as `federate` or `open_federated` returns them; all take part.
      planner: plans the dispatches, such as `asynchrony.compass()`.
      system: clients' speeds and unavailability, such as `asynchrony.simulated()`. With the same
        seed it is the same for all methods, apart from communication, which depends on their bytes.
      seconds: simulated seconds, above 0.
      seed: the seed of the model, the system model and the clients' batches.
      evaluations: the number of evaluations after the first, at equal simulated intervals.
      on_evaluation: called with each row as it is measured.
      on_memory: called before any training, with the most models and updates in flight.
      test, params, evaluate, checkpoints, progress: as in `simulate`; a bar shows simulated time.

    Returns:
      The state, rows and plan. A row has the columns of `simulate` and `simulated_seconds`,
      `arrivals` and `lost` dispatches; `round` counts server steps. The evaluated model is the last
      one made at or before the row's time. A lost dispatch counts as a download alone. A run whose
      model is not finite stops as in `simulate`.

    Raises:
      ValueError: if no client arrives within `seconds`, for an argument out of range, or for
        checkpoints of another run.
      NonFiniteUpdateError: for an update that is not finite if the executor has non_finite="error".
      Interrupted: at an evaluation, if a signal has arrived in `finish_calls`.
    """
    clock = Clock(planner, system, seconds, test, evaluations, params, evaluate)
    with recording.show_progress(progress, seconds, "simulated seconds") as show:

        def report(seed: int, row: Row) -> None:
            show(row["simulated_seconds"], row)
            on_evaluation(row)

        planned = plan_runs(executor, {seed: data}, clock)
        return run_planned(executor, planned, report, on_memory, checkpoints)[seed]


def simulate_async_seeds(
    executor: Executor,
    data: Mapping[int, FederatedData | StoredData],
    planner: Planner,
    system: SystemModelFactory,
    *,
    seconds: float,
    test: Batch | None = None,
    evaluations: int = 20,
    params: Params | Model | None = None,
    on_evaluation: Callable[[int, Row], Any] = lambda seed, row: None,
    on_memory: Callable[[InFlightMemory], None] = lambda memory: None,
    evaluate: Callable | None = None,
    merged_bytes: int | None = None,
    checkpoints: Checkpoints | str | Path | None = None,
) -> dict[int, AsyncResult]:
    """Runs an algorithm on the virtual clock with several seeds, and can merge their plans.

    The dispatches of merged plans share waves and compiled calls. This is faster where few clients
    of different speeds cannot fill a wave. With layout "sequential", the results equal each seed's
    alone, bit for bit. The one exception is the last bit of a custom server rule that adds two
    products: the compiler may fuse them in one of the programs only.

    Args:
      executor, planner, system: as in `simulate_async`.
      data: the clients' examples by seed. For merged plans all hold the same arrays of examples;
        the plans of examples in files are not merged.
      seconds, test, evaluations, params, evaluate: as in `simulate_async`.
      on_evaluation: called with the seed and each of its rows as it is measured.
      on_memory: called once, before any training, with the largest memory in flight.
      merged_bytes: the limit for server states, client rows, and models and updates in flight. As
        many seeds are merged as fit; 0 merges none. None is 1 GiB for layout "vmapped" or several
        devices, else 0.
      checkpoints: as in `simulate`; with several plans, each has a folder in it. Seeds with merged
        plans resume together, and others apart.

    Returns:
      The results by seed, in the order of `data`; see `simulate_async`. `wall_seconds` of merged
      runs is the time since all of them started. A merged run that has stopped is still computed,
      without rows, so its state is later than its last row.

    Raises:
      ValueError: as `simulate_async` does, and for no seeds or data that cannot be merged.
      Interrupted: at an evaluation, if a signal has arrived in `finish_calls`.
    """
    clock = Clock(planner, system, seconds, test, evaluations, params, evaluate)
    planned = plan_runs(executor, data, clock)
    return run_planned(executor, planned, on_evaluation, on_memory, checkpoints, merged_bytes)


def run_planned(
    executor: Executor,
    planned: Mapping[int, PlannedRun],
    on_evaluation: Callable[[int, Row], Any],
    on_memory: Callable[[InFlightMemory], None],
    checkpoints: Checkpoints | str | Path | None,
    merged_bytes: int | None = None,
) -> dict[int, AsyncResult]:
    """Trains planned runs of one clock; see `simulate_async_seeds`."""
    if merged_bytes is None:
        merged_bytes = _MERGED_BYTES if executor.wide else 0
    if any(isinstance(run.data, StoredData) for run in planned.values()):
        merged_bytes = 0
    saved = saved_seeds(checkpoints)
    saved_in = {seed: name for name, seeds in saved.items() for seed in seeds}
    groups: dict[Any, list[PlannedRun]] = {}  # runs with one checkpoint, or with equal shapes
    for seed, run in planned.items():
        key = seed if merged_bytes == 0 else tuple(jax.tree.leaves(run.state))
        groups.setdefault(_ALL if _ALL in saved else saved_in.get(seed, key), []).append(run)
    parts = {
        key if key in saved else f"seeds-from-{part.runs[0].seed}": part
        for key, runs in groups.items()
        for part in _merge(executor, runs, math.inf if key in saved else merged_bytes)
    }
    for name, part in parts.items():
        part.begin(checkpoints, _ALL if len(parts) == 1 and not saved else name)
    on_memory(max((part.memory for part in parts.values()), key=lambda memory: memory.bytes))
    clock, problem = next(iter(planned.values())).clock, executor.algorithm.problem
    evaluate = recording.make_evaluate_model(problem, clock.test, clock.evaluate)
    results: dict[int, AsyncResult] = {}
    for part in parts.values():
        results |= part.run(evaluate, on_evaluation)
    return {seed: results[seed] for seed in planned}


def _merge(executor, runs, max_bytes):
    """Merges runs of equal shapes; halves them until they need at most `max_bytes`.

    These are the bytes of everything on the device except examples.
    """
    merged = _MergedRuns(executor, runs)
    if len(runs) == 1 or tree_bytes(merged.shapes) + merged.memory.bytes <= max_bytes:
        return [merged]
    halves = runs[: len(runs) // 2], runs[len(runs) // 2 :]
    return [part for half in halves for part in _merge(executor, half, max_bytes)]


class _MergedRuns:
    """Runs with a merged plan, or a single run; `state` is the state after the last stop."""

    state: FederatedState
    saver: RunSaver
    saved: Saved | None
    begun: Any = None  # the `InFlightRows` of the checkpoint

    def __init__(self, executor: Executor, runs: Sequence[PlannedRun]):
        self.executor, self.clock, self.runs = executor, runs[0].clock, runs
        stores: list[Any] = [run.data for run in runs]
        self.data, num_clients = call_tables.merge_data(stores), stores[0].num_clients
        plans, dispatches = [run.plan for run in runs], [run.dispatches for run in runs]
        self.plan, self.dispatches = call_tables.merge_plans(plans, dispatches, num_clients)
        self.shapes = jax.eval_shape(call_tables.merge_states, [run.state for run in runs])
        self._make_waves()

    def _make_waves(self) -> None:
        shapes, data = self.shapes, data_shapes(self.data)
        self.waves = self.executor.waves(shapes, self.plan, self.begun)
        self.memory = self.executor.memory(shapes, data, self.dispatches, self.waves)

    def begin(self, checkpoints: Checkpoints | str | Path | None, name: str) -> None:
        """Resumes from the last checkpoint, if any, and plans the waves of the rest."""
        self.saver = RunSaver(checkpoints, self._identity, name)
        self.saved = self.saver.restore()
        if self.saved is not None:
            rows = (self.saved.arrays[f"{_ROWS}/{field}"] for field in InFlightRows._fields)
            self.begun = InFlightRows(*rows)
            self._make_waves()

    def run(self, evaluate: Callable, on_evaluation: Callable) -> dict[int, AsyncResult]:
        """Trains the runs, or the rest of them, and evaluates at simulated times."""
        runs = self.runs

        def report(number: int, row: Row, state: Any) -> None:
            on_evaluation(runs[number].seed, row)

        started = time.perf_counter() - sum(run.planning_seconds for run in runs)
        names = [f"seed {run.seed}" for run in runs]
        recorder = Recorder(names, self.executor.non_finite, report, started)
        for _ in follow(self._stops(recorder, evaluate), recorder, self.saver):
            pass
        recorder.warn()
        return {
            run.seed: AsyncResult(call_tables.state_of_run(self.state, number), history, run.plan)
            for number, (run, history) in enumerate(zip(runs, recorder.histories, strict=True))
        }

    def _stops(self, recorder: Recorder, evaluate: Callable) -> Iterator[Stop]:
        """Yields the evaluations from the start, or from the checkpoint."""
        executor, plan, saved, resume = self.executor, self.plan, self.saved, None
        data = executor.put_data(self.data)
        states = [executor.init(run.seed, run.population, self.clock.params) for run in self.runs]
        self.state = state = call_tables.merge_states(states)
        at_steps = evaluations_by_step(self.runs, plan)
        at_start = at_steps.pop(0)
        if saved is None:
            yield self._stop(0, at_start, {}, evaluate)
        else:
            recorder.restore(saved, None)

            def resume(in_flight: InFlightState, metrics: Metrics) -> Any:
                arrays = MovedRows(saved.arrays, self.begun, self.waves)
                tree = fill(in_flight._asdict() | {"metrics": metrics}, arrays)
                metrics, in_flight = tree.pop("metrics"), InFlightState(**tree)
                self.state = in_flight.state(shared_of(state))
                position = len(plan.time) if recorder.ended else saved.position
                return position, in_flight, metrics

        options: Any = {"stops": sorted(at_steps), "waves": self.waves, "resume": resume}
        for call in executor.run(state, data, plan, self.dispatches, **options):
            self.state, steps = call.state, call.server_steps
            arrays = partial(self._arrays, call)
            yield self._stop(steps, at_steps.get(steps, []), call.metrics, evaluate, arrays)

    def _stop(self, steps, evaluations, metrics, evaluate, arrays=None) -> Stop:
        """Returns evaluations of the state; metrics have leaves [...] or [runs, ...]."""
        shared = self.state._replace(clients=(), origin=())

        def measure(number: int) -> Measured:
            state = call_tables.state_of_run(shared, number)
            reports = recording.reported(self.executor.algorithm, state.server)
            return recording.measure_state(state, metrics, reports, evaluate, number)

        due = [(number, self.runs[number].counted(*at)) for number, *at in evaluations]
        return Stop(steps, due, measure, self.state, steps == len(self.plan.time), arrays)

    def _identity(self) -> dict[str, Any]:
        """Returns what a checkpoint must match to be resumed."""
        executor, first = self.executor, self.runs[0]
        shared = executor.algorithm, first.state, first.data, take(first.dispatches, 0)
        return identity(
            *shared,
            self.clock.test,
            seeds=[run.seed for run in self.runs],
            partition_and_values=data_fingerprint(self.data),
            plan=array_fingerprint((self.plan._replace(trace=None), self.dispatches)),
            evaluations=self.clock.evaluations,
            non_finite=executor.non_finite,
            slots=self.waves.trained.shape[1],
            layout=executor.layout,
            devices=executor.num_devices,
        )

    def _arrays(self, call: PlanStop) -> dict[str, Any]:
        """Returns the arrays of a checkpoint."""
        rows = self.waves.rows_after(call.server_steps, self.plan)._asdict()
        in_flight = call.in_flight._asdict() | {"metrics": call.metrics, _ROWS: rows}
        return call.state._asdict() | in_flight
