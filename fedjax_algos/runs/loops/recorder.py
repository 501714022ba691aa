"""Evaluates and records runs: every loop yields `Stop`s, and this module handles them.

`follow` iterates over the stops, and a `Recorder` makes the rows that are due there.
"""

import contextlib
import inspect
import math
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.analysis.evaluation import make_evaluate
from fedjax_algos.analysis.rows import gini, metrics_row
from fedjax_algos.core import Algorithm, Batch, Metrics, Problem, Row, ServerState
from fedjax_algos.core.checks import check_callable, check_kind
from fedjax_algos.core.options import NonFinite
from fedjax_algos.engine.exchange import Transfer
from fedjax_algos.engine.non_finite import all_finite
from fedjax_algos.engine.placed.devices import one_copy
from fedjax_algos.engine.placed.processes import fetch
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.participation.cohorts import Position
from fedjax_algos.runs.loops.checkpoints import RunSaver, Saved
from fedjax_algos.wrappers import Accountant

WHAT_HELPS = (
    "a smaller client_learning_rate or server_learning_rate, gradients that are clipped "
    "(clip_norm), or fewer local steps"
)
_SHOWN = ("test_accuracy", "test_loss", "train_loss")  # a bar shows the first that was measured
_MAX_NAMED = 5  # runs in a warning
_all_finite = jax.jit(all_finite)
_COLUMNS = {"method", "seed", "round", "train_loss", *inspect.signature(metrics_row).parameters}


class DivergenceWarning(UserWarning):
    """Non-finite updates were left out, or the model is not finite and the run has stopped."""


# takes a run's number, its row, and the state of the stop (None for earlier rows of a checkpoint);
# if it returns True, all runs end
Report = Callable[[int, Row, Any], bool | None]
# one run's metrics, its number of excluded updates or None, and whether all its params are finite
Measured = tuple[dict[str, float], int | None, Any]


class Stop(NamedTuple):
    """A point between compiled calls where evaluations of some runs are due."""

    position: int  # completed rounds or server steps
    due: Sequence[tuple[int, dict[str, Any]]]  # numbers of runs, and arguments of `metrics_row`
    measure: Callable[[int], Measured]  # not called for a run that has diverged
    state: Any  # of all runs; the next stop consumes it
    last: bool = False
    arrays: Callable[[], Any] | None = None  # of a checkpoint; None if it is not worth one


class Recorder:
    """Makes the rows of runs that are computed together, and reports each as it is measured."""

    def __init__(
        self, names: Sequence[str], non_finite: NonFinite, report: Report, started: float = math.inf
    ):
        self.names, self.non_finite, self.report = names, non_finite, report
        self.started = min(started, time.perf_counter())
        self.histories: list[list[Row]] = [[] for _ in names]
        self.diverged: set[int] = set()  # numbers of runs whose rows end
        self.stopped: bool | None = False

    def add(self, stop: Stop) -> None:
        """Adds rows to the runs that are due and have not diverged."""
        for run, counted in stop.due:
            if run in self.diverged:
                continue
            metrics, excluded, finite = stop.measure(run)
            costs = counted | {"wall_seconds": time.perf_counter() - self.started}
            row = metrics_row(metrics=metrics, excluded_updates=excluded, **costs)
            self.histories[run].append(row)
            finite = finite and math.isfinite(row.get("test_loss", 0))
            if self.non_finite != "keep" and not finite:
                self.diverged.add(run)
            self.stopped = self.report(run, row, stop.state)

    def restore(self, saved: Saved, state: Any) -> None:
        """Restores the runs from a checkpoint, and reports its rows."""
        self.histories, self.diverged = saved.facts["rows"], set(saved.facts["diverged"])
        seconds = max(rows[-1]["wall_seconds"] for rows in self.histories)
        self.started = min(self.started, time.perf_counter() - seconds)
        for number, rows in enumerate(self.histories):
            for row in rows:
                self.stopped = self.report(number, row, state if row is rows[-1] else None)

    @property
    def ended(self) -> bool:
        """True if no run continues, although there may be further stops."""
        return bool(self.stopped) or len(self.diverged) == len(self.histories)

    def warn(self) -> None:
        """Warns of runs with non-finite updates or models."""
        named = zip(self.names, self.histories, strict=True)
        warn_of_non_finite(dict(named), {self.names[number] for number in self.diverged})


def follow(stops: Iterator[Stop], recorder: Recorder, saver: RunSaver) -> Iterator[Stop]:
    """Records and saves each stop of some runs; yields it before it is saved."""
    for stop in stops:
        recorder.add(stop)
        yield stop
        facts = {"rows": recorder.histories, "diverged": sorted(recorder.diverged)}
        saver.after_evaluation(stop.position, stop.arrays, facts, stop.last or recorder.ended)
        if recorder.ended:
            return


def make_evaluate_model(
    problem: Problem,
    test: Batch | None,
    evaluate: Callable | None,
    measure: Callable[[FederatedState], Mapping[str, float]] = lambda state: {},
) -> Callable[[FederatedState], dict[str, float]]:
    """Builds `state -> {"test_loss": ..., ...}`, with the columns of a user's `measure(state)`."""
    if evaluate is not None:
        check_callable("evaluate", evaluate, "give make_evaluate(problem)", "model", "examples")
    check_callable("measure", measure, "give a function (state) of names and numbers", "state")
    compiled, examples = evaluate or make_evaluate(problem), jax.device_put(test)

    def evaluate_model(state: FederatedState) -> dict[str, float]:
        values = {} if test is None else jax.device_get(compiled(one_copy(state.model), examples))
        tested = {f"test_{name}": float(mean.value()) for name, mean in values.items()}
        more = measure(state)
        check_kind("what measure returned", more, Mapping, "return numbers by name")
        return joined(tested, more)

    return evaluate_model


