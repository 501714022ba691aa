"""The commands that train methods one after another: `compare` and `run`."""

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis import pictures, tables
from fedjax_algos.analysis.summary import summarise
from fedjax_algos.cli.config_file import ConfigFile, read_config
from fedjax_algos.cli.environment import make_trackers, results_folder, start_jax, training
from fedjax_algos.cli.method_tables import (
    clients_table,
    goal_of,
    method_tables,
    non_finite_lines,
    tuning_line,
)
from fedjax_algos.cli.options import (
    Command,
    Commands,
    flag,
    range_of,
    settings_of,
    shared_options,
    text_options,
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
from fedjax_algos.engine.asynchronous.executor import InFlightMemory
from fedjax_algos.engine.compilation import Compilation, measure_compilation
from fedjax_algos.runs import comparison, results
from fedjax_algos.runs.experiment import Experiment, prepare
from fedjax_algos.runs.method import Method, methods_of, parse_spec
from fedjax_algos.runs.saving.trackers import track_experiment
from fedjax_algos.runs.settings import Settings

console = Console(stderr=True)
_NO_FILE = ConfigFile()
# settings that say which runs are compared, how they are measured, and how they are computed
_NOT_TUNED = {
    "seeds", "target", "target_metric", "reference", "eval_every", "evaluations",
    "evaluate_clients", "held_out", "personal_steps", "layout", "devices", "client_state",
    "examples",
}  # fmt: skip


@click.command(cls=Command)
@click.argument("methods", nargs=-1)
@click.option(
    "--config",
    metavar="FILE",
    help="settings and methods: a TOML file, such as tune writes, or a run's config.json",
)
@shared_options("10")
def compare(methods: tuple[str, ...], **values: Any) -> None:
    """Compare METHODS, by default FedAvg, FedProx and FedGBO with three optimisers.

    A method is an algorithm with options of its own: fedprox:mu=0.1,client_learning_rate=0.3. The
    algorithm may be a function of your own: my_file.py:fedspeed:rho=0.1 or
    package.module:fedspeed. On the virtual clock (--seconds) a planner may follow:
    fedbuff@buffered:size=5.

    Costs are those to reach the reference's best accuracy (or --target-metric), unless --target is
    given.

    A file has the options as keys (local_steps = 5) and methods = ["fedavg", "fedprox:mu=0.1"].
    Options and methods of the command line replace those of the file.
    """
    file = read_config(path) if (path := values["config"]) is not None else ConfigFile()
    settings = settings_of(values, "10", file)
    specs = methods or file.methods or comparison.TUNED
    chosen = methods_of(specs, settings)
    if values["compilation_cache"] is None:
        values["compilation_cache"] = file.compilation_cache
    before = settings_of({}, "10", file)
    changed = {name for name, value in vars(settings).items() if value != vars(before)[name]}
    if specs != file.methods or changed - _NOT_TUNED:
        file = file._replace(tuning=None)
    train(settings, chosen, "compare", values, file)


class MethodCommands(Commands):
    """A group with one command for each method, which is made when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The registered algorithms."""
        return sorted(name for name in algorithms if ":" not in name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command of a method; raises UsageError for a spec that is wrong."""
        return _run_command(cmd_name)


@click.group(cls=MethodCommands, subcommand_metavar="METHOD [OPTIONS]")
def run() -> None:
    """Run one METHOD; `run METHOD --help` lists its algorithm's own options.

    METHOD is one of the algorithms below, or a function of your own: my_file.py:fedspeed or
    package.module:fedspeed.
    """


def _run_command(spec: str) -> click.Command:
    """The command of `run` for a method."""
    name, in_spec, _, _ = parse_spec(spec)
    factory = algorithms[name]
    shared = {*options(Settings), "out", "compilation_cache"}
    own = [option for option in text_options(factory) if option.name not in shared]

    def command(**values: Any) -> None:
        settings = settings_of(values, "1")
        changes = {o.name: text for o in own if (text := values[o.name]) is not None}
        twice = [name for name in changes if name in in_spec]
        if twice:
            raise ValueError(f"{flag(twice[0])} is given beside {spec}; give {twice[0]} once")
        method = Method.of(spec, settings, changes)
        train(settings, [method], method.label, values)

    command.__doc__ = inspect.cleandoc(factory.__doc__ or spec).split("\n\n")[0]
    decorated = shared_options("1")(command)
    for option in reversed(own):  # listed before the shared ones
        add = click.option(flag(option.name), option.name, metavar="VALUE", help=range_of(option))
        decorated = add(decorated)
    return click.command(printable(spec), cls=Command)(decorated)


def train(
    settings: Settings,
    methods: list[Method],
    name: str,
    values: dict[str, Any],
    file: ConfigFile = _NO_FILE,
) -> None:
    """Trains all methods on all seeds, shows the progress, and writes a results folder."""
    start, trackers = time.perf_counter(), make_trackers(values["track"])
    goal = goal_of(settings)
    reference = goal.reference
    if reference is not None:
        check_choice("reference", reference, [method.label for method in methods])
    with (
        measure_compilation() as compiled,
        plain_lines(compiled) as lines,
        results_folder(values, name) as folder,
    ):
        start_jax(settings.devices, values["compilation_cache"])
        experiment = prepare(settings, methods, files=True, client_state_folder=folder.client_state)
        extra = {"tuning": dict(file.tuning)} if file.tuning else {}
        record = results.configuration(experiment, values.get("config"), extra)
        on_disk = settings.client_state == "disk"  # these rows are removed when runs have ended
        longer = folder.begin(record, extends=settings.seconds is None and not on_disk)
        if longer is not None:
            _say(longer)
        if folder.is_complete:
            return click.echo(f"{printable(folder.path)} is complete; nothing is left to do")
        with training():
            _introduce(experiment)
            with (
                _progress(settings, methods, compiled, lines) as (start_method, show),
                track_experiment(trackers, folder, experiment, show) as add_row,
            ):
                rows = comparison.run(experiment, add_row, _show_memory, folder, start_method)
        summary = summarise(rows, goal.target, reference, metric=goal.metric)
        results.write(folder.path, experiment, rows, summary)
        of_clients = results.write_clients(folder, experiment)
        unit = "round" if settings.seconds is None else "simulated_seconds"
        with written(folder.path / "accuracy.png") as beside:
            pictures.plot_metric(rows, beside, x=unit)
        folder.complete(record | results.at_end(experiment, compiled))
    click.echo(f"\n{tables.text(method_tables(rows, *goal))}")
    if file.tuning:
        click.echo(tuning_line(file.tuning, settings))
    if of_clients:
        own_models = clients_table(results.summarise_client_rows(of_clients), settings)
        click.echo(tables.text([own_models]))
    for line in non_finite_lines(rows):
        click.echo(line)
    seconds = time.perf_counter() - start
    rest = f"{seconds - compiled.seconds:.1f} s for the rest"
    place = printable(folder.path)
    click.echo(f"results and figure in {place} ({seconds:.0f} s: {compiled}, {rest})")
    compilation_line(compiled, seconds, values["compilation_cache"])


def _introduce(experiment: Experiment) -> None:
    """Prints the settings of the run and its device."""
    settings, about = experiment.settings, results.environment()
    if settings.seconds is None:
        scope = f"{settings.cohort_size} a round, {experiment.layout},"
    else:
        scope = f"{settings.seconds:g} simulated seconds of {settings.system},"
    _say(
        f"{settings.dataset}, {settings.model}, {settings.clients} clients ({settings.partition}), "
        f"{scope} with {about['device_count']} {about['device']}"
    )
    if ratios := experiment.speed_ratios():
        each = ", ".join(f"{ratio:.3g} (seed {seed})" for seed, ratio in ratios.items())
        _say(f"seconds per step of the slowest client / the fastest: {each}")
    for note in experiment.notes:
        _say(note)


def _say(text: str) -> None:
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _show_memory(label: str, memory: InFlightMemory) -> None:
    _say(f"{label}: {memory}")


@contextlib.contextmanager
def _progress(
    settings: Settings, methods: list[Method], compiled: Compilation, lines: PlainLines
) -> Iterator[tuple[Callable[[str], None], Callable[[Row], None]]]:
    """Shows a bar for each method, over all seeds; plain lines if there is no terminal.

    Yields a function to call with the label of each method that starts, and one for each row.
    """
    rounds, status = settings.seconds is None, StatusColumn(compiled)
    columns = [
        TextColumn("{task.description:<16}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds" if rounds else "simulated seconds"),
        TimeElapsedColumn(),
        status,
    ]
    span, name = settings.seconds or settings.rounds, settings.target_metric.replace("_", " ")
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        total = span * len(settings.seeds)
        lines.begin(total * len(methods), settings)
        tasks = {
            m.label: progress.add_task(printable(m.label, 80), total=total, status="", start=False)
            for m in methods
        }
        reached: dict[tuple[str, int], float] = {}  # by method and seed

        def start(label: str) -> None:
            lines.start(label, list(tasks).index(label) * total)
            status.current = tasks[label]
            progress.start_task(tasks[label])

        def show(row: Row) -> None:
            lines.row(row)
            task = tasks[row["method"]]
            reached[row["method"], row["seed"]] = row["round" if rounds else "simulated_seconds"]
            done = sum(now for (label, _), now in reached.items() if label == row["method"])
            seen = f"seed {row['seed']}: {name} {row[goal_of(settings).metric]:.3f}"
            progress.update(task, completed=done, status=seen)

        yield start, show
        lines.finish()
