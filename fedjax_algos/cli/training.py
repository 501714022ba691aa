"""The commands that train: `compare` and `run`."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis import plots
from fedjax_algos.analysis.summary import summarise
from fedjax_algos.cli import tables
from fedjax_algos.cli.config_file import read_config
from fedjax_algos.cli.options import (
    Commands,
    flag,
    range_of,
    settings_of,
    shared_options,
    start_devices,
    told_in_one_line,
)
from fedjax_algos.core.registry import options, parse_value
from fedjax_algos.engine.asynchronous.executor import Memory
from fedjax_algos.engine.compilation import keep_compiled, measure_compilation
from fedjax_algos.runs import comparison, results
from fedjax_algos.runs.settings import Method, Settings, methods_of
from fedjax_algos.runs.simulation import Row

console = Console(stderr=True)


@click.command()
@click.argument("methods", nargs=-1)
@click.option("--config", metavar="FILE", help="TOML file of settings and methods")
@shared_options(seeds="10")
def compare(
    methods: tuple[str, ...],
    config: str | None,
    out: str | None,
    compilation_cache: str | None,
    **values: str | None,
) -> None:
    """Compare METHODS, by default FedAvg, FedProx and FedGBO with three optimisers.

    A method is an algorithm with options of its own: fedprox:mu=0.1,client_learning_rate=0.3. The
    first one's best accuracy is what the others are measured by, unless --target is given.

    A file has the options as keys (local_steps = 5) and methods = ["fedavg", "fedprox:mu=0.1"];
    what is given here takes the place of the file's.
    """
    with told_in_one_line():
        file = read_config(config) if config is not None else None
        settings = settings_of(values, "10", file)
        specs = methods or (file.methods if file else ()) or comparison.TUNED
        chosen = methods_of(specs, settings)
    if compilation_cache is None and file is not None:
        compilation_cache = file.compilation_cache
    train(settings, chosen, out, "compare", config, compilation_cache)


class AlgorithmCommands(Commands):
    what = "algorithm"


@click.group(cls=AlgorithmCommands)
def run() -> None:
    """Run one ALGORITHM; `run ALGORITHM --help` lists its own options."""


def _add_run_command(name: str) -> None:
    own = {
        option.name: option
        for option in options(algorithms[name]).values()
        if option.kind is not object and option.name not in options(Settings)
    }

    def command(out: str | None, compilation_cache: str | None, **values: Any) -> None:
        with told_in_one_line():
            settings = settings_of(values, "1")
            method = Method.of(name, settings)
            for key, option in own.items():
                if values[key] is not None:
                    method.hyperparameters[key] = parse_value(option, values[key], name)
        train(settings, [method], out, name, compilation_cache=compilation_cache)

    command.__doc__ = (algorithms[name].__doc__ or name).split("\n\n")[0]
    decorated: Any = command
    for option in reversed(own.values()):
        decorated = click.option(
            flag(option.name), option.name, default=None, metavar="VALUE", help=range_of(option)
        )(decorated)
    run.command(name)(shared_options(seeds="1")(decorated))


for _name in algorithms:
    _add_run_command(_name)


def train(
    settings: Settings,
    methods: list[Method],
    out: str | None,
    name: str,
    config: str | None = None,
    compilation_cache: str | None = None,
) -> None:
    """Trains all methods on all seeds, shows how far they are, and writes a results folder.

    Args:
      settings: of the command line and of a file.
      methods: what is trained.
      out: the results folder; if None, a new one of this `name` in `results`.
      name: of the command.
      config: the file that settings came from, for the record.
      compilation_cache: where compiled programs are kept, if anywhere.
    """
    start = time.perf_counter()
    with measure_compilation() as compiled:
        with told_in_one_line():
            start_devices(settings.devices)
            if compilation_cache is not None:
                keep_compiled(compilation_cache)
            experiment = comparison.prepare(settings, methods)
            folder = results.new_folder(out, name)
        _introduce(experiment)
        with _progress(settings, methods) as show:
            rows = comparison.run(experiment, show, _tell_memory)
    summary = summarise(rows, settings.target)
    results.write(folder, experiment, rows, summary, compiled, config)
    unit = "round" if settings.seconds is None else "simulated_seconds"
    plots.plot_metric(rows, folder / "accuracy.png", x=unit)
    wide = Console(width=1000)  # a narrow terminal may wrap lines, but no number is cut
    wide.print("", tables.summary_table(summary, settings), "", sep="\n")
    click.echo(tables.legend(summary, settings))
    seconds = time.perf_counter() - start
    rest = f"{seconds - compiled.seconds:.1f} s for all else"
    click.echo(f"results and figure in {folder} ({seconds:.0f} s: {compiled}, {rest})")


def _introduce(experiment: comparison.Experiment) -> None:
    """Says what is about to run, and where."""
    settings, about = experiment.settings, results.environment()
    if settings.seconds is None:
        scope = f"{settings.cohort_size} a round, {experiment.layout},"
    else:
        scope = f"{settings.seconds:g} virtual seconds of {settings.weather},"
    console.print(
        f"{settings.dataset}, {settings.model}, {settings.clients} clients ({settings.partition}), "
        f"{scope} with {about['device_count']} {about['device']}",
        highlight=False,
        soft_wrap=True,
    )
    for note in experiment.notes:
        console.print(note, highlight=False)


def _tell_memory(label: str, memory: Memory) -> None:
    console.print(f"{label}: {memory}", highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _progress(settings: Settings, methods: list[Method]) -> Iterator[Callable[[Row], None]]:
    """A bar for each method, over all seeds; what it yields moves them with each evaluation."""
    rounds = settings.seconds is None
    columns = [
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds" if rounds else "virtual seconds"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
    ]
    span = settings.seconds or settings.rounds
    with Progress(*columns, console=console) as progress:
        total = span * len(settings.seeds)
        tasks = {
            m.label: progress.add_task(m.label, total=total, status="", start=False)
            for m in methods
        }
        reached: dict[tuple[str, int], float] = {}  # seeds run one after another or together

        def show(row: Row) -> None:
            task = tasks[row["method"]]
            progress.start_task(task)
            reached[row["method"], row["seed"]] = row["round" if rounds else "simulated_seconds"]
            done = sum(now for (label, _), now in reached.items() if label == row["method"])
            status = f"seed {row['seed']}: accuracy {row['test_accuracy']:.3f}"
            progress.update(task, completed=done, status=status)

        yield show
