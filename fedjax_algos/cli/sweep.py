"""The command that runs a grid of settings in as few compiled programs as possible: `sweep`."""

import math
import time
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedjax_algos.analysis import pictures, tables
from fedjax_algos.analysis.summary import summarise
from fedjax_algos.cli.environment import make_trackers, results_folder, start_jax, training
from fedjax_algos.cli.method_tables import goal_of, method_tables, non_finite_lines
from fedjax_algos.cli.options import (
    Command,
    flag,
    settings_of,
    shared_options,
    values_of,
)
from fedjax_algos.cli.progress import (
    PlainLines,
    StatusColumn,
    compilation_line,
    plain_lines,
)
from fedjax_algos.core import Row
from fedjax_algos.core.files import written
from fedjax_algos.core.options import check_choice, options
from fedjax_algos.core.reprs import printable
from fedjax_algos.core.specs import split_grid
from fedjax_algos.engine.compilation import Compilation, measure_compilation
from fedjax_algos.runs import results
from fedjax_algos.runs.batched.sweeps import Sweep, prepare_sweep, run_sweep
from fedjax_algos.runs.saving.results_folder import ResultsFolder
from fedjax_algos.runs.saving.trackers import Tracker, track_experiment

_MEMORY_HELP = "bytes for the states of a call's runs [2**30, or more if those at once need it]"
_LEFT_OUT = ("evaluate_clients", "held_out", "personal_steps")
_OF_FILES = {
    "target": "quality whose costs are in summary.csv and in `report` [the reference's best]",
    "reference": "label of the setting that the others are compared with there [the first]",
}
_LIMITS = options(prepare_sweep)
_MAX_DRAWN = 10  # settings in the figure, the best ones


@click.command(cls=Command)
@click.argument("method")
@click.option("--grid", multiple=True, metavar="NAME=VALUE,...", help="values; may be repeated")
@click.option(
    "--runs-per-device",
    metavar="VALUE",
    help="runs that a device computes at once [1 on a CPU, else as many as --memory allows]",
)
@click.option("--memory", metavar="VALUE", help=_MEMORY_HELP)
@shared_options("3", _LEFT_OUT, _OF_FILES)
def sweep(method: str, grid: tuple[str, ...], **values: Any) -> None:
    """Run METHOD on every setting of a grid and every seed.

    fedprox --grid mu=0.001,0.01,0.1 --grid client_learning_rate=0.1,0.32 are six settings. A grid
    may contain the method's own options, client_learning_rate, and settings of the local work such
    as local_steps. Settings that differ in real numbers share a program; others have one each.
    METHOD may be a function of your own: my_file.py:fedspeed --grid rho=0.1,0.2.
    """
    start, trackers = time.perf_counter(), make_trackers(values["track"])
    with (
        measure_compilation() as compiled,
        plain_lines(compiled) as lines,
        results_folder(values, "sweep") as folder,
    ):
        settings = settings_of(values, "3")
        start_jax(settings.devices, values["compilation_cache"])
        columns = _columns(grid, values)
        prepared = prepare_sweep(settings, method, columns, **values_of(_LIMITS, values))
        if settings.reference is not None:
            labels = [method.label for method in prepared.experiment.methods]
            check_choice("reference", settings.reference, labels)
        record = results.configuration(prepared.experiment, extra={"grid": columns})
        longer = folder.begin(record, extends=True)
        if longer is not None:
            lines.say(longer)
        if folder.is_complete:
            return click.echo(f"{printable(folder.path)} is complete; nothing is left to do")
        with training():
            rows, notes = _run(prepared, folder, trackers, compiled, lines)
        goal = goal_of(settings)
        rows = _best_first(rows, goal.metric)
        summary = summarise(rows, goal.target, goal.reference, metric=goal.metric)
        results.write(folder.path, prepared.experiment, rows, summary)
        best = [line.label for line in summary[:_MAX_DRAWN]]
        with written(folder.path / "accuracy.png") as beside:
            pictures.plot_metric(rows, beside, methods=best)
        ended = results.at_end(prepared.experiment, compiled)
        folder.complete(record | ended | {"sweep_notes": notes})
    click.echo(f"\n{tables.text(method_tables(rows, *goal, is_sweep=True))}")
    for line in non_finite_lines(rows):
        click.echo(line)
    seconds = time.perf_counter() - start
    place = printable(folder.path)
    click.echo(f"results and figure in {place} ({seconds:.0f} s, of which {compiled})")
    compilation_line(compiled, seconds, values["compilation_cache"])


def _columns(grid: tuple[str, ...], values: dict[str, str | None]) -> dict[str, list[str]]:
    """The grid's values by name, as texts."""
    columns: dict[str, list[str]] = {}
    for text in grid:
        owner, name, listed = split_grid(text)
        if owner:
            raise ValueError(f"grid={text!r} names a method; leave {owner}: out, there is one")
        if name in columns:
            raise ValueError(f"{name} is in two grids; give all its values in one")
        if values.get(name) is not None:
            raise ValueError(
                f"{flag(name)} is given beside the grid's values; leave one of them out"
            )
        columns[name] = listed.split(",")
    return columns


def _run(
    prepared: Sweep,
    folder: ResultsFolder,
    trackers: list[Tracker],
    compiled: Compilation,
    lines: PlainLines,
) -> tuple[list[Row], list[str]]:
    """The rows and the notes, while a bar or plain lines show the progress of all runs."""
    console, settings = Console(stderr=True), prepared.experiment.settings
    columns = [TextColumn(f"{len(prepared.runs)} runs"), BarColumn(), MofNCompleteColumn()]
    status = StatusColumn(compiled)
    more = TextColumn("rounds"), TimeElapsedColumn(), status
    disable, total = not console.is_terminal, len(prepared.runs) * settings.rounds
    with Progress(*columns, *more, console=console, disable=disable) as progress:
        task = progress.add_task("", total=total)
        lines.begin(total, settings)
        lines.start(prepared.runs[0].label, 0)
        status.current = task
        reached: dict[tuple[str, int], int] = {}  # rounds, by method and seed

        def show(row: Row) -> None:
            lines.row(row)
            name = row["method"], row["seed"]
            progress.advance(task, row["round"] - reached.get(name, 0))
            reached[name] = row["round"]

        points = {run.label: run.swept for run in prepared.runs}
        with track_experiment(trackers, folder, prepared.experiment, show, points) as add_row:
            rows, notes = run_sweep(prepared, add_row, folder)
        lines.finish()
    for note in [*prepared.experiment.notes, *notes]:
        console.print(printable(note), markup=False, highlight=False, soft_wrap=True)
    return rows, notes


def _best_first(rows: list[Row], metric: str) -> list[Row]:
    """Rows in the order of their setting's mean final quality; diverged settings come last."""
    ranked = sorted(
        summarise(rows, metric=metric),
        key=lambda line: (math.isnan(line.final.mean), -line.final.mean),
    )
    order = [line.label for line in ranked]
    return sorted(rows, key=lambda row: order.index(row["method"]))
