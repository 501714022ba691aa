"""Implements `compare` and `run`, which train methods one after another."""

import inspect
import itertools
from collections import Counter
from typing import Any

import click

from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis import tables
from fedjax_algos.analysis.rows import Budget, within_budget
from fedjax_algos.analysis.summary import summarise
from fedjax_algos.base.reprs import printable
from fedjax_algos.cli import method_tables
from fedjax_algos.cli import options as cli_options
from fedjax_algos.cli.config_file import ConfigFile, read_config
from fedjax_algos.cli.environment import computing, make_trackers, training
from fedjax_algos.cli.options import (
    SEEDS,
    Command,
    add_options,
    labels_of,
    settings_of,
    shared_options,
)
from fedjax_algos.core.options import options
from fedjax_algos.engine.asynchronous.executor import InFlightMemory
from fedjax_algos.runs import comparison, results
from fedjax_algos.runs.studies.experiment import Experiment, prepare
from fedjax_algos.runs.studies.method import Method, methods_of, parse_spec
from fedjax_algos.runs.studies.settings import Settings
from fedjax_algos.runs.studies.trackers import track_experiment

_NO_FILE = ConfigFile()
# settings that say which runs are compared, how they are measured, and how they are computed
_NOT_TUNED = {
    "seeds", "target", "target_metric", "reference", "eval_every", "evaluations",
    "evaluate_clients", "evaluate_clients_at", "held_out", "personal_steps", "layout", "devices",
    "devices_per_client", "client_state", "examples", "rematerialise", "budget",
}  # fmt: skip


def compare(methods: tuple[str, ...], values: dict[str, Any]) -> None:
    """Trains the methods of a command or its file."""
    file = read_config(path) if (path := values["config"]) is not None else ConfigFile()
    settings = settings_of(values, SEEDS["compare"], file, methods=methods or file.methods)
    specs = methods or file.methods or comparison.TUNED
    chosen = methods_of(specs, settings)
    if values["compilation_cache"] is None:
        values["compilation_cache"] = file.compilation_cache
    before = settings_of({}, SEEDS["compare"], file)
    changed = {name for name, value in vars(settings).items() if value != vars(before)[name]}
    if specs != file.methods or changed - _NOT_TUNED:
        file = file._replace(tuning=None)
    train(settings, chosen, "compare", values, file)


def method_command(spec: str) -> click.Command:
    """Makes the command of a method; raises UsageError for a wrong spec."""
    name, in_spec, _, _ = parse_spec(spec)
    factory = algorithms[name]
    shared = {*options(Settings), *cli_options.OF_TRAINING, "resume"}
    own = [option for option in cli_options.text_options(factory) if option.name not in shared]

    def command(**values: Any) -> None:
        settings = settings_of(values, SEEDS["run"], methods=[spec])
        changes = {o.name: text for o in own if (text := values[o.name]) is not None}
        twice = [name for name in changes if name in in_spec]
        if twice:
            option = cli_options.flag(twice[0])
            raise ValueError(f"{option} is given beside {spec}; give {twice[0]} once")
        method = Method.of(spec, settings, changes)
        train(settings, [method], method.label, values)

    command.__doc__ = inspect.cleandoc(factory.__doc__ or spec).split("\n\n")[0]
    texts = {option.name: cli_options.range_of(option) for option in own}  # listed first
    decorated = add_options(texts)(shared_options(SEEDS["run"])(command))
    return click.command(printable(spec), cls=Command)(decorated)


def train(
    settings: Settings,
    methods: list[Method],
    name: str,
    values: dict[str, Any],
    file: ConfigFile = _NO_FILE,
) -> None:
    """Trains all methods on all seeds, shows the progress, and writes a results folder."""
    labels, in_rounds = [method.label for method in methods], settings.seconds is None
    trackers, goal = make_trackers(values["track"]), method_tables.goal_of(settings, labels)
    runs = [*itertools.product(labels, settings.seeds)]
    texts = labels_of(values.get("label", ()), [{"method": label} for label in labels])
    with training(values, name, settings) as command:
        folder, progress = command.folder, command.progress
        place = folder.client_state
        experiment = prepare(
            settings, methods, files=True, client_state_folder=place, on_plan=progress.plan
        )
        extra = {"tuning": dict(file.tuning)} if file.tuning else {}
        record = results.configuration(experiment, values.get("config"), extra)
        on_disk = settings.client_state == "disk"  # the rows are removed when the runs have ended
        if not command.begin(record, runs, extends=in_rounds and not on_disk):
            return

        def show_memory(label: str, memory: InFlightMemory) -> None:
            progress.note(f"{label}: {memory}")

        with computing():
            for line in _introduction(experiment):
                progress.note(line)
            span = settings.seconds or settings.rounds
            own = Counter(label for label, seed in runs if folder.takes(label, seed))
            progress.begin({label: span * number for label, number in own.items()}, settings)
            with track_experiment(trackers, folder, experiment, progress.row) as add_row:
                rows = comparison.run(experiment, add_row, show_memory, folder, progress.start)
            progress.finish()
        if not (rows := command.join(rows)):
            return
        within, _ = within_budget(rows, goal.budget)
        summary = summarise(within, goal.target, goal.reference, metric=goal.metric)
        of_clients = results.write_clients(folder, experiment)
        axis = "round" if in_rounds else "simulated_seconds"
        axis = axis if goal.budget is None else Budget.of(goal.budget).column
        command.write(experiment, rows, summary, x=axis, labels=texts)
        command.complete(experiment)
    click.echo(f"\n{tables.text(method_tables.method_tables(rows, *goal, labels=texts))}")
    if file.tuning:
        click.echo(method_tables.tuning_line(file.tuning, settings))
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
    if ratios := experiment.speed_ratios():
        each = ", ".join(f"{ratio:.3g} (seed {seed})" for seed, ratio in ratios.items())
        lines.append(f"seconds per step of the slowest client / the fastest: {each}")
    if settings.evaluate_clients_at == "evaluations" and experiment.client_data:
        number = 1 + -(-settings.rounds // settings.eval_every)
        examples = next(iter(experiment.client_data.values())).counts().sum()
        lines.append(
            f"clients are evaluated {number} times in a run, with {number * examples} examples "
            f"in all{', after local steps' * bool(settings.personal_steps)}"
        )
    return [*lines, *experiment.notes]
