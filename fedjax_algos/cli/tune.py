"""Implements `tune`, which tunes methods with equal budgets on held-out examples of clients."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fedjax_algos.analysis import tables
from fedjax_algos.analysis.tables import Column, ResultTable, percentages
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import write_text
from fedjax_algos.base.reprs import printable
from fedjax_algos.cli.environment import computing, training
from fedjax_algos.cli.method_tables import quality_name
from fedjax_algos.cli.options import SEEDS, settings_of, values_of
from fedjax_algos.core.options import options
from fedjax_algos.engine.placed.processes import only_first
from fedjax_algos.runs import results
from fedjax_algos.runs.studies.tuning import (
    Trial,
    Tuning,
    TuningStage,
    missing_trials,
    prepare_tuning,
    run_tuning,
    tuned_text,
)  # fmt: skip


def tune_methods(methods: tuple[str, ...], grid: tuple[str, ...], values: dict[str, Any]) -> None:
    """Tunes methods and writes their best settings."""
    settings = settings_of(values, SEEDS["tune"], methods=methods)
    with training(values, "tune", settings) as command:
        search, share = values_of(options(prepare_tuning), values), command.folder.share
        halving = search.get("halving")
        fix = f"which no share has; leave --share {share} or --halving out"
        text = f"halving={halving} needs the scores of all trials of a stage, {fix}"
        require(halving is None or share is None, text)
        tuning = prepare_tuning(settings, methods, grid, **search)
        experiment, progress = tuning.experiment, command.progress
        spaces = {s.method.label: {n: str(v) for n, v in s.values.items()} for s in tuning.spaces}
        record = results.configuration(experiment, extra={"grid": spaces, "tuning": search})
        for label, method in record["methods"].items():
            record["methods"][label] = {n: v for n, v in method.items() if n not in spaces[label]}
        if not command.begin(record, [*itertools.chain(*tuning.runs.values())]):
            return

        def start(label: str, stage: TuningStage) -> None:
            progress.start(label, length=stage.length)

        number = len(settings.seeds)
        seeds = "one seed" if number == 1 else f"each of {number} seeds"
        budget = f"{_stages(tuning)}, on {seeds}: {tuning.budget:g} {_unit(tuning)} in all"
        with computing():
            for note in [f"each method: {budget}", *experiment.notes]:
                progress.note(note)
            totals = {}
            for label, runs in tuning.runs.items():
                taken = sum(itertools.starmap(command.folder.takes, runs))
                totals[label] = tuning.budget * taken / len(runs)
            progress.begin(totals, experiment.settings)
            trials = run_tuning(tuning, command.folder, progress.row, start)
            progress.finish()
        if not trials:
            command.report_missing(missing_trials(tuning, command.folder))
            return
        path = command.folder.path / "tuned.toml"
        only_first(write_text)(path, tuned_text(tuning, trials))
        command.complete(experiment)
    click.echo(f"\n{tables.text([_table(tuning, trials)])}")
    next_command = f"fedjax-algos compare --config {printable(path)}"
    command.say_end("all trials", f"go on with: {next_command}")


def _table(tuning: Tuning, trials: Mapping[str, Sequence[Sequence[Trial]]]) -> ResultTable:
    """Makes a line for each method: its best setting, its score, and values at an edge."""
    labels = [space.method.label for space in tuning.spaces]
    last = [trials[label][-1] for label in labels]  # of the last stage, the best ones first
    best = [stage[0].method for stage in last]
    values = [m.label.removeprefix(label).strip() for m, label in zip(best, labels, strict=True)]
    edges = [", ".join(s.edges(m.swept)) for s, m in zip(tuning.spaces, best, strict=True)]
    scores = [[trial.score for stage in trials[label] for trial in stage] for label in labels]
    columns = [
        Column("method", labels),
        Column("best setting", values),
        percentages("score", [stage[0].score for stage in last]),
        percentages("next best", [stage[1].score if stage[1:] else None for stage in last]),
        Column("at the edge", [text or None for text in edges]),
        Column("diverged", [sum(map(math.isnan, each)) or None for each in scores]),
    ]
    settings, engines = tuning.experiment.settings, tuning.experiment.engines
    notes = [
        f"score: {quality_name(settings.target_metric)} in % on {100 * settings.held_out:g}% of "
        "each client's training examples, which are not trained on; test data are not used.",
        f"Each method: {_stages(tuning)}, with seeds {', '.join(map(str, settings.seeds))}; the "
        "mean over the last fifth of the evaluations and over seeds.",
        "at the edge: the smallest or largest value that was tried; a wider grid may be better.",
    ]
    if personal := [label for label, e in engines.items() if e.algorithm.personal is not None]:
        methods = " and ".join(personal)
        notes.append(f"{methods}: the score is the global model's, not the clients' own models'.")
    return ResultTable(columns, notes)


def _stages(tuning: Tuning) -> str:
    """Describes the number of settings and the length of each stage."""
    stages = (f"{s.settings} settings for {s.length:g} {_unit(tuning)}" for s in tuning.stages)
    return ", then ".join(stages)


def _unit(tuning: Tuning) -> str:
    return "rounds" if tuning.experiment.settings.seconds is None else "simulated seconds"
