"""The execution of merged plans: training, evaluations at their times, and checkpoints."""

import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.asynchrony.plan import Plan
from fedjax_algos.core import Batch, Row
from fedjax_algos.core.representation import describe, describe_tree
from fedjax_algos.engine.asynchronous.call_tables import merge_states, state_of_run
from fedjax_algos.engine.asynchronous.executor import Executor, PlanStop
from fedjax_algos.engine.asynchronous.in_flight import InFlightState
from fedjax_algos.engine.fingerprint import (
    algorithm_fingerprint,
    array_fingerprint,
    data_fingerprint,
    examples_fingerprint,
)
from fedjax_algos.engine.placed.sharded_data import data_shapes
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.runs.divergence import (
    count_excluded,
    has_diverged,
    params_finite,
    training_mean,
    warn_of_divergence,
)
from fedjax_algos.runs.planned_runs import MergedRuns
from fedjax_algos.runs.saving.arrays import fill
from fedjax_algos.runs.saving.checkpoints import Content, as_checkpoints
from fedjax_algos.runs.saving.interruption import check_interruption


class AsyncResult(NamedTuple):
    """A finished run: `state` after the last server step, `rows` of the evaluations, and `plan`.

    A schedule that keeps a record has left it in `plan.trace`.
    """

    state: FederatedState
    rows: list[Row]
    plan: Plan

    def __repr__(self) -> str:
        return describe(self, rows=len(self.rows), plan=self.plan, state=self.state)


def checkpoints_of(checkpoints, merged, num_seeds):
    """The checkpoints of merged runs: if there are others, in a folder named after their seeds."""
    checkpoints = as_checkpoints(checkpoints)
    if checkpoints is None or len(merged.runs) == num_seeds:
        return checkpoints
    name = f"seeds-from-{merged.runs[0].seed}"
    return checkpoints._replace(folder=Path(checkpoints.folder) / name)


def identity_of(
    executor: Executor, merged: MergedRuns, evaluations: int, test: Batch | None
) -> dict[str, Any]:
    """By what a checkpoint of other runs is recognised."""
    first = merged.runs[0]
    one = jax.tree.map(lambda leaf: leaf[0], first.dispatches)
    return {
        "algorithm": algorithm_fingerprint(executor.algorithm, first.state, first.data, one),
        "seeds": [run.seed for run in merged.runs],
        "clients": first.data.num_clients,
        "examples": describe_tree(data_shapes(first.data).examples),
        "partition_and_values": data_fingerprint(merged.data),
        "test": examples_fingerprint(test),
        "plan": array_fingerprint((merged.plan._replace(trace=None), merged.dispatches)),
        "evaluations": evaluations,
        "non_finite": executor.non_finite,
        "slots": merged.waves.trained.shape[1],
        "layout": executor.layout,
        "devices": executor.num_devices,
    }


def _content(stop: PlanStop, facts: dict[str, Any]) -> Content:
    """What a checkpoint holds."""
    arrays = stop.state._asdict() | stop.in_flight._asdict() | {"metrics": stop.metrics}
    return arrays, facts


def execute(executor, merged, times, params, evaluate_model, on_evaluation, saver):
    """Trains merged runs, or the rest of them, and returns the result of each seed."""
    runs, plan = merged.runs, merged.plan
    saved, resume, last = saver.restore(), None, None
    histories = saved.facts["rows"] if saved else [[] for _ in runs]
    seconds = histories[0][-1]["wall_seconds"] if saved else 0.0
    start = time.perf_counter() - sum(run.planning_seconds for run in runs) - seconds
    data = executor.put_data(merged.data)
    state = merge_states([executor.init(run.seed, run.population, params) for run in runs])
    stopped = set(saved.facts["diverged"]) if saved else set()  # runs whose rows end
    if saved:
        for run, history in zip(runs, histories, strict=True):
            for row in history:
                on_evaluation(run.seed, row)

        def resume(in_flight, metrics):
            nonlocal last
            tree = fill(in_flight._asdict() | {"metrics": metrics}, saved.arrays)
            metrics, in_flight = tree.pop("metrics"), InFlightState(**tree)
            last = in_flight.state((state.origin, state.frozen), state.seed)
            return saved.position, in_flight, metrics

    def measure(number, now, round_number, state, metrics):
        if number in stopped:
            return
        own = state_of_run(state._replace(clients=(), origin=()), number)
        measured = {
            name: float(np.ravel(training_mean(mean))[number]) for name, mean in metrics.items()
        }
        excluded = count_excluded(own.excluded)
        row = runs[number].row(now, round_number, measured | evaluate_model(own), excluded, start)
        histories[number].append(row)
        on_evaluation(runs[number].seed, row)
        if has_diverged(executor.non_finite, row, params_finite(own.server.params)):
            stopped.add(number)
            warn_of_divergence({f"seed {runs[number].seed}": histories[number]})

    at_steps = {}  # the evaluations after so many server steps of the merged plan
    for number, run in enumerate(runs):
        own = np.flatnonzero(plan.run == number) if len(runs) > 1 else np.arange(len(plan.time))
        steps_by_time = np.searchsorted(run.plan.time, times, side="right")
        for now, steps in zip(times, steps_by_time.tolist(), strict=True):
            if now > 0 and steps > 0:
                at_steps.setdefault(int(own[steps - 1]) + 1, []).append((number, now, steps))
            elif not saved:
                measure(number, now, 0, state, {})
    check_interruption()
    last = state
    stops = sorted(at_steps)
    calls = executor.run(
        state, data, plan, merged.dispatches, stops=stops, waves=merged.waves, resume=resume
    )
    while len(stopped) < len(runs) and (stop := next(calls, None)) is not None:
        for number, now, round_number in at_steps.get(stop.server_steps, ()):
            measure(number, now, round_number, stop.state, stop.metrics)
        last = stop.state
        content = partial(_content, stop, {"rows": histories, "diverged": sorted(stopped)})
        end = stop.server_steps == len(plan.time) or len(stopped) == len(runs)
        saver.after_evaluation(stop.server_steps, content, last=end)
    return {
        run.seed: AsyncResult(state_of_run(last, number), history, run.plan)
        for number, (run, history) in enumerate(zip(runs, histories, strict=True))
    }
