"""Shows the progress of training: bars on a terminal, else plain lines on standard error."""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click
from rich import progress as columns
from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from fedjax_algos.analysis.labels import label_text
from fedjax_algos.analysis.statistics import metric_column
from fedjax_algos.base.reprs import printable
from fedjax_algos.core import Row
from fedjax_algos.engine.compilation import Compilation
from fedjax_algos.runs.studies.settings import Settings

INTERVAL = 30.0  # seconds between two plain lines, at most
_REPLAYED = 0.5  # a row that comes within this share of its own wall time is read, not computed


def make_bars(console: Console, unit: str, *more: ProgressColumn, **options: Any) -> Progress:
    """Makes bars that count a unit, with the time since their start."""
    name, elapsed = TextColumn("{task.description:<16}", markup=False), columns.TimeElapsedColumn()
    counts = columns.BarColumn(), columns.MofNCompleteColumn(), TextColumn(unit)
    return Progress(name, *counts, elapsed, *more, console=console, **options)


class StatusColumn(ProgressColumn):
    """The status of each bar, or `compiling` for the `current` one while a program is compiled."""

    def __init__(self, compiled: Compilation):
        super().__init__()
        self._compiled = compiled
        self.current: TaskID | None = None

    def render(self, task: Task) -> RenderableType:
        """Rich's hook: the text beside a bar."""
        runs = task.id == self.current and not task.finished
        return Text("compiling" if runs and self._compiled.is_compiling else task.fields["status"])


class RunProgress:
    """The progress of a command that trains: a bar for each of its parts, or plain lines.

    Without a terminal, a line follows the end of each run, and `show_progress` prints `line` from
    time to time. The time left assumes the mean speed of the runs so far, and the mean compilation
    time for each part that has not begun.
    """

    def __init__(self, compiled: Compilation, console: Console):
        self._compiled, self._console, self._status = compiled, console, StatusColumn(compiled)
        self.bars, self._task = Progress(disable=True), TaskID(0)
        self._where, self._left = "preparing", "time left unknown"  # a thread reads them
        self._total = self._done = self._computed = self._length = 0.0
        self._rows: dict[tuple[str, int], tuple[float, float, float]] = {}  # of unfinished runs

    def plan(self, label: str, seed: int) -> None:
        """Notes the run whose plan of the virtual clock is being made."""
        self._where = f"preparing the plan of {_run(label, seed)}"

    def begin(self, totals: Mapping[str, float], settings: Settings) -> None:
        """Begins the runs; `totals` has the rounds or simulated seconds of each part."""
        clock = settings.seconds is not None
        self._unit, self._axis = ("second", "simulated_seconds") if clock else ("round", "round")
        self._name = settings.target_metric.replace("_", " ")
        self._metric, self._seeds = metric_column(settings.target_metric), list(settings.seeds)
        self._length, self._begun = settings.seconds or settings.rounds, time.perf_counter()
        self._compiled_before, self._started = self._compiled.seconds, 0
        unit, hidden = "simulated seconds" if clock else "rounds", not self._console.is_terminal
        self.bars = make_bars(self._console, unit, self._status, disable=hidden)
        self._before: dict[str, float] = {}  # the work before each part
        self._tasks: dict[str, TaskID] = {}
        for part, total in totals.items():
            self._before[part], self._total = self._total, self._total + total
            text = label_text(part)
            self._tasks[part] = self.bars.add_task(text, total=total, status="", start=False)
        self.bars.start()

    def start(self, part: str, seed: int | None = None, label: str = "", length: float = 0) -> None:
        """Begins a part: the runs of a method, or a stage of tuning. Earlier parts have ended."""
        self.end()
        self._task = self._status.current = self._tasks[part]
        self.bars.start_task(self._task)
        self._started += 1
        self._part, self._length = part, length or self._length
        self._done = max(self._done, self._before[part])
        self._where = f"{_run(label or part, self._seeds[0] if seed is None else seed)}: "

    def row(self, row: Row) -> None:
        """Notes an evaluation, and prints a line if its run has ended."""
        run, now, wall = (row["method"], row["seed"]), time.perf_counter(), row["wall_seconds"]
        at, (before, seen, at_wall) = row[self._axis], self._rows.pop(run, (0.0, now, wall))
        self._compiled.is_compiling = False  # a program lowered only for its text is never compiled
        self._advance(at - before)
        if at > before and now - seen > _REPLAYED * (wall - at_wall):
            self._computed += at - before
            compiled, started = self._compiled.seconds - self._compiled_before, self._started
            seconds = max(now - self._begun - compiled, 0) / self._computed
            left = seconds * max(self._total - self._done, 0)
            left += compiled / started * (len(self._tasks) - started)
            self._left = f"about {_duration(left)} left"
        self._rows[run] = at, now, wall
        quality = f"{self._name} {row[self._metric]:.3f}" if self._metric in row else ""
        if run[0] == self._part:  # false if one bar stands for several methods
            self.bars.update(self._task, status=f"seed {run[1]}: {quality}")
        where = f"{self._unit} {at:.6g} of {self._length:g}{quality and f', {quality}'}"
        self._where = f"{_run(*run)}: {where}"
        if at >= self._length:
            self._end(run, f"ended at {where}")

    def end(self) -> None:
        """Prints which runs ended early because their model is not finite."""
        for run, (at, _, _) in list(self._rows.items()):
            self._advance(self._length - at)
            self._end(run, f"ended early, at {self._unit} {at:.6g} of {self._length:g}")

    def finish(self) -> None:
        """Ends the runs and the bars, before the command writes its results."""
        self.end()
        self._where, self._left = "writing results", ""
        self.bars.stop()

    def _advance(self, amount: float) -> None:
        self._done += amount
        self.bars.advance(self._task, amount)

    def _end(self, run: tuple[str, int], status: str) -> None:
        """Forgets a run, and moves on to the next seed of its method."""
        del self._rows[run]
        self.say(f"{_run(*run)}: {status}; {self._left}")
        for seed in self._seeds[self._seeds.index(run[1]) + 1 :][:1]:
            self._where = f"{_run(run[0], seed)}: "

    def line(self) -> str:
        """Says where the command is now."""
        where = self._where
        if self._compiled.is_compiling:
            where = where.partition(": ")[0] + ": compiling"
        elif where.endswith(": "):
            where += "starting"
        return "; ".join(filter(None, [where, self._left]))

    def say(self, text: str) -> None:
        """Prints a line, unless there are bars."""
        if not self._console.is_terminal:
            click.echo(text, err=True)

    def note(self, text: str) -> None:
        """Prints a text above the bars or between the lines."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _run(label: str, seed: int) -> str:
    return f"{label_text(label)}, seed {seed}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


@contextlib.contextmanager
def show_progress(compiled: Compilation) -> Iterator[RunProgress]:
    """Shows bars within a `with` block or, without a terminal, a line every `INTERVAL` seconds."""
    progress, ended = RunProgress(compiled, Console(stderr=True)), threading.Event()

    def repeat() -> None:
        with contextlib.suppress(OSError, ValueError):  # the output is closed
            while not ended.wait(INTERVAL):
                progress.say(progress.line())

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        progress.bars.stop()
        ended.set()
        thread.join(timeout=1)
