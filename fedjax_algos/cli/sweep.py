"""The command that runs a grid of settings in as few compiled programs as possible: `sweep`."""

from typing import Any

import click

from fedjax_algos.analysis import tables
from fedjax_algos.analysis.summary import summarise
from fedjax_algos.base.errors import require
from fedjax_algos.cli.environment import Training, computing, make_trackers, training
from fedjax_algos.cli.method_tables import best_first, goal_of, method_tables, non_finite_lines
from fedjax_algos.cli.options import Command, add_options, settings_of, shared_options, values_of
from fedjax_algos.core import Row
from fedjax_algos.core.options import options
from fedjax_algos.core.specs import split_grid
from fedjax_algos.runs import results
from fedjax_algos.runs.studies.sweeps import Sweep, prepare_sweep, run_sweep
from fedjax_algos.runs.studies.trackers import Tracker, track_experiment

_HELP = {
    "grid": "values; may be repeated",
    "runs_per_device": "runs that a device computes at once [1 on a CPU, else as many as --memory "
    "allows]",
    "memory": "bytes for the states of a call's runs [2**30, or more if those at once need it]",
}
_LEFT_OUT = ("evaluate_clients", "evaluate_clients_at", "held_out", "personal_steps", "budget")
_OF_FILES = {
    "target": "quality whose costs are in summary.csv and in `report` [the reference's best]",
    "reference": "label of the setting that the others are compared with there [the first]",
}
_LIMITS = options(prepare_sweep)
_MAX_DRAWN = 10  # settings in the figure, the best ones


@click.command(cls=Command)
@click.argument("method")
@add_options(_HELP, {"grid"}, grid="NAME=VALUE,...")
@shared_options("3", _LEFT_OUT, _OF_FILES)
def sweep(method: str, grid: tuple[str, ...], **values: Any) -> None:
    """Run METHOD on every setting of a grid and every seed.

    fedprox --grid mu=0.001,0.01,0.1 --grid client_learning_rate=0.1,0.32 are six settings. A grid
    may contain the method's own options, client_learning_rate, and settings of the local work such
    as local_steps. Settings that differ in real numbers share a program; others have one each.
    METHOD may be a function of your own: my_file.py:fedspeed --grid rho=0.1,0.2.
    """
    trackers, settings = make_trackers(values["track"]), settings_of(values, "3", methods=[method])
    with training(values, "sweep", settings) as command:
        columns = _columns(grid, values)
        prepared = prepare_sweep(settings, method, columns, **values_of(_LIMITS, values))
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
    """The grid's values by name, as texts."""
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
    """The rows and the notes, while a bar or plain lines show the progress of all runs."""
    experiment, progress, runs = prepared.experiment, command.progress, prepared.runs
    if not runs:
        return [], []
    part = f"{len(runs)} runs"
    progress.begin({part: len(runs) * experiment.settings.rounds}, experiment.settings)
    progress.start(part, runs[0].seed, runs[0].label)
    points = {run.label: run.swept for run in runs}
    with track_experiment(trackers, command.folder, experiment, progress.row, points) as add_row:
        rows, notes = run_sweep(prepared, add_row, command.folder)
    progress.finish()
    for note in [*experiment.notes, *notes]:
        progress.note(note)
    return rows, notes
