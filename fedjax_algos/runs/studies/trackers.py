"""Trackers: send each run's rows to TensorBoard, Weights & Biases or a custom tracker."""

import contextlib
import hashlib
import itertools
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from fedjax_algos.base.errors import needed
from fedjax_algos.base.files import write_text, writing
from fedjax_algos.core import Row
from fedjax_algos.core.checks import check_callable, check_kind
from fedjax_algos.core.registry import Registry
from fedjax_algos.engine.placed.processes import is_first
from fedjax_algos.runs.studies.experiment import Experiment
from fedjax_algos.runs.studies.results_folder import ResultsFolder

_NO_SCALARS = {"method", "seed", "round"}
_FIX = "run `wandb login`, or give --track wandb:mode=offline"


class TrackedRun(NamedTuple):
    """The facts that a tracker gets about a run before its first row."""

    folder: Path  # of the results; a tracker writes its files only there
    name: str  # of the run in the folder, such as "01-fedavg/seed-0"
    method: str  # its label
    seed: int
    settings: Mapping[str, Any]  # with the method's options, by name


@runtime_checkable
class Tracker(Protocol):
    """Shows or stores the rows of runs as they are measured."""

    def __call__(self, run: TrackedRun) -> AbstractContextManager[Callable[[Row], object]]:
        """Begins a run: returns a context manager, whose value is called with each row.

        A resumed run begins again, with all its rows from the first one. So a tracker removes or
        recognises what it wrote about this run before. The end of the `with` block is the run's
        end, with an exception if the run did not finish.
        """


trackers = Registry[Tracker]("tracker", Tracker)


@contextlib.contextmanager
def track_experiment(
    trackers: Sequence[Tracker],
    folder: ResultsFolder,
    experiment: Experiment,
    on_evaluation: Callable[[Row], None],
) -> Iterator[Callable[[Row], None]]:
    """Yields a function of a row that calls the trackers and `on_evaluation`.

    With several processes, only process 0 has trackers. A run begins at its first row, and ends at
    its last one or at the end of the block.
    """
    settings, trackers = experiment.settings, trackers if is_first() else ()
    shared = {name: value for name, value in vars(settings).items() if name != "seeds"}
    facts = {m.label: shared | m.configuration() | dict(m.swept) for m in experiment.methods}
    axis = "round" if settings.seconds is None else "simulated_seconds"
    length = settings.seconds or settings.rounds
    fix = "decorate with contextmanager a function of a TrackedRun that yields a function of a row"

    def begin(stack: contextlib.ExitStack, track: Tracker, run: TrackedRun) -> Callable:
        context = track(run)
        check_kind("what a tracker returned", context, AbstractContextManager, fix)
        add = stack.enter_context(context)
        check_callable("what a tracker yielded", add, fix, "row")
        return add

    for track in trackers:
        check_callable("tracker", track, fix, "run")
    with contextlib.ExitStack() as all_runs:
        runs: dict[tuple[str, int], tuple[contextlib.ExitStack, list[Callable]]] = {}

        def add_row(row: Row) -> None:
            on_evaluation(row)
            label, seed = row["method"], row["seed"]
            if (label, seed) not in runs:
                name = f"{folder.names[label]}/seed-{seed}"
                run = TrackedRun(folder.path, name, label, seed, facts[label])
                stack = all_runs.enter_context(contextlib.ExitStack())
                runs[label, seed] = stack, [begin(stack, track, run) for track in trackers]
            stack, adders = runs[label, seed]
            for add in adders:
                add(dict(row))  # a copy, because the tracker may change it
            if row[axis] >= length:
                stack.close()

        yield add_row


