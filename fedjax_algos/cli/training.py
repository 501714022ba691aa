"""Implements `compare` and `run`, which train methods one after another, and `sweep`.

`sweep` trains a grid of settings in as few compiled programs as possible.
"""

import inspect
import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import click

from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis import tables
from fedjax_algos.analysis.rows import Budget
from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import printable
from fedjax_algos.cli import method_tables
from fedjax_algos.cli.config_file import ConfigFile, read_config
from fedjax_algos.cli.environment import computing, make_trackers, training
from fedjax_algos.cli.options import (
    HELP,
    SEEDS,
    Command,
    add_options,
    flag,
    labels_of,
    range_of,
    settings_of,
    shared_options,
    text_options,
    values_of,
)
from fedjax_algos.core import Row
from fedjax_algos.core.options import options
from fedjax_algos.core.specs import split_grid
from fedjax_algos.engine.asynchronous.executor import InFlightMemory
from fedjax_algos.models.layers import native
from fedjax_algos.runs import comparison, results
from fedjax_algos.runs.studies.experiment import Experiment, prepare
from fedjax_algos.runs.studies.method import Method, methods_of, parse_spec
from fedjax_algos.runs.studies.settings import Settings
from fedjax_algos.runs.studies.sweeps import prepare_sweep, run_sweep
from fedjax_algos.runs.studies.trackers import track_experiment

_MAX_DRAWN = 10  # settings of a sweep in its figure, the best ones
# settings that may change after `tune`: they select runs, or say how to evaluate and compute them
_NOT_TUNED = {
    "seeds", "target", "target_metric", "reference", "eval_every", "evaluations",
    "evaluate_clients", "evaluate_clients_at", "held_out", "personal_steps", "layout", "devices",
    "devices_per_client", "client_state", "examples", "rematerialise", "budget",
}  # fmt: skip


def compare(methods: tuple[str, ...], values: dict[str, Any]) -> None:
    """Trains the methods of a command or its file."""
    file = ConfigFile() if values["config"] is None else read_config(values["config"])
    settings = settings_of(values, SEEDS["compare"], file, methods=methods or file.methods)
    specs = methods or file.methods or comparison.TUNED
    methods_of_run = methods_of(specs, settings)
    if values["compilation_cache"] is None:
        values["compilation_cache"] = file.compilation_cache
    before = settings_of({}, SEEDS["compare"], file)
    changed = {name for name, value in vars(settings).items() if value != vars(before)[name]}
    if specs != file.methods or changed - _NOT_TUNED:
        file = file._replace(tuning=None)  # they were not tuned
    train(settings, methods_of_run, "compare", values, file.tuning)


def method_command(spec: str) -> click.Command:
    """Makes the command of a method; raises UsageError for a wrong spec."""
    name, in_spec, _, _ = parse_spec(spec)
    factory = algorithms[name]
    texts = {o.name: range_of(o) for o in text_options(factory) if o.name not in HELP}

    def command(**values: Any) -> None:
        settings = settings_of(values, SEEDS["run"], methods=[spec])
        changes = {name: values[name] for name in texts if values[name] is not None}
        for name in changes:
            require(name not in in_spec, f"{flag(name)} is given beside {spec}; give {name} once")
        method = Method.of(spec, settings, changes)
        train(settings, [method], method.label, values)

    command.__doc__ = inspect.cleandoc(factory.__doc__ or spec).split("\n\n")[0]
    decorated = add_options(texts, {})(shared_options(SEEDS["run"])(command))  # `texts` are first
    return click.command(printable(spec), cls=Command)(decorated)


def train(
    settings: Settings,
    methods: list[Method],
    name: str,
    values: dict[str, Any],
    tuning: Mapping[str, Any] | None = None,
) -> None:
    """Trains all methods on all seeds, shows the progress, and writes a results folder."""
    labels, in_rounds = [method.label for method in methods], settings.seconds is None
    trackers, goal = make_trackers(values["track"]), method_tables.goal_of(settings, labels)
    runs = [*itertools.product(labels, settings.seeds)]
    texts = labels_of(values.get("label", ()), [{"method": label} for label in labels])
    with training(values, name, settings) as command:
        folder, progress = command.folder, command.progress
        place, plan = folder.client_state, progress.plan
        experiment = prepare(settings, methods, files=True, client_state_folder=place, on_plan=plan)
        extra = {"tuning": dict(tuning)} if tuning else {}
        record = results.configuration(experiment, values.get("config"), extra)
        on_disk = settings.client_state == "disk"  # the rows are removed when the runs have ended
        if not command.begin(record, runs, extends=in_rounds and not on_disk):
            return

        def show_memory(label: str, memory: InFlightMemory) -> None:
            progress.note(f"{label}: {memory}")

        with computing():
            for line in _introduction(experiment):
                progress.note(line)
            comparison.compile_rounds(experiment, folder)
            span = settings.seconds or settings.rounds
            counts = Counter(label for label, seed in runs if folder.takes(label, seed))
            progress.begin({label: span * number for label, number in counts.items()}, settings)
            with track_experiment(trackers, folder, experiment, progress.row) as add_row:
                rows = comparison.run(experiment, add_row, show_memory, folder, progress.start)
            progress.finish()
        if not (rows := command.join(rows)):
            return
        of_clients = results.write_clients(folder, experiment)
        axis = "round" if in_rounds else "simulated_seconds"
        axis = axis if goal.budget is None else Budget.of(goal.budget).column
        command.write(experiment, rows, goal, x=axis, labels=texts)
        command.complete(experiment)
    click.echo(f"\n{tables.text(method_tables.method_tables(rows, goal, labels=texts))}")
    if tuning:
        click.echo(method_tables.tuning_line(tuning, settings))
    if of_clients:
        click.echo(tables.text([method_tables.clients_table(of_clients, settings)]))
    for line in method_tables.non_finite_lines(rows):
        click.echo(line)
    command.say_end("results and figure")


