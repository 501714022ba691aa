"""The loop of a synchronous run: windows of rounds, each followed by an evaluation."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

from fedjax_algos.analysis.evaluation import make_evaluate
from fedjax_algos.analysis.rows import metrics_row
from fedjax_algos.core import Batch, Model, Params, Population, Problem, Row
from fedjax_algos.core.checks import check_callable, check_kind
from fedjax_algos.core.representation import describe_tree
from fedjax_algos.engine.devices import one_copy
from fedjax_algos.engine.engine import Engine
from fedjax_algos.engine.fingerprint import (
    algorithm_fingerprint,
    array_fingerprint,
    data_fingerprint,
)
from fedjax_algos.engine.sharded_data import DeviceData, data_shapes
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.runs.divergence import (
    count_excluded,
    has_diverged,
    params_finite,
    training_mean,
    warn_of_divergence,
)
from fedjax_algos.runs.inputs import check_data, check_host_rows, check_loop
from fedjax_algos.runs.saving.arrays import fill, fill_state, state_arrays
from fedjax_algos.runs.saving.checkpoints import Checkpoints, Content, RunSaver
from fedjax_algos.runs.windows import draw_windows, flop_counter
from fedjax_algos.schedules import LocalWork, Sampler, Synchronous, uniform
from fedjax_algos.schedules.synchronous import Position

COMPARED_ROUNDS = 20  # whose dispatches identify samplers and local work in a checkpoint


def simulate(
    engine: Engine,
    data: DeviceData,
    *,
    cohort_size: int,
    rounds: int,
    seed: int = 0,
    sampler: Sampler = uniform,
    work: LocalWork | None = None,
    test: Batch | None = None,
    eval_every: int = 10,
    params: Params | Model | None = None,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    evaluate: Callable | None = None,
    checkpoints: Checkpoints | str | Path | None = None,
) -> tuple[FederatedState, list[Row]]:
    """Runs a synchronous simulation.

    The rounds between two evaluations are one compiled call. While the devices compute it, the
    dispatches of the next rounds are drawn, except on a CPU with several devices.

    Args:
      engine: a compiled algorithm. Other seeds on the same engine compile nothing.
      data: the clients' examples, as `federate` or `engine.put_data` returns them.
      cohort_size: M, the number of clients in a round.
      rounds: the number of rounds, at least 1.
      seed: of the model, the cohorts and the clients' batches.
      sampler: draws the cohorts; the default draws uniformly without replacement.
      work: how much of its local work each client does, such as `schedules.partial()`; None: all.
      test: the examples to evaluate on (a tree like `data.examples`), or None for no evaluation.
      eval_every: rounds between evaluations, at least 1. The start and the end are always
        evaluated.
      params: replace the problem's own initialisation: params, or a `Model`.
      on_evaluation: called with each row as it is measured, and first with those of a checkpoint.
      evaluate: of `make_evaluate`, so that engines share its compilation.
      checkpoints: a folder, or `Checkpoints`: the run is saved there every five minutes and at its
        end. If the folder holds a checkpoint of this run, it goes on from there, bit for bit.

    Returns:
      The last state, and one row for each evaluation: `round`; `train_loss`, the mean over all
      examples of all local steps since the last row; `test_loss` and the problem's metrics as
      `test_...`; `excluded_updates`, which were not finite and were left out since the start (see
      `make_engine`); `download_bytes`, `upload_bytes` and `flops` of all clients since the start
      (see `count_flops`); `wall_seconds` since the start, compilation included. `flops` is NaN,
      with a warning, for an algorithm whose operations cannot be counted. If the test loss or the
      params of the global model are not finite, the run stops with that row and a warning, unless
      the engine has non_finite="keep".

    Raises:
      TypeError: for an object of another type.
      ValueError: for numbers out of range, what does not fit into memory, labels, test examples or
        params that do not fit the problem, a client that is twice in a cohort while clients keep
        state, or checkpoints of another run.
      NonFiniteUpdateError: for an update that is not finite if the engine has non_finite="error".
      Interrupted: at an evaluation, if a signal has arrived in `finish_calls`.
    """
    check_kind("engine", engine, Engine, "give make_engine(algorithm)")
    check_loop(rounds, eval_every, on_evaluation)
    check_data(engine.algorithm.problem, data, test)
    counts, data = data.counts(), engine.put_data(data)
    draw = partial(
        Synchronous,
        counts,
        engine.algorithm.local,
        cohort_size=cohort_size,
        seed=seed,
        sampler=sampler,
        work=work,
    )
    schedule = draw()
    population = Population(data.num_clients, cohort_size, int(counts.sum()))
    state = engine.init(seed, population, params)
    check_host_rows(state, min(data.num_clients, rounds * cohort_size))
    evaluate_model = make_evaluate_model(engine.algorithm.problem, test, evaluate)
    model = array_fingerprint(one_copy(state.server.params)) if checkpoints else ""
    identity = partial(_identity, engine, state, model, data, draw, rounds, eval_every)
    saver = RunSaver(checkpoints, identity)
    done, flops, seconds, history = 0, 0.0, 0.0, []
    if saved := saver.restore():
        state = fill_state(state, saved.arrays)
        schedule.go_to(fill(schedule.position(), saved.arrays, "schedule"))
        done, history = saved.position, saved.facts["rows"]
        flops, seconds = saved.facts["flops"], history[-1]["wall_seconds"]
        for row in history:
            on_evaluation(row)
    start = time.perf_counter() - seconds

    def measure(state, metrics):
        measured = {name: float(training_mean(mean)) for name, mean in metrics.items()}
        dispatched = done * cohort_size
        row = metrics_row(
            done,
            measured | evaluate_model(state),
            excluded_updates=count_excluded(state.excluded),
            download_bytes=dispatched * transfer.download,
            upload_bytes=dispatched * transfer.upload,
            flops=flops,
            wall_seconds=time.perf_counter() - start,
        )
        history.append(row)
        on_evaluation(row)
        return has_diverged(engine.non_finite, row, params_finite(state.server.params))

    count = flop_counter(engine.algorithm, state, data)
    keeping = bool(jax.tree.leaves(state.origin))
    windows = draw_windows(schedule, count, rounds, eval_every, keeping)
    window = next(windows, None)
    if window is not None:  # else the checkpoint was that of the end
        first = jax.tree.map(lambda leaf: leaf[0], window.dispatches)
        transfer = engine.transfer(state, data, first)
    diverged = saved.facts["diverged"] if saved else measure(state, {})
    while window is not None and not diverged:
        position = window.position
        state, metrics = engine.rounds(state, data, window.dispatches, window.rounds)
        done, flops = done + window.rounds, flops + window.flops
        window = next(windows, None)  # while the devices compute; `measure` waits for them
        diverged = measure(state, metrics)
        facts = {"rows": history, "flops": flops, "diverged": diverged}
        content = partial(_content, state, position, facts)
        saver.after_evaluation(done, content, last=done == rounds or diverged)
    if diverged:
        warn_of_divergence({f"seed {seed}": history})
    return state, history


def _content(state: FederatedState, position: Position, facts: dict[str, Any]) -> Content:
    """What a checkpoint holds."""
    return state_arrays(state) | {"schedule": position}, facts


def _identity(
    engine: Engine,
    state: FederatedState,
    model: str,
    data: DeviceData,
    draw: Callable[[], Synchronous],
    rounds: int,
    eval_every: int,
) -> dict[str, Any]:
    """By what a checkpoint of another run is recognised; of `state` it reads the shapes only."""
    dispatches = draw().dispatches(min(rounds, COMPARED_ROUNDS))
    one = jax.tree.map(lambda leaf: leaf[0, 0], dispatches)
    return {
        "algorithm": algorithm_fingerprint(engine.algorithm, state, data, one),
        "initial_model": model,
        "clients": data.num_clients,
        "examples": describe_tree(data_shapes(data).examples),
        "partition_and_values": data_fingerprint(data),
        "first_rounds": array_fingerprint(dispatches),
        "rounds": rounds,
        "eval_every": eval_every,
        "non_finite": engine.non_finite,
        "layout": str(engine.placement.layout),
        "devices": engine.placement.num_devices,
    }


def make_evaluate_model(
    problem: Problem, test: Batch | None, evaluate: Callable | None
) -> Callable[[FederatedState], dict[str, float]]:
    """Builds `state -> {"test_loss": ..., ...}`, the columns of a state's evaluation.

    Args:
      problem: what is learned.
      test: the examples to evaluate on; None: there are no such columns.
      evaluate: of `make_evaluate`, or None to make one.
    """
    if evaluate is not None:
        check_callable("evaluate", evaluate, "give make_evaluate(problem)")
    if test is None:
        return lambda state: {}
    compiled, examples = evaluate or make_evaluate(problem), jax.device_put(test)

    def evaluate_model(state: FederatedState) -> dict[str, float]:
        values = compiled(one_copy(Model(state.server.params, state.statistics)), examples)
        return {f"test_{name}": float(mean.value()) for name, mean in values.items()}

    return evaluate_model