@trackers.register
def tensorboard() -> Tracker:
    """TensorBoard's event files, in the folder `tensorboard` of the results.

    The file of a run is in `tensorboard/METHOD/seed-N`. Each column of the rows is a scalar, with
    the round or server step as its step and `wall_seconds` as its relative time. The settings are
    hyper-parameters. A resumed run replaces its file by one with all its rows.

    Raises:
      ValueError: if tensorboardX is not installed.
    """
    needed("tensorboardX", "track='tensorboard'")

    @contextlib.contextmanager
    def track(run: TrackedRun) -> Iterator[Callable[[Row], None]]:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import hparams

        folder = run.folder / "tensorboard" / run.name
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for earlier in folder.glob("events.out.tfevents.*"):
                earlier.unlink()
            file = EventsWriter(str(folder / "events"))  # without a thread, which would lose errors
        began, at_end = time.time(), list[Summary]()

        def write(*summaries: Summary, step: int = 0, seconds: float = 0.0) -> None:
            with writing(folder):
                for each in summaries:
                    file.write_event(Event(summary=each, step=step, wall_time=began + seconds))
                file.flush()

        def add_row(row: Row) -> None:
            values = {name: value for name, value in row.items() if name not in _NO_SCALARS}
            if not at_end:  # the first row says what is measured
                measured = dict.fromkeys(name for name in values if name.startswith("test_"))
                experiment, start, end = hparams(dict(run.settings), measured)
                write(experiment, start)
                at_end.append(end)
            scalars = [Summary.Value(tag=name, simple_value=v) for name, v in values.items()]
            seconds = row.get("wall_seconds", time.time() - began)
            write(Summary(value=scalars), step=row["round"], seconds=seconds)

        try:
            yield add_row
            write(*at_end, seconds=time.time() - began)  # marks the run as ended
        finally:
            with writing(folder):
                file.close()

    return track


@trackers.register
def wandb(
    *,
    mode: Literal["online", "offline", "disabled"] | None = None,
    project: str | None = None,
    entity: str | None = None,
) -> Tracker:
    """Weights & Biases; its files are in the folder `wandb` of the results.

    Each run is a run there, in the group of its method, with the settings as its configuration and
    charts over `round`. A resumed run keeps its id. Offline, a new folder with all its rows
    replaces the old one; online, all rows are sent again, each with its number as the step.

    Args:
      mode: "offline" writes files for a later `wandb sync`. None takes WANDB_MODE, else "online".
      project: its name. None takes WANDB_PROJECT, else "fedjax_algos".
      entity: a user or team. None takes the account's own.

    Raises:
      ValueError: if wandb is not installed, or for the mode "online" without a login.
    """
    package = needed("wandb", "track='wandb'")
    mode = mode or os.environ.get("WANDB_MODE")  # type: ignore[assignment]
    if mode in (None, "online"):
        with _explained(package):
            package.login()
    project = project or os.environ.get("WANDB_PROJECT") or "fedjax_algos"

    @contextlib.contextmanager
    def track(run: TrackedRun) -> Iterator[Callable[[Row], None]]:
        folder = run.folder / "wandb"
        identity = _identity(folder, run.name)
        os.environ.setdefault("WANDB_CACHE_DIR", str(folder / "cache"))  # for the package's log
        if mode == "offline":
            for earlier in folder.glob(f"offline-run-*-{identity}"):
                shutil.rmtree(earlier, ignore_errors=True)
        with _explained(package):
            tracked = package.init(
                mode=mode,
                project=project,
                entity=entity,
                dir=run.folder,
                id=identity,
                resume=None if mode == "offline" else "allow",
                reinit="create_new",  # runs of a sweep are computed together
                name=f"{run.method}, seed {run.seed}",
                group=run.method,
                config={**run.settings, "method": run.method, "seed": run.seed},
                settings=package.Settings(silent=True, console="off", x_disable_stats=True),
            )
            tracked.define_metric("*", step_metric="round")
        count = itertools.count()  # on the virtual clock several rows may have the same round

        def add_row(row: Row) -> None:
            values = {name: v for name, v in row.items() if name not in ("method", "seed")}
            tracked.log(values, step=next(count))

        exit_code = 1
        try:
            yield add_row
            exit_code = 0
        finally:
            tracked.finish(exit_code)

    return track


def _identity(folder: Path, name: str) -> str:
    """Returns the id of a run; it stays the same in this results folder."""
    file = folder / "id.txt"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_text(file, secrets.token_hex(8))
        folder_id = file.read_text()
    return hashlib.sha256(f"{folder_id}/{name}".encode()).hexdigest()[:16]


@contextlib.contextmanager
def _explained(package):
    """Turns errors of the package wandb, such as network errors, into errors of one line."""
    try:
        yield
    except package.Error as error:
        raise ValueError(f"track='wandb' fails ({error}); {_FIX}") from error