def _introduction(experiment: Experiment) -> list[str]:
    """Describes the settings of the run and its device."""
    settings, about = experiment.settings, results.environment()
    if settings.seconds is None:
        scope = f"{settings.cohort_size} a round, {experiment.layout},"
    else:
        scope = f"{settings.seconds:g} simulated seconds of {settings.system},"
    lines = [
        f"{settings.dataset}, {settings.model}, {settings.clients} clients ({settings.partition}), "
        f"{scope} with {about['device_count']} {about['device']}"
    ]
    if settings.seconds is None and (note := getattr(settings.cohorts()["sampler"], "note", None)):
        lines.append(note(settings.clients, settings.cohort_size))
    lines += [f"{label}: {text}" for label, text in experiment.privacy().items()]
    if ratios := experiment.speed_ratios():
        values = ", ".join(f"{ratio:.3g} (seed {seed})" for seed, ratio in ratios.items())
        lines.append(f"seconds per step of the slowest client / the fastest: {values}")
    if settings.evaluate_clients_at == "evaluations" and experiment.client_data:
        number = 1 + -(-settings.rounds // settings.eval_every)
        total = number * next(iter(experiment.client_data.values())).counts().sum()
        steps = ", after local steps" * bool(settings.personal_steps)
        lines.append(f"clients are evaluated {number} times in a run, with {total} examples{steps}")
    return [*lines, *native.advice(experiment.problem.shapes().params), *experiment.notes]


def sweep(method: str, grid: tuple[str, ...], values: dict[str, Any]) -> None:
    """Trains a method on every setting of a grid."""
    trackers = make_trackers(values["track"])
    settings = settings_of(values, SEEDS["sweep"], methods=[method])
    with training(values, "sweep", settings) as command:
        folder, progress = command.folder, command.progress
        columns = _columns(grid, values)
        limits = values_of(options(prepare_sweep), values)
        whole = prepare_sweep(settings, method, columns, **limits)
        experiment = whole.experiment
        goal = method_tables.goal_of(settings, [method.label for method in experiment.methods])
        record = results.configuration(experiment, extra={"grid": columns})
        if not command.begin(record, [run[:2] for run in whole.runs], extends=True):
            return
        prepared = whole.of_share(folder)
        rows: list[Row] = []
        notes: list[str] = []
        if prepared.runs:
            part, first = f"{len(prepared.runs)} runs", prepared.runs[0]
            with computing():
                progress.begin({part: len(prepared.runs) * settings.rounds}, experiment.settings)
                progress.start(part, first.seed, first.label)
                with track_experiment(trackers, folder, experiment, progress.row) as add_row:
                    rows, notes = run_sweep(prepared, add_row, folder)
                progress.finish()
                for note in [*experiment.notes, *notes]:
                    progress.note(note)
        if not (rows := command.join(rows)):
            return
        rows = method_tables.best_first(rows, goal.metric)
        drawn = [*dict.fromkeys(row["method"] for row in rows)][:_MAX_DRAWN]
        command.write(experiment, rows, goal, methods=drawn)
        command.complete(experiment, sweep_notes=notes)
    click.echo(f"\n{tables.text(method_tables.method_tables(rows, goal, is_sweep=True))}")
    for line in method_tables.non_finite_lines(rows):
        click.echo(line)
    command.say_end("results and figure")


def _columns(grid: tuple[str, ...], values: dict[str, str | None]) -> dict[str, list[str]]:
    """Returns the grid's values by name, as texts."""
    columns: dict[str, list[str]] = {}
    for text in grid:
        owner, name, listed = split_grid(text)
        require(not owner, f"grid={text!r} names a method; leave {owner}: out, there is one")
        once = name not in columns and values.get(name) is None
        require(once, f"{name} is given twice; give all its values in one --grid alone")
        columns[name] = listed.split(",")
    return columns
