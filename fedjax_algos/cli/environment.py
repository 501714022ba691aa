"""Sets up a command that trains: jax's devices, the results folder, trackers and signals."""

import contextlib
import dataclasses
import itertools
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import jax

from fedjax_algos.analysis import pictures
from fedjax_algos.analysis.labels import check_names
from fedjax_algos.analysis.rows import within_budget
from fedjax_algos.analysis.summary import summarise
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import written
from fedjax_algos.base.reprs import printable
from fedjax_algos.cli import open_folders, processes
from fedjax_algos.cli.method_tables import Goal
from fedjax_algos.cli.options import check_path, values_of
from fedjax_algos.core import Row
from fedjax_algos.core.options import options
from fedjax_algos.engine.compilation import (
    Compilation,
    keep_compiled,
    keep_in_user_cache,
    measure_compilation,
)
from fedjax_algos.engine.placed.devices import usable_cores
from fedjax_algos.engine.placed.processes import from_first
from fedjax_algos.runs import results
from fedjax_algos.runs.loops.interruption import finish_calls
from fedjax_algos.runs.loops.recorder import DivergenceWarning
from fedjax_algos.runs.studies.experiment import Experiment
from fedjax_algos.runs.studies.folder_content import RunName, describe_missing, missing_runs
from fedjax_algos.runs.studies.results_folder import ResultsFolder, open_folder
from fedjax_algos.runs.studies.settings import Settings
from fedjax_algos.runs.studies.trackers import Tracker, trackers

if TYPE_CHECKING:
    from fedjax_algos.cli.progress import RunProgress


@dataclasses.dataclass
class Training:
    """A command that trains, with its results folder and its progress."""

    folder: ResultsFolder
    compiled: Compilation
    progress: "RunProgress"
    record: dict[str, Any] = dataclasses.field(default_factory=dict)
    started: float = dataclasses.field(default_factory=time.perf_counter)

    def begin(self, record: dict[str, Any], runs: Sequence[RunName], extends: bool = False) -> bool:
        """Begins the results folder; if it is complete, prints that and returns False.

        `runs` are the runs of all shares, in the order of computation.
        """
        self.record = record | self.folder.divide(runs)
        if longer := self.folder.begin(self.record, extends=extends):
            self.progress.note(longer)
        if complete := self.folder.is_complete:
            click.echo(f"{printable(self.folder.path)} is complete; nothing is left to do")
        return not complete

    def join(self, rows: list[Row]) -> list[Row]:
        """Returns the rows of all shares; if runs are missing, reports them and returns []."""
        if self.folder.share is None:
            return rows
        if missing := from_first(missing_runs)(self.folder.path, self.record):
            self.report_missing(missing)
            return []
        runs = itertools.product(self.folder.names, self.record["settings"]["seeds"])
        return [row for run in runs for row in self.folder.rows_of_ended(*run) or ()]

    def report_missing(self, missing: Sequence[RunName]) -> None:
        """Prints that the share has ended, and how many runs of other shares have not."""
        left = describe_missing(missing, self.record["shares"], listed=0)
        path, share = printable(self.folder.path), self.folder.share
        click.echo(f"share {share} of {path} has ended; the last share to end writes the results")
        click.echo(f"not ended yet: {left}")

    @from_first
    def write(self, experiment: Experiment, rows: list[Row], goal: Goal, **figure: Any) -> None:
        """Writes the results and the accuracy figure; `figure` has options of `plot_metric`."""
        within, _ = within_budget(rows, goal.budget)
        summary = summarise(within, goal.target, goal.reference, metric=goal.metric)
        results.write(self.folder.path, experiment, rows, summary)
        with written(self.folder.path / "accuracy.png") as beside:
            pictures.plot_metric(within, beside, **figure)

    def complete(self, experiment: Experiment, **more: Any) -> None:
        """Marks the folder as complete; `more` is written into its configuration."""
        self.folder.complete(self.record | results.at_end(experiment, self.compiled) | more)

    def say_end(self, what: str, *lines: str) -> None:
        """Prints where the results are, and how long they took."""
        seconds = time.perf_counter() - self.started
        others = seconds - self.compiled.seconds
        took = f"{seconds:.0f} s: {self.compiled}, {others:.1f} s for the rest"
        click.echo("\n".join([f"{what} in {printable(self.folder.path)} ({took})", *lines]))


@contextlib.contextmanager
def training(values: dict[str, Any], name: str, settings: Settings) -> Iterator[Training]:
    """Sets up devices, processes and the results folder from a command's options."""
    from fedjax_algos.cli.progress import show_progress  # imports rich

    cache, devices = values["compilation_cache"], settings.devices
    check_path("out", values["out"])
    check_path("compilation_cache", cache)
    checkpoints = {"every": values["checkpoint_every"], "keep": values["keep_checkpoints"]}
    of_folder = values_of(options(open_folder), checkpoints | {"share": values["share"]})
    place = processes.place_of(**values_of(options(processes.place_of), values))
    number = 1 if place is None else place.processes
    fix = f"do not divide over {number} processes; give a multiple of {number}"
    require((devices or 0) % number == 0, f"devices={devices} {fix}")
    if cache is not None:
        keep_compiled(None if cache == "none" else cache)
    elif "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        keep_in_user_cache()
    cores = max(settings.devices_per_client, usable_cores())
    _make_cpu_devices(devices // number if devices else cores)
    measured = measure_compilation()
    with processes.joined(place), measured as compiled, show_progress(compiled) as progress:
        processes.check_same_command(click.get_current_context().params)
        with open_folder(values["out"], name, resume=values["resume"], **of_folder) as folder:
            open_folders[:] = [folder.path]
            yield Training(folder, compiled, progress)


def _make_cpu_devices(number: int) -> None:
    """Makes this many CPU devices, unless jax has started or its own option is set."""
    by_flag = "device_count" in os.environ.get("XLA_FLAGS", "")
    # jax's type for its configuration does not know the attribute
    if getattr(jax.config, "jax_num_cpu_devices", -1) == -1 and not by_flag:
        with contextlib.suppress(RuntimeError):  # jax has started
            jax.config.update("jax_num_cpu_devices", number)


def make_trackers(specs: Sequence[str]) -> list[Tracker]:
    """Makes the trackers that --track names."""
    if names := [trackers.parse(spec)[0] for spec in specs]:
        check_names("track", names, names)
    return [trackers.make(spec) for spec in specs]


@contextlib.contextmanager
def computing() -> Iterator[None]:
    """Ends the command at the next evaluation after Ctrl-C or SIGTERM.

    Warnings are one line each; the command lists diverged runs at its end.
    """

    def show(message: Warning | str, *more: Any, **keywords: Any) -> None:
        click.echo(f"warning: {printable(message)}", err=True)

    with finish_calls(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        warnings.showwarning = show
        yield
