"""What the commands' bars of progress have in common, and plain lines without a terminal."""

import contextlib
import threading
import time
from collections.abc import Iterator

import click
from rich.console import Console, RenderableType
from rich.progress import ProgressColumn, Task, TaskID
from rich.text import Text

from fedjax_algos.analysis.statistics import PREFIX
from fedjax_algos.core import Row
from fedjax_algos.core.reprs import printable
from fedjax_algos.engine.compilation import Compilation
from fedjax_algos.runs.settings import Settings

INTERVAL = 30.0  # seconds between two plain lines, at most
_REPLAYED = 0.5  # a row that comes sooner than this share of its own time is an earlier process's


class StatusColumn(ProgressColumn):
    """The status of each task, or `compiling` for the current one while a program is compiled.

    Attributes:
      current: the task that runs now, set by the command; None before the first one.
    """

    def __init__(self, compiled: Compilation):
        super().__init__()
        self._compiled = compiled
        self.current: TaskID | None = None

    def render(self, task: Task) -> RenderableType:
        """Rich's hook: the text beside a bar."""
        runs = task.id == self.current and not task.finished
        is_compiling = runs and self._compiled.is_compiling
        return Text("compiling" if is_compiling else task.fields.get("status", ""))


class PlainLines:
    """Lines on standard error that say where a command is, if there is no terminal for bars.

    A line follows the end of each run, and `plain_lines` prints `line` from time to time. The time
    left is that of the rounds or simulated seconds of all runs that are left, at the mean speed of
    those that this process has computed, without compilation.
    """

    def __init__(self, compiled: Compilation, displayed: bool):
        self._compiled, self._displayed = compiled, displayed
        self._where, self._left = "preparing", "time left unknown"  # a thread reads them
        self._total = self._done = self._computed = self._length = 0.0
        self._rows: dict[tuple[str, int], tuple[float, float, float]] = {}  # of runs that go on

    def begin(self, total: float, settings: Settings) -> None:
        """Begins the runs."""
        on_clock = settings.seconds is not None
        self._unit, self._axis = ("second", "simulated_seconds") if on_clock else ("round", "round")
        self._name = settings.target_metric.replace("_", " ")
        self._metric, self._seeds = PREFIX + settings.target_metric, list(settings.seeds)
        self._total, self._length = total, settings.seconds or settings.rounds
        self._begun, self._compiled_before = time.perf_counter(), self._compiled.seconds

    def start(self, label: str, done: float, length: float | None = None) -> None:
        """Begins the runs of a method, or of one of its stages; all earlier ones have ended."""
        self.end()
        self._done, self._length = max(self._done, done), length or self._length
        self._where = f"{printable(label, 80)}, seed {self._seeds[0]}: "

    def row(self, row: Row) -> None:
        """Notes an evaluation, and says so if its run has ended."""
        run, now, wall = (row["method"], row["seed"]), time.perf_counter(), row["wall_seconds"]
        at, (before, seen, at_wall) = row[self._axis], self._rows.pop(run, (0.0, now, wall))
        self._done += at - before
        if at > before and now - seen > _REPLAYED * (wall - at_wall):
            self._computed += at - before
            seconds = now - self._begun - self._compiled.seconds + self._compiled_before
            left = max(seconds, 0) / self._computed * max(self._total - self._done, 0)
            self._left = f"about {_duration(left)} left"
        self._rows[run] = at, now, wall
        quality = f", {self._name} {row[self._metric]:.3f}" if self._metric in row else ""
        name = f"{printable(run[0], 80)}, seed {run[1]}: "
        self._where = f"{name}{self._unit} {at:.6g} of {self._length:g}{quality}"
        if at >= self._length:
            self._end(run, self._where.replace(name, f"{name}ended at "))
            for seed in self._seeds[self._seeds.index(run[1]) + 1 :][:1]:
                self._where = f"{printable(run[0], 80)}, seed {seed}: "

    def end(self) -> None:
        """Says which of the runs ended early, because their model is not finite."""
        for run, (at, _, _) in list(self._rows.items()):
            self._done += self._length - at
            name = f"{printable(run[0], 80)}, seed {run[1]}"
            self._end(run, f"{name}: ended early, at {self._unit} {at:.6g} of {self._length:g}")

    def finish(self) -> None:
        """Ends the runs; the command goes on with what it writes."""
        self.end()
        self._where, self._left = "writing results", ""

    def _end(self, run: tuple[str, int], text: str) -> None:
        del self._rows[run]
        self.say(f"{text}; {self._left}")

    def line(self) -> str:
        """Where the command is now."""
        where = self._where
        if self._compiled.is_compiling:
            where = where.partition(": ")[0] + ": compiling"
        elif where.endswith(": "):
            where += "starting"
        return "; ".join(filter(None, [where, self._left]))

    def say(self, text: str) -> None:
        """Prints a line, unless there are bars."""
        if self._displayed:
            click.echo(text, err=True)


@contextlib.contextmanager
def plain_lines(compiled: Compilation) -> Iterator[PlainLines]:
    """Prints a line every `INTERVAL` seconds within a `with` block, if there is no terminal.

    A thread does so, because a compiled call or the compiler may take minutes. It ends with the
    block, and with the process.
    """
    lines = PlainLines(compiled, displayed=not Console(stderr=True).is_terminal)
    ended = threading.Event()

    def repeat() -> None:
        with contextlib.suppress(OSError, ValueError):  # the output is closed
            while not ended.wait(INTERVAL):
                lines.say(lines.line())

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        ended.set()
        thread.join(timeout=1)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def compilation_line(compiled: Compilation, seconds: float, cache: str | None) -> None:
    """Prints what helps if more than half of the time of a command was compilation."""
    if cache is None and compiled.seconds > seconds / 2:
        click.echo(
            "more than half of this time was compilation; with --compilation-cache FOLDER the next "
            "command reads what an earlier one has compiled"
        )
