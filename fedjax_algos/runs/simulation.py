"""Whole synchronous runs: the evaluations of `Rounds` with a callback and with checkpoints."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_algos.core import Batch, Model, Params, Row
from fedjax_algos.core.checks import check_callable
from fedjax_algos.core.representation import describe_tree
from fedjax_algos.engine.engine import Engine
from fedjax_algos.engine.fingerprint import (
    algorithm_fingerprint,
    array_fingerprint,
    data_fingerprint,
    examples_fingerprint,
)
from fedjax_algos.engine.placed.devices import one_copy
from fedjax_algos.engine.placed.sharded_data import RunData, data_shapes
from fedjax_algos.engine.state import FederatedState, place_of
from fedjax_algos.runs.progress import show_progress
from fedjax_algos.runs.rounds import Rounds
from fedjax_algos.runs.saving.arrays import fill, fill_state, open_rows, saved_arrays
from fedjax_algos.runs.saving.checkpoints import Checkpoints, Content, RunSaver, Saved
from fedjax_algos.runs.saving.interruption import check_interruption
from fedjax_algos.runs.windows import identify_rounds
from fedjax_algos.schedules import LocalWork, Sampler, uniform


def simulate(
    engine: Engine,
    data: RunData,
    *,
    cohort_size: int,
    rounds: int,
    seed: int = 0,
    sampler: Sampler = uniform,
    work: LocalWork | None = None,
    test: Batch | None = None,
    eval_every: int = 10,
    params: Params | Model | None = None,
    on_evaluation: Callable[..., bool | None] = lambda row: None,
    evaluate: Callable | None = None,
    checkpoints: Checkpoints | str | Path | None = None,
    state: FederatedState | None = None,
    start_round: int | None = None,
    progress: bool = False,
) -> tuple[FederatedState, list[Row]]:
    """Runs a synchronous simulation.

    The rounds between two evaluations are one compiled call. While the devices compute it, the
    dispatches of the next rounds are drawn, except on a CPU with several devices.

    A run can be cut in two: `simulate(..., rounds=10)`, and then the same with the `state` that it
    returned and `start_round=10`, have the states and the rows of `simulate(..., rounds=20)`, bit
    for bit. `iterate_rounds` is the same run as an iterator.

    Args:
      engine: a compiled algorithm. Other seeds on the same engine compile nothing.
      data: the clients' examples, as `federate`, `engine.put_data` or `open_federated` returns
        them. Those in files are read cohort by cohort, with the same results, one round in a call.
      cohort_size: M, the number of clients in a round.
      rounds: the number of rounds that this call runs, at least 1.
      seed: of the model, the cohorts and the clients' batches.
      sampler: draws the cohorts; the default draws uniformly without replacement.
      work: how much of its local work each client does, such as `schedules.partial()`; None: all.
      test: the examples to evaluate on (a tree like `data.examples`), or None for no evaluation.
      eval_every: rounds between evaluations, at least 1. The start and the end are always
        evaluated.
      params: replace the problem's own initialisation: params, or a `Model`.
      on_evaluation: called with each row as it is measured, and first with those of a checkpoint.
        If it has a parameter named `state`, it also gets the state, as `state=...`; the next rounds
        CONSUME it, so copy what you keep: `jax.tree.map(jnp.copy, state.server.params)`. It is None
        for the rows of a checkpoint before the last one. If it returns True, the run stops.
      evaluate: of `make_evaluate`, so that engines share its compilation.
      checkpoints: a folder, or `Checkpoints`: the run is saved there every five minutes and at its
        end. If the folder holds a checkpoint of this run, it goes on from there, bit for bit; also
        with other `rounds`, if the checkpoint is not after them and was made at an evaluation that
        both runs have.
      state: what an earlier run returned, to go on from there, in place of an initial state. It is
        CONSUMED, as by `engine.round`.
      start_round: the number of rounds that `state` has seen, which must be given with it: the
        schedule goes on after them. The rows count them too, as rounds of this run.
      progress: whether a bar is shown, in a terminal or a notebook; in a log each evaluation is a
        line. It moves at the evaluations.

    Returns:
      The last state, and one row for each evaluation, which `pandas.DataFrame(rows)` makes a table
      and `analysis.pictures.plot_metric(rows)` a figure: `round`; `train_loss`, the mean over all
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
        state, a state without its start_round or of another algorithm or seed, or checkpoints of
        another run.
      NonFiniteUpdateError: for an update that is not finite if the engine has non_finite="error".
      Interrupted: at an evaluation, if a signal has arrived in `finish_calls`.
    """
    report = _reporter(on_evaluation)
    run = Rounds(
        engine,
        data,
        cohort_size=cohort_size,
        rounds=rounds,
        seed=seed,
        sampler=sampler,
        work=work,
        test=test,
        eval_every=eval_every,
        params=params,
        evaluate=evaluate,
        state=state,
        start_round=start_round,
    )
    model = array_fingerprint(one_copy(run.state.server.params)) if checkpoints else ""
    saver = RunSaver(checkpoints, partial(_identity, run, run.state, model))
    stopped = False
    with show_progress(progress, run.end, "rounds") as show:
        if (saved := saver.restore(partial(open_rows, run.state))) and saver.checkpoints:
            _restore(run, saved, saver.checkpoints)
            for row in run.rows:
                show(row["round"], row)
                stopped = report(row, run.state if row is run.rows[-1] else None)
        for latest, row in () if stopped else run:
            show(row["round"], row)
            stopped = report(row, latest)
            if run.position is None:  # the start, which is made again as quickly as it is read
                check_interruption()
            else:
                last = run.ended or stopped
                saver.after_evaluation(run.done, partial(_content, run, saver), last=last)
            if stopped:
                break
    return run.state, run.rows


def _reporter(on_evaluation: Any) -> Callable[[Row, FederatedState | None], bool]:
    """Calls a user's `on_evaluation` with what it takes; True if it asks the run to stop."""
    check_callable("on_evaluation", on_evaluation, "give a function of a row")
    try:
        parameter = inspect.signature(on_evaluation).parameters.get("state")
    except ValueError:  # some functions of C have no signature
        parameter = None
    takes_state = parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY

    def report(row: Row, state: FederatedState | None) -> bool:
        result = on_evaluation(row, state=state) if takes_state else on_evaluation(row)
        return isinstance(result, bool | np.bool_) and bool(result)

    return report


