"""The command that tunes methods with equal budgets, on examples that clients hold out: `tune`."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedjax_algos.analysis.tables import plain_table
from fedjax_algos.cli.environment import results_folder, start_jax, training
from fedjax_algos.cli.method_tables import quality_name
from fedjax_algos.cli.options import (
    Command,
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
from fedjax_algos.core.files import write_text
from fedjax_algos.core.options import options
from fedjax_algos.core.reprs import printable
from fedjax_algos.engine.compilation import Compilation, measure_compilation
from fedjax_algos.runs import results
from fedjax_algos.runs.saving.results_folder import ResultsFolder
from fedjax_algos.runs.tuning.trials import Trial
from fedjax_algos.runs.tuning.tuning import Stage, Tuning, prepare_tuning, run_tuning, tuned_text

_SEEDS = "1000-1002"  # not those of `compare`
# what clients hold out is --validation; rows are of held-out examples, which no tracker names so
_LEFT_OUT = ("evaluate_clients", "held_out", "personal_steps", "track")
_OF_COMPARE = {
    "target": "quality whose costs `compare --config` shows; not used here",
    "target_metric": "metric of which a setting's score is the mean on held-out examples, such as "
    "dice_score",
    "reference": "label of the method that the others are compared with then; not used here",
}
_GRID_HELP = (
    "[ALGORITHM:]OPTION=VALUE,VALUE,... or OPTION=LOW..HIGH, drawn on a logarithmic scale; "
    "may be repeated; values for one ALGORITHM prevail over those for all"
)


@click.command(cls=Command)
@click.argument("methods", nargs=-1, required=True)
@click.option("--grid", multiple=True, metavar="TEXT", help=_GRID_HELP)
@click.option(
    "--validation", metavar="VALUE", help="share of each client's examples that is held out [0.2]"
)
@click.option(
    "--trials", metavar="VALUE", help="settings that are drawn of each method [all of the grid]"
)
@click.option(
    "--halving",
    metavar="FACTOR",
    help="stop early: keep the best 1/FACTOR of the settings in each stage, each FACTOR times as "
    "long as the one before [all settings run to the end]",
)
@click.option(
    "--search",
    metavar="VALUE",
    help="grid, or optuna: its model of the scores so far proposes --trials settings [grid]",
)
@shared_options(_SEEDS, _LEFT_OUT, _OF_COMPARE)
def tune(methods: tuple[str, ...], grid: tuple[str, ...], **values: Any) -> None:
    """Find good settings of METHODS, with the same budget for each, and without test data.

    fedavg fedprox --grid client_learning_rate=0.01..1 --grid fedprox:mu=0.001,0.01 --trials 20
    tries 20 settings of each method. Each client holds out some of its training examples; the score
    of a setting is the mean accuracy on them, or that of --target-metric. The best settings are
    written to tuned.toml, which compare --config takes as it is.
    """
    start = time.perf_counter()
    with (
        measure_compilation() as compiled,
        plain_lines(compiled) as lines,
        results_folder(values, "tune") as folder,
    ):
        settings = settings_of(values, _SEEDS)
        start_jax(settings.devices, values["compilation_cache"])
        given = values_of(options(prepare_tuning), values)
        tuning = prepare_tuning(settings, methods, grid, **given)
        spaces = {s.method.label: {n: str(v) for n, v in s.values.items()} for s in tuning.spaces}
        record = results.configuration(tuning.experiment, extra={"grid": spaces, "tuning": given})
        for label, known in record["methods"].items():
            record["methods"][label] = {n: v for n, v in known.items() if n not in spaces[label]}
        folder.begin(record)
        if folder.is_complete:
            return click.echo(f"{printable(folder.path)} is complete; nothing is left to do")
        with training():
            trials = _run(tuning, folder, compiled, lines)
        path = folder.path / "tuned.toml"
        write_text(path, tuned_text(tuning, trials))
        folder.complete(record | results.at_end(tuning.experiment, compiled))
    Console(width=1000).print("", _table(tuning, trials), "", sep="\n")
    click.echo(_legend(tuning))
    seconds = time.perf_counter() - start
    click.echo(f"all trials in {printable(folder.path)} ({seconds:.0f} s, of which {compiled})")
    click.echo(f"go on with: fedjax-algos compare --config {printable(path)}")
    compilation_line(compiled, seconds, values["compilation_cache"])


def _run(
    tuning: Tuning, folder: ResultsFolder, compiled: Compilation, lines: PlainLines
) -> dict[str, list[list[Trial]]]:
    """The trials, while a bar for each method, or plain lines, show the progress."""
    console, clock = Console(stderr=True), tuning.experiment.settings.seconds is not None
    for note in [_budget(tuning), *tuning.experiment.notes]:
        console.print(printable(note), markup=False, highlight=False, soft_wrap=True)
    columns = [TextColumn("{task.description:<16}", markup=False), BarColumn()]
    status = StatusColumn(compiled)
    more = TaskProgressColumn(), TimeElapsedColumn(), status
    disable = not console.is_terminal
    with Progress(*columns, *more, console=console, disable=disable) as progress:
        tasks = {
            space.method.label: progress.add_task(
                printable(space.method.label, 80), total=tuning.budget, start=False
            )
            for space in tuning.spaces
        }
        last: dict[tuple[Any, ...], float] = {}
        lines.begin(len(tasks) * tuning.budget, tuning.experiment.settings)

        def start(label: str, stage: Stage) -> None:
            lines.start(label, list(tasks).index(label) * tuning.budget, stage.length)
            status.current = tasks[label]
            progress.start_task(tasks[label])

        def show(label: str, row: Row) -> None:
            lines.row(row)
            now = row["simulated_seconds" if clock else "round"]
            key = row["method"], row["seed"]
            before = last.get(key, 0)
            progress.advance(tasks[label], now - before if now > before else now)
            last[key] = now

        trials = run_tuning(tuning, folder, show, start)
        lines.finish()
        return trials


def _table(tuning: Tuning, trials: Mapping[str, Sequence[Sequence[Trial]]]) -> Table:
    """One line for each method: its best setting, its score, and what is at an edge."""
    rows = []
    for space in tuning.spaces:
        label = space.method.label
        last = trials[label][-1]
        best, others = last[0], [trial.score for trial in last[1:]]
        chosen = best.setting.values
        values = best.setting.method.label.removeprefix(label).strip()
        diverged = sum(math.isnan(trial.score) for stage in trials[label] for trial in stage)
        next_best = f"{100 * others[0]:.1f}" if others and math.isfinite(others[0]) else "-"
        edges = ", ".join(space.edges(chosen)) or "-"
        score = f"{100 * best.score:.1f}"
        rows.append([label, values, score, next_best, edges, f"{diverged}" if diverged else "-"])
    headings = ["method", "best setting", "score", "next best", "at the edge", "diverged"]
    return plain_table(headings, rows, justify="left")


def _budget(tuning: Tuning) -> str:
    """How much each method is run."""
    number = len(tuning.experiment.settings.seeds)
    seeds = "one seed" if number == 1 else f"each of {number} seeds"
    return f"each method: {_stages(tuning)}, on {seeds}: {tuning.budget:g} {_unit(tuning)} in all"


def _stages(tuning: Tuning) -> str:
    each = (f"{s.settings} settings for {s.length:g} {_unit(tuning)}" for s in tuning.stages)
    return ", then ".join(each)


def _unit(tuning: Tuning) -> str:
    return "rounds" if tuning.experiment.settings.seconds is None else "simulated seconds"


def _legend(tuning: Tuning) -> str:
    """The meaning of the columns."""
    settings = tuning.experiment.settings
    text = (
        f"score: {quality_name(settings.target_metric)} in % on {100 * settings.held_out:g}% of "
        "each client's training examples, which are not trained on; test data are not used.\n"
        f"Each method: {_stages(tuning)}, with seeds {', '.join(map(str, settings.seeds))}; the "
        "mean over the last fifth of the evaluations and over seeds.\n"
        "at the edge: the smallest or largest value that was tried; a wider grid may be better.\n"
    )
    engines = tuning.experiment.engines.items()
    personal = [label for label, engine in engines if engine.algorithm.personal is not None]
    if personal:
        who = " and ".join(personal)
        text += f"{who}: the score is that of the global model, not of the clients' own models.\n"
    return text