def measure_state(
    state: FederatedState,
    metrics: Metrics,
    reports: Mapping[str, np.ndarray],
    evaluate_model: Callable,
    run: int = 0,
) -> Measured:
    """Measures the state of one run; `metrics` have leaves [...] or [runs, ...]."""
    means = jax.device_get(metrics)
    trained = {name: float(np.ravel(mean.value())[run]) for name, mean in means.items()}
    reported = {name: float(value) for name, value in reports.items()}
    finite = _all_finite(one_copy(state.server.params))
    return joined(trained, reported, evaluate_model(state)), count_excluded(state.excluded), finite


def joined(columns: Mapping[str, float], *more: Mapping[str, float]) -> dict[str, float]:
    """Adds the columns of a user's functions to measured ones; ValueError for a name twice."""
    row = dict(columns)
    for part in more:
        if taken := sorted(part.keys() & (row.keys() | _COLUMNS)):
            raise ValueError(f"measure or report returned a second {taken[0]!r} column; rename it")
        row |= part
    return row


def costs_of_rounds(
    rounds: int,
    position: Position,
    transfer: Transfer,
    flops: float,
    uploads: Any = None,
    accountant: Accountant | None = None,
) -> dict[str, Any]:
    """Returns the counted columns after a number of rounds.

    `flops` counts all their dispatches. `uploads` is the number of updates sent; None if every
    client that answered sent one.
    """
    dispatched = int(position.dispatched.sum(dtype=np.int64))
    lost, chosen = (
        None if isinstance(number, tuple) else int(number)
        for number in (position.lost, position.chosen)
    )
    sent = chosen if uploads is None else int(uploads)
    return {
        "round_number": rounds,
        "download_bytes": transfer.downloads(position.gaps, chosen),
        "upload_bytes": transfer.uploads(dispatched - (lost or 0), sent),
        "flops": flops,
        "lost": lost,
        "participation_gini": None if chosen is not None else gini(position.dispatched),
        "epsilon": accountant
        and accountant.after(rounds, position.dispatched, position.steps_done),
    }


def reported(
    algorithm: Algorithm, server: ServerState, *, batched: bool = False
) -> dict[str, np.ndarray]:
    """Returns an algorithm's reports by column; `batched` servers have leaves [runs, ...]."""
    if algorithm.report is None:
        return {}
    report = jax.vmap(algorithm.report) if batched else algorithm.report
    return fetch(report(server))


def count_excluded(excluded: Any) -> int | None:
    """Returns the column `excluded_updates`; `excluded` is an `Excluded`, or () if all are kept."""
    return None if excluded == () else int(excluded.number)


def describe_divergence(rows: Sequence[Row]) -> str:
    """Describes where a run has stopped: its round, and the last finite row."""
    *before, last = rows
    loss = f" (test_loss={last['test_loss']:g})" if "test_loss" in last else ""
    finite = f"the last finite row is from round {before[-1]['round']:g}" if before else ""
    return f"not finite at round {last['round']:g}{loss}; {finite or 'no row is finite'}"


def describe_excluded(number: int) -> str:
    """Describes the number of updates that were left out."""
    what, was = ("update of a client", "was") if number == 1 else ("updates of clients", "were")
    return f"{number:g} {what} {was} not finite and {was} left out"


def warn_of_non_finite(runs: Mapping[str, Sequence[Row]], diverged: Collection[str]) -> None:
    """Warns of runs that have stopped, and of updates left out; `runs` has the rows by name."""
    texts = []
    for name, rows in runs.items():
        if name in diverged:
            texts.append(f"{name}: {describe_divergence(rows)}")
        elif number := rows[-1].get("excluded_updates"):
            texts.append(f"{name}: {describe_excluded(number)}")
    if not texts:
        return
    if (more := len(texts) - _MAX_NAMED) > 0:
        texts[_MAX_NAMED:] = [f"and {more} more"]
    rule = "a run stops when its model is not finite. " if diverged else ""
    message = f"{rule}{'; '.join(texts)}. What usually helps is {WHAT_HELPS}"
    warnings.warn(message, DivergenceWarning, stacklevel=4)


@contextlib.contextmanager
def show_progress(shown: bool, total: float, unit: str) -> Iterator[Callable[[float, Row], None]]:
    """Yields a function that shows progress and a row: in a bar, or in a line of a log."""
    check_kind("progress", shown, bool, "give True or False")
    if not shown:
        yield lambda done, row: None
        return
    from rich import progress as bars
    from rich.console import Console

    console = Console(stderr=True)
    measured = bars.TextColumn(f"{unit}, {{task.fields[measured]}}", markup=False)
    left = bars.TextColumn("left:"), bars.TimeRemainingColumn()
    columns = bars.BarColumn(), bars.MofNCompleteColumn(), measured, bars.TimeElapsedColumn(), *left
    progress = bars.Progress(*columns, console=console)
    task, handle = progress.add_task("", total=total, measured=""), None
    if console.is_jupyter:
        from IPython.display import display

        handle = display(progress, display_id=True)

    def show(done: float, row: Row) -> None:
        name = next((name for name in _SHOWN if name in row), None)
        measured = f"{name.replace('_', ' ')} {row[name]:.4g}" if name else ""
        progress.update(task, completed=done, measured=measured)
        if handle is not None:
            handle.update(progress)
        elif not console.is_terminal:
            line = f"{done:g} of {total:g} {unit}, {measured}".removesuffix(", ")
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    with progress if console.is_terminal else contextlib.nullcontext():
        yield show