def _restore(run: Rounds, saved: Saved, checkpoints: Checkpoints) -> None:
    """Puts a run where a checkpoint was made."""
    run.state = fill_state(run.state, saved.arrays, checkpoints.folder)
    run.schedule.go_to(fill(run.schedule.position(), saved.arrays, "schedule"))
    run.done, run.rows = saved.position, saved.facts["rows"]
    run.flops, run.diverged = saved.facts["flops"], saved.facts["diverged"]
    run.started -= run.rows[-1]["wall_seconds"]


def _content(run: Rounds, saver: RunSaver) -> Content:
    """What a checkpoint holds."""
    facts = {"rows": run.rows, "flops": run.flops, "diverged": run.diverged}
    folder = saver.checkpoints.folder if saver.checkpoints else ""  # called only if there are some
    arrays = saved_arrays(run.state, folder, run.done, saver.kept)
    return arrays | {"schedule": run.position}, facts


def _identity(run: Rounds, state: FederatedState, model: str) -> dict[str, Any]:
    """By what a checkpoint of another run is recognised; of `state` it reads the shapes only."""
    engine, data = run.engine, run.data
    one = jax.tree.map(lambda leaf: leaf[0, 0], run.draw().dispatches(1))
    started = {"start_round": run.start_round} if run.start_round else {}
    return started | {
        "algorithm": algorithm_fingerprint(engine.algorithm, state, data, one),
        "initial_model": model,
        "clients": data.num_clients,
        "examples": describe_tree(data_shapes(data).examples),
        "partition_and_values": data_fingerprint(data),
        "test": examples_fingerprint(run.test),
        **identify_rounds([run.draw()], run.end),
        "rounds": run.rounds,
        "eval_every": run.eval_every,
        "non_finite": engine.non_finite,
        "client_state": place_of(run.state.clients),
        "layout": str(engine.placement.layout),
        "devices": engine.placement.num_devices,
    }
