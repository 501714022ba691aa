"""Runs on the virtual clock: a plan, its execution, and evaluations at equal intervals."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from fedjax_algos.asynchrony.planners import Planner
from fedjax_algos.asynchrony.systems.system_model import SystemModelFactory
from fedjax_algos.core import Batch, Model, Params, Row
from fedjax_algos.core.checks import check_callable, check_kind, check_seed, check_whole
from fedjax_algos.core.options import is_number
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.data.stored import StoredData
from fedjax_algos.engine.asynchronous.executor import Executor
from fedjax_algos.engine.asynchronous.protocols import InFlightMemory
from fedjax_algos.runs.inputs import check_data, check_evaluations
from fedjax_algos.runs.plan_execution import AsyncResult, checkpoints_of, execute, identity_of
from fedjax_algos.runs.planned_runs import merge_runs, plan_run
from fedjax_algos.runs.progress import show_progress
from fedjax_algos.runs.rounds import make_evaluate_model
from fedjax_algos.runs.saving.checkpoints import Checkpoints, RunSaver

_MERGED_BYTES = 2**30  # the default of `merged_bytes` where waves are faster than their dispatches


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
    """Runs an algorithm on the virtual clock.

    The schedule first plans the whole run; then the plan is executed. All clients take part.

    Args:
      executor: a compiled algorithm, of `make_executor`.
      data: the clients' examples, as `federate` or `open_federated` returns them.
      planner: a schedule, such as `asynchrony.compass()`.
      system: clients' speeds and unavailability, such as `asynchrony.simulated()`. With the same
        seed it is the same for all methods, apart from communication, which depends on their bytes.
      seconds: simulated seconds, above 0.
      seed: of the model, the system model and the clients' batches.
      test: the examples to evaluate on (a tree like `data.examples`), or None for no evaluation.
      evaluations: number of evaluations after the one at the start, at equal simulated intervals.
      params: replace the problem's own initialisation: params, or a `Model`.
      on_evaluation: called with each row as it is measured.
      on_memory: called before any training, with the largest number of models and updates in
        flight.
      evaluate: of `make_evaluate`, so that executors share its compilation.
      checkpoints: a folder, or `Checkpoints`, where the run is saved and goes on; see `simulate`.
      progress: whether a bar of the simulated time is shown; see `simulate`.

    Returns:
      The state, rows and plan. A row has the columns of `simulate` and `simulated_seconds`,
      `arrivals` and `lost` dispatches; `round` counts server steps. The evaluated model is the last
      one made at or before the row's time. Bytes and flops count arrived and lost dispatches; a
      lost dispatch has been downloaded, but what it computed is not counted. A run whose model is
      not finite stops as in `simulate`.

    Raises:
      ValueError: if no client arrives within `seconds`, for an argument out of range, or for
        checkpoints of another run.
      NonFiniteUpdateError: for an update that is not finite if the executor has non_finite="error".
      Interrupted: at an evaluation, if a signal has arrived in `finish_calls`.
    """
    with show_progress(progress, seconds, "simulated seconds") as show:

        def report(seed: int, row: Row) -> None:
            show(row["simulated_seconds"], row)
            on_evaluation(row)

        (result,) = simulate_async_seeds(
            executor,
            {seed: data},
            planner,
            system,
            seconds=seconds,
            test=test,
            evaluations=evaluations,
            params=params,
            on_evaluation=report,
            on_memory=on_memory,
            evaluate=evaluate,
            checkpoints=checkpoints,
        ).values()
    return result


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
    on_evaluation: Callable[[int, Row], None] = lambda seed, row: None,
    on_memory: Callable[[InFlightMemory], None] = lambda memory: None,
    evaluate: Callable | None = None,
    merged_bytes: int | None = None,
    checkpoints: Checkpoints | str | Path | None = None,
) -> dict[int, AsyncResult]:
    """Runs an algorithm on the virtual clock with several seeds, whose plans can be merged.

    The dispatches of merged plans share waves and compiled calls. This is faster where few clients
    of different speeds cannot fill a wave. If the dispatches of a wave are trained one after
    another (layout "sequential"), the results are bit for bit those of each seed alone. A server
    rule of one's own that adds two products may differ by the last bit, because the compiler may
    fuse a multiplication with the addition in one of the two programs.

    Args:
      executor: a compiled algorithm, of `make_executor`.
      data: the clients' examples by seed. For merged plans all hold the same arrays of examples;
        the plans of examples in files are not merged.
      planner: a schedule.
      system: clients' speeds and unavailability.
      seconds: simulated seconds, above 0.
      test: the examples to evaluate on, or None.
      evaluations: number of evaluations after the one at the start.
      params: replace the problem's own initialisation.
      on_evaluation: called with the seed and each of its rows as it is measured.
      on_memory: called once, before any training, with the largest memory of what is in flight.
      evaluate: of `make_evaluate`.
      merged_bytes: limit for server states, client rows and what is in flight: the plans of as many
        seeds as fit are merged; 0 merges none. None is 1 GiB if waves are faster than their
        dispatches one after another (layout "vmapped" or several devices), else 0.
      checkpoints: a folder, or `Checkpoints`, where the runs are saved and go on; see `simulate`.
        If they are not all merged, those with one plan have a folder in it.

    Returns:
      The results by seed, in the order of `data`; see `simulate_async`. `wall_seconds` of merged
      runs is the time since all of them started. A merged run that has stopped is computed on
      without rows, so its state is later than its last row.

    Raises:
      ValueError: if no client arrives within `seconds`, for no seeds, for data that cannot be
        merged, for an argument out of range, or for checkpoints of other runs.
      Interrupted: at an evaluation, if a signal has arrived in `finish_calls`.
    """
    check_kind("executor", executor, Executor, "give make_executor(algorithm)")
    check_kind("data", data, Mapping, "give {seed: data}, or call simulate_async")
    check_callable("planner", planner, "give a schedule, such as asynchrony.compass()")
    check_callable("system", system, "give a system model, such as asynchrony.simulated()")
    if not is_number(seconds, float) or not seconds > 0:
        raise ValueError(f"seconds={seconds!r} is out of range; give a number above 0")
    check_whole("evaluations", evaluations)
    check_evaluations(evaluations * max(len(data), 1), "give fewer evaluations or seeds")
    if not data:
        raise ValueError("there are no seeds; give the data of at least one")
    for seed, of_seed in data.items():
        check_seed(seed)
        check_data(executor.algorithm.problem, of_seed, test)
    if merged_bytes is None:
        merged_bytes = _MERGED_BYTES if executor.wide else 0
    if any(isinstance(of_seed, StoredData) for of_seed in data.values()):
        merged_bytes = 0
    runs = [
        plan_run(executor, run_data, planner, system, seconds, seed, params)
        for seed, run_data in data.items()
    ]
    merged_runs = merge_runs(executor, runs, merged_bytes)
    on_memory(max((merged.memory for merged in merged_runs), key=lambda memory: memory.bytes))
    evaluate_model = make_evaluate_model(executor.algorithm.problem, test, evaluate)
    times = np.linspace(0, seconds, evaluations + 1)
    results: dict[int, AsyncResult] = {}
    for merged in merged_runs:
        identity = partial(identity_of, executor, merged, evaluations, test)
        saver = RunSaver(checkpoints_of(checkpoints, merged, len(runs)), identity)
        results |= execute(executor, merged, times, params, evaluate_model, on_evaluation, saver)
    return {seed: results[seed] for seed in data}
