"""Runs in rounds, in windows that end with an evaluation."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import accelerator_memory
from fedjax_algos.core import Batch, Model, Params, Row
from fedjax_algos.core.checks import check_callable, check_kind, check_not_consumed, check_whole
from fedjax_algos.core.trees import take
from fedjax_algos.engine.checks import StateCheck
from fedjax_algos.engine.engine import Engine
from fedjax_algos.engine.fingerprint import array_fingerprint, data_fingerprint
from fedjax_algos.engine.placed.cohort_data import CohortData
from fedjax_algos.engine.placed.devices import one_copy
from fedjax_algos.engine.placed.processes import largest
from fedjax_algos.engine.placed.sharded_data import RunData
from fedjax_algos.engine.state import FederatedState, place_of
from fedjax_algos.participation import Failures, LocalWork, Sampler, uniform
from fedjax_algos.runs.loops import recorder as recording
from fedjax_algos.runs.loops.checkpoints import Checkpoints, RunSaver, fill, fill_state, open_rows
from fedjax_algos.runs.loops.recorder import Recorder, Stop, follow, measure_state
from fedjax_algos.runs.loops.run import (
    RoundOptions,
    Rounds,
    Window,
    check_data,
    check_room_for_rows,
    draw_windows,
    flop_counter,
    identity_of_rounds,
)


def simulate(
    engine: Engine,
    data: RunData,
    *,
    cohort_size: int,
    rounds: int,
    seed: int = 0,
    sampler: Sampler = uniform,
    work: LocalWork | None = None,
    failures: Failures | None = None,
    test: Batch | None = None,
    eval_every: int = 10,
    params: Params | Model | None = None,
    on_evaluation: Callable[..., bool | None] = lambda row: None,
    evaluate: Callable | None = None,
    measure: Callable[[FederatedState], Mapping[str, float]] = lambda state: {},
    checkpoints: Checkpoints | str | Path | None = None,
    state: FederatedState | None = None,
    start_round: int | None = None,
    progress: bool = False,
) -> tuple[FederatedState, list[Row]]:
    """Runs a synchronous simulation.

    The rounds between two evaluations are one compiled call. A run can be cut in two:
    `simulate(..., rounds=10)`, and then the same call with the returned `state` and
    `start_round=10`, give the states and rows of `simulate(..., rounds=20)`, bit for bit.
    `iterate_rounds` is the same run as an iterator.

    Args:
      engine: a compiled algorithm. Other seeds on the same engine compile nothing.
      data: the clients' examples, as `federate`, `engine.put_data` or `open_federated` returns
        them. Examples in files are read cohort by cohort, one round in a call, with equal results.
      cohort_size: M, the number of clients in a round.
      rounds: the number of rounds that this call runs, at least 1.
      seed: the seed of the model, the cohorts and the clients' batches.
      sampler: draws the cohorts; the default draws uniformly without replacement.
      work: the part of its local work that each client does, such as `participation.partial()`;
        None is all.
      failures: draws clients that train but do not answer, such as
        `participation.independent(probability=0.3)`; None draws none. Their updates and new rows
        are lost, and a round without answers leaves the model as it is.
      test: the examples to evaluate on (a tree like `data.examples`), or None for no evaluation.
      eval_every: rounds between evaluations, at least 1; the start and the end are also evaluated.
      params: params, or a `Model`, in place of the problem's own initialisation.
      on_evaluation: called with each row as it is measured, after a checkpoint's rows. If it has a
        parameter named `state`, it also gets the state, or None for a checkpoint's earlier rows.
        The next rounds CONSUME the state, so copy what you keep:
        `jax.tree.map(jnp.copy, state.server.params)`. If it returns True, the run stops.
      evaluate: the result of `make_evaluate`, so that engines share its compilation.
      measure: computes further columns from the state at each evaluation; must not consume it.
      checkpoints: a folder, or `Checkpoints`: the run is saved there every five minutes and at its
        end. A checkpoint of this run in the folder is resumed, bit for bit. `rounds` may then
        differ, if the checkpoint is not beyond them and was made at an evaluation of both runs.
      state: the state that an earlier run returned, to go on from there. It is CONSUMED.
      start_round: the number of rounds that `state` has seen; required with `state`. The cohorts
        continue after these rounds, and the rows count them.
      progress: whether to show a bar, in a terminal or a notebook, or a line for each evaluation in
        a log.

    Returns:
      The last state, and one row for each evaluation. `pandas.DataFrame(rows)` makes them a table
      and `analysis.pictures.plot_metric(rows)` a figure. Columns: `round`; `train_loss`, the mean
      over all examples of all local steps since the last row; `test_loss` and the problem's metrics
      as `test_...`; `excluded_updates`, non-finite updates left out since the start (see
      `make_engine`); `lost`, updates that did not arrive since the start, if there are `failures`;
      `download_bytes`, `upload_bytes` and `flops` of all clients since the start (see
      `count_flops`), where a client that fails downloads and computes, but does not upload;
      `wall_seconds` since the start, including compilation. `flops` is NaN, with a warning, for an
      algorithm whose operations cannot be counted. If the test loss or the params of the global
      model are not finite, the run stops with that row and a warning, unless the engine has
      non_finite="keep".

    Raises:
      TypeError: for an object of a wrong type.
      ValueError: for numbers out of range, arguments that do not fit into memory or to the problem,
        a client that is twice in a cohort while clients keep state, a state without its start_round
        or of another algorithm or seed, or checkpoints of another run.
      NonFiniteUpdateError: for an update that is not finite if the engine has non_finite="error".
      Interrupted: at an evaluation, if a signal has arrived in `finish_calls`.
    """
    report = _reporter(on_evaluation)
    loop = Rounds(cohort_size, rounds, sampler, work, failures, test, eval_every, params)
    options = evaluate, state, start_round, checkpoints, measure
    run = SynchronousRun(engine, data, loop, seed, *options)
    with recording.show_progress(progress, run.end, "rounds") as show:

        def report_row(row: Row, latest: FederatedState | None) -> bool:
            show(row["round"], row)
            ends = report(row, latest)
            found = "on_evaluation ended a private run, whose epsilon assumes a fixed end"
            require(not (ends and run.accountant), f"{found}; give fewer rounds")
            return ends

        recorder = run.run(report_row)
    recorder.warn()
    return run.state, recorder.histories[0]


def iterate_rounds(
    engine: Engine,
    data: RunData,
    *,
    seed: int = 0,
    evaluate: Callable | None = None,
    state: FederatedState | None = None,
    start_round: int | None = None,
    **rounds: Unpack[RoundOptions],
) -> Iterator[tuple[FederatedState, Row]]:
    """Yields the evaluations of `simulate`, as in `for state, row in iterate_rounds(...)`.

    The first pair is from the start. Each further one runs `eval_every` rounds, which CONSUME the
    state before. Copy it to keep it, with `jax.tree.map(jnp.copy, state)`.

    Args:
      engine, data, seed, evaluate, state, start_round: as in `simulate`, with the same errors.
      **rounds: `cohort_size`, `rounds`, `sampler`, `work`, `failures`, `test`, `params`, and
        `eval_every`, which is 1 if it is not given.

    Returns:
      An iterator over the states and the rows of the evaluations.
    """
    rounds.setdefault("eval_every", 1)
    run = SynchronousRun(engine, data, Rounds(**rounds), seed, evaluate, state, start_round)
    recorder = Recorder([f"seed {seed}"], engine.non_finite, lambda number, row, state: None)

    def evaluations() -> Iterator[tuple[FederatedState, Row]]:
        for stop in follow(run.stops(recorder), recorder, run.saver):
            yield stop.state, recorder.histories[0][-1]
        recorder.warn()

    return evaluations()


class SynchronousRun:
    """A run in rounds; `state`, `position`, `done` rounds and `flops` are of the last stop."""

    def __init__(
        self,
        engine: Engine,
        data: RunData,
        loop: Rounds,
        seed: int,
        evaluate: Callable | None,
        state: FederatedState | None = None,
        start_round: int | None = None,
        checkpoints: Checkpoints | str | Path | None = None,
        measure: Callable[[FederatedState], Mapping[str, float]] = lambda state: {},
    ):
        check_kind("engine", engine, Engine, "give make_engine(algorithm)")
        loop.check()
        _check_start(state, start_round, loop.params, seed)
        algorithm, problem = engine.algorithm, engine.algorithm.problem
        check_data(problem, data, loop.test)
        self.engine, self.loop, self.seed, self.data = engine, loop, seed, engine.put_data(data)
        self.draw = partial(loop.cohorts, data, algorithm, algorithm.local, seed)
        self.cohorts, self.accountant = self.draw(), loop.accountant(data, algorithm)
        if state is None:
            state = engine.init(seed, loop.population(data), loop.params)
        else:
            StateCheck(algorithm, place_of(state.clients)).check_state(state, self.data)
        self.state, self.start_round = state, start_round or 0
        self.done, self.end = self.start_round, self.start_round + loop.rounds
        check_room_for_rows(state, min(data.num_clients, self.end * loop.cohort_size))
        self.evaluate_model = recording.make_evaluate_model(problem, loop.test, evaluate, measure)
        self.count, self.flops = flop_counter(algorithm, state, self.data), 0.0
        if accelerator_memory() is not None:  # the layout is part of a checkpoint's identity
            engine.choose_layout(state, self.data, take(self.draw().dispatches(1), 0))
        if isinstance(self.data, CohortData):
            drawn, every = self.draw(), loop.eval_every  # a copy of the run's cohorts
            windows = (min(every, self.end - done) for done in range(0, self.end, every))
            self.data.reserve(ids for number in windows for ids in drawn.dispatches(number).client)
        if self.start_round:  # redraws the earlier rounds
            self.flops = sum(window.flops for window in self._windows(self.start_round))
        # the first call consumes the params
        model = "" if checkpoints is None else array_fingerprint(one_copy(state.server.params))
        self.saver = RunSaver(checkpoints, partial(self._identity, state, model))

    def _windows(self, end: int) -> Iterator[Window]:
        return draw_windows(self.cohorts, self.count, end, self.loop.eval_every, self.state)

    def run(self, report: Callable[[Row, FederatedState | None], bool]) -> Recorder:
        """Makes the rounds, and reports each evaluation with its state."""
        names, non_finite = [f"seed {self.seed}"], self.engine.non_finite
        recorder = Recorder(names, non_finite, lambda _, row, state: report(row, state))
        for _ in follow(self.stops(recorder), recorder, self.saver):
            pass
        return recorder

    def stops(self, recorder: Recorder) -> Iterator[Stop]:
        """Yields the evaluations from the start, or from the checkpoint."""
        saved = self.saver.restore(partial(open_rows, self.state))
        if saved is not None:
            self.state, self.done = fill_state(self.state, saved), saved.position
            like = {"cohorts": self.cohorts.position().after(self.done), "flops": np.float64()}
            filled = fill(like, saved.arrays)
            self.cohorts.go_to(filled["cohorts"])
            self.flops = float(filled["flops"])
            recorder.restore(saved, self.state)
        self.position, windows = self.cohorts.position(), self._windows(self.end)
        window = None if recorder.ended else next(windows, None)
        if window is None:  # the checkpoint was made at the end
            return
        transfer = self.engine.transfer(self.state, self.data, take(window.dispatches, 0))
        if saved is None:
            yield self._stop({}, transfer, arrays=None)
        while window is not None:
            rounds, dispatches, flops, self.position = window
            self.state, metrics = self.engine.rounds(self.state, self.data, dispatches, rounds)
            self.done, self.flops = self.done + rounds, self.flops + flops
            window = next(windows, None)  # while the devices compute; the row waits for them
            if window is not None and isinstance(self.data, CohortData):
                self.data.read_ahead(np.asarray(window.dispatches.client[0]))
            yield self._stop(metrics, transfer, self._arrays)

    def _stop(self, metrics, transfer, arrays):
        """Returns the evaluation of the state."""
        reports = recording.reported(self.engine.algorithm, self.state.server)
        counts = self.done, self.position, transfer, self.flops, reports.get("uploads")
        measure = partial(measure_state, self.state, metrics, reports, self.evaluate_model)
        due = [(0, recording.costs_of_rounds(*counts, self.accountant))]
        return Stop(self.done, due, measure, self.state, self.done == self.end, arrays)

    def _arrays(self) -> dict[str, Any]:
        """Returns the arrays of a checkpoint."""
        return self.state._asdict() | {"cohorts": self.position, "flops": np.float64(self.flops)}

    def _identity(self, state: FederatedState, model: str) -> dict[str, Any]:
        """Returns what a checkpoint must match to be resumed; reads only the shapes of `state`."""
        engine, mesh = self.engine, self.engine.placement.mesh
        started = {"start_round": self.start_round} if self.start_round else {}
        return started | identity_of_rounds(
            engine.algorithm,
            state,
            self.data,
            self.loop,
            [self.draw()],
            self.end,
            initial_model=model,
            partition_and_values=data_fingerprint(self.data),
            non_finite=engine.non_finite,
            client_state=place_of(self.state.clients),
            layout=str(engine.layout),
            devices=1 if mesh is None else len(mesh.devices),
        )


def _reporter(on_evaluation: Any) -> Callable[[Row, FederatedState | None], bool]:
    """Wraps a user's `on_evaluation`, with or without `state`; returns True to stop the run."""
    check_callable("on_evaluation", on_evaluation, fix := "give a function of a row")
    keywords: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # some C functions have no signature
        if "state" in inspect.signature(on_evaluation).parameters:
            keywords["state"] = None
    check_callable("on_evaluation", on_evaluation, fix, "row", **keywords)

    def report(row: Row, state: FederatedState | None) -> bool:
        result = on_evaluation(row, **dict.fromkeys(keywords, state))
        return bool(largest(isinstance(result, bool | np.bool_) and bool(result)))

    return report


def _check_start(state, start_round, params, seed):
    """Raises an error for an earlier run's state that does not fit the other arguments."""
    if start_round is not None:
        check_whole("start_round", start_round, 0)
    if state is None and not start_round:
        return
    fix = "give what engine.init, simulate or the last round returned, and its start_round"
    check_kind("state", state, FederatedState, fix)
    check_not_consumed(state)
    state_seed = int(one_copy(state.seed))
    if start_round is None or seed != state_seed or params is not None:
        found = f"start_round={start_round}, seed={seed} and {'no ' * (params is None)}params"
        fix = f"the rounds that it has seen, 0 for one of engine.init, its seed={state_seed}"
        raise ValueError(f"a state is given with {found}; give {fix} and no params")
