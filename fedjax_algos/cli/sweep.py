"""Implements `sweep`, which trains a grid of settings in as few compiled programs as possible."""

from typing import Any

import click

from fedjax_algos.analysis import tables
from fedjax_algos.analysis.summary import summarise
from fedjax_algos.base.errors import require
from fedjax_algos.cli.environment import Training, computing, make_trackers, training
from fedjax_algos.cli.method_tables import best_first, goal_of, method_tables, non_finite_lines
from fedjax_algos.cli.options import SEEDS, settings_of, values_of
from fedjax_algos.core import Row
from fedjax_algos.core.options import options
from fedjax_algos.core.specs import split_grid
from fedjax_algos.runs import results
from fedjax_algos.runs.studies.sweeps import Sweep, prepare_sweep, run_sweep
from fedjax_algos.runs.studies.trackers import Tracker, track_experiment

_MAX_DRAWN = 10  # settings in the figure, the best ones


def train_grid(method: str, grid: tuple[str, ...], values: dict[str, Any]) -> None:
    """Trains a method on every setting of a grid."""
    trackers = make_trackers(values["track"])
    settings = settings_of(values, SEEDS["sweep"], methods=[method])
    with training(values, "sweep", settings) as command:
        columns = _columns(grid, values)
        limits = values_of(options(prepare_sweep), values)
        prepared = prepare_sweep(settings, method, columns, **limits)
        experiment = prepared.experiment
        goal = goal_of(settings, [method.label for method in experiment.methods])
        record = results.configuration(experiment, extra={"grid": columns})
        if not command.begin(record, [run[:2] for run in prepared.runs], extends=True):
            return
        with computing():
            rows, notes = _run(prepared.of_share(command.folder), command, trackers)
        if not (rows := command.join(rows)):
            return
        rows = best_first(rows, goal.metric)
        summary = summarise(rows, goal.target, goal.reference, metric=goal.metric)
        best = [line.label for line in summary[:_MAX_DRAWN]]
        command.write(experiment, rows, summary, methods=best)
        command.complete(experiment, sweep_notes=notes)
    click.echo(f"\n{tables.text(method_tables(rows, *goal, is_sweep=True))}")
    for line in non_finite_lines(rows):
        click.echo(line)
    command.say_end("results and figure")


def _columns(grid: tuple[str, ...], values: dict[str, str | None]) -> dict[str, list[str]]:
    """Returns the grid's values by name, as texts."""
    columns: dict[str, list[str]] = {}
    for text in grid:
        owner, name, listed = split_grid(text)
        require(not owner, f"grid={text!r} names a method; leave {owner}: out, there is one")
        require(name not in columns, f"{name} is in two grids; give all its values in one")
        if values.get(name) is not None:
            raise ValueError(f"{name} is given beside the grid's values; leave one of them out")
        columns[name] = listed.split(",")
    return columns


def _run(
    prepared: Sweep, command: Training, trackers: list[Tracker]
) -> tuple[list[Row], list[str]]:
    """Runs the sweep with a bar or plain lines for its progress; returns the rows and notes."""
    experiment, progress, runs = prepared.experiment, command.progress, prepared.runs
    if not runs:
        return [], []
    part = f"{len(runs)} runs"
    progress.begin({part: len(runs) * experiment.settings.rounds}, experiment.settings)
    progress.start(part, runs[0].seed, runs[0].label)
    with track_experiment(trackers, command.folder, experiment, progress.row) as add_row:
        rows, notes = run_sweep(prepared, add_row, command.folder)
    progress.finish()
    for note in [*experiment.notes, *notes]:
        progress.note(note)
    return rows, notes
