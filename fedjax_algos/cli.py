"""The command line: `fedjax-algos compare | run | plot | summary | list`."""

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedjax_algos import comparison, plots, results, summaries, tables
from fedjax_algos.algorithms import algorithms
from fedjax_algos.config_file import ConfigFile, read_config
from fedjax_algos.data import datasets, partitions
from fedjax_algos.engine import chunk_size
from fedjax_algos.models import models
from fedjax_algos.registry import Option, Registry, one_of, options, parse_value, unknown
from fedjax_algos.schedules import rates, samplers, schedules, weathers, works
from fedjax_algos.settings import Method, Settings, methods_of

REGISTRIES = {
    "algorithms": algorithms,
    "datasets": datasets,
    "models": models,
    "partitions": partitions,
    "rate_schedules": rates,
    "schedules": schedules,
    "weathers": weathers,
    "samplers": samplers,
    "works": works,
}
HELP = {
    "dataset": "name of a data set, see `list datasets`",
    "model": "name of a model, see `list models`",
    "partition": "how examples are divided over clients, see `list partitions`",
    "clients": "number of clients",
    "cohort": "clients in a round, or below 1 their fraction",
    "sampler": "who is in a round, see `list samplers`",
    "work": "who does how much of a complete turn, see `list works`",
    "rounds": "communication rounds",
    "local_steps": "steps of a client in a round [10 unless --local-epochs is given]",
    "local_epochs": "passes of a client over its data in a round, instead of steps; 0.5 is half",
    "batch_size": "examples of a local step",
    "batches": f"how they are taken: {one_of(options(Settings)['batches'].choices)}",
    "client_learning_rate": "rate of the local steps [the method's own, else 0.1]",
    "rate_schedule": "how that rate moves, see `list rate_schedules`",
    "rate_by": "what moves it: round, or visit (a client's own turns)",
    "weight_decay": "times the params, added to a client's gradient after clipping",
    "clip_norm": "largest norm of a client's gradient, after the method's correction; 0 is any",
    "server_learning_rate": "rate of the server's step [the method's own]",
    "seeds": "a number of seeds (5), a range (10-14) or a list (3,7)",
    "eval_every": "rounds between evaluations",
    "target": "test accuracy whose rounds and upload are measured [the first method's best]",
    "seconds": "virtual seconds: run on the virtual clock, each method on its own schedule",
    "weather": "speeds and absences on the virtual clock, see `list weathers`",
    "evaluations": "evaluations on the virtual clock",
    "layout": "auto, vmapped, sequential, or clients computed at once",
    "client_state": "where clients' own state lives between rounds: device or host",
}
_WORK_OF_A_TURN = {"local_steps", "local_epochs"}
PAPERS = {  # whether a target is needed, and the reference
    "fedgbo": (False, "fedavg"),
    "fedlga": (True, None),
    "ghbm": (False, "fedavg"),
    "fedcompass": (True, "fedcompass"),
}
console = Console(stderr=True)


@contextlib.contextmanager
def told_in_one_line():
    """A ValueError about what the user gave becomes a usage error; none from training does."""
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def shared_options(seeds: str):
    """The options of every command that trains."""

    def decorate(command):
        command = click.option("--out", metavar="FOLDER", help="results folder")(command)
        for option in reversed(options(Settings).values()):
            default = seeds if option.name == "seeds" else option.default
            shown = f" [{default:g}]" if isinstance(default, float) else f" [{default}]"
            shown = "" if default is None else shown
            command = click.option(
                _flag(option.name), default=None, metavar="VALUE", help=HELP[option.name] + shown
            )(command)
        return command

    return decorate


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _settings(values: dict[str, Any], seeds: str, config: ConfigFile | None = None) -> Settings:
    """The settings of a file, where there is one, and of the command line, which goes first."""
    known = options(Settings)
    given = {name: text for name, text in values.items() if name in known and text is not None}
    from_file = dict(config.settings) if config else {}
    if given.keys() & _WORK_OF_A_TURN:  # one of the two takes the place of the other
        from_file = {name: from_file[name] for name in from_file.keys() - _WORK_OF_A_TURN}
    owner = config.path if config else ""
    parsed = {name: _parsed(known[name], text, owner) for name, text in from_file.items()}
    parsed |= {name: _parsed(known[name], text) for name, text in given.items()}
    return Settings(**{"seeds": _seeds(seeds)} | parsed)


def _parsed(option: Option, text: str, owner: str = "") -> Any:
    if option.name == "seeds":
        return _seeds(text, owner)
    return parse_value(option, text, owner)


def _seeds(text: str, owner: str = "") -> tuple[int, ...]:
    try:
        if "-" in text:
            first, last = map(int, text.split("-"))
            seeds = tuple(range(first, last + 1))
        elif "," in text:
            seeds = tuple(int(part) for part in text.split(",") if part)
        else:
            seeds = tuple(range(int(text)))
    except ValueError:
        seeds = ()
    if not seeds:
        raise ValueError(
            f"{owner}: " * bool(owner) + f"seeds={text!r} is out of range; give a number (5), "
            "a range (10-14) or a list (3,7)"
        )
    return seeds


class Commands(click.Group):
    """A group whose unknown names are told with the nearest known one."""

    what = "command"

    def resolve_command(self, ctx, args):
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(unknown(self.what, args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


class AlgorithmCommands(Commands):
    what = "algorithm"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fedjax_algos")
def cli() -> None:
    """Federated learning, simulated in JAX."""


@cli.command()
@click.argument("methods", nargs=-1)
@click.option("--config", metavar="FILE", help="TOML file of settings and methods")
@shared_options(seeds="10")
def compare(
    methods: tuple[str, ...], config: str | None, out: str | None, **values: str | None
) -> None:
    """Compare METHODS, by default FedAvg, FedProx and FedGBO with three optimisers.

    A method is an algorithm with options of its own: fedprox:mu=0.1,client_learning_rate=0.3. The
    first one's best accuracy is what the others are measured by, unless --target is given.

    A file has the options as keys (local_steps = 5) and methods = ["fedavg", "fedprox:mu=0.1"];
    what is given here takes the place of the file's.
    """
    with told_in_one_line():
        file = read_config(config) if config is not None else None
        settings = _settings(values, "10", file)
        specs = methods or (file.methods if file else ()) or comparison.TUNED
        chosen = methods_of(specs, settings)
    _train(settings, chosen, out, "compare", config)


@cli.group(cls=AlgorithmCommands)
def run() -> None:
    """Run one ALGORITHM; `run ALGORITHM --help` lists its own options."""


def _add_run_command(name: str) -> None:
    own = {
        option.name: option
        for option in options(algorithms[name]).values()
        if option.kind is not object and option.name not in options(Settings)
    }

    def command(out: str | None, **values: Any) -> None:
        with told_in_one_line():
            settings = _settings(values, "1")
            method = Method.of(name, settings)
            for key, option in own.items():
                if values[key] is not None:
                    method.hyperparameters[key] = parse_value(option, values[key], name)
        _train(settings, [method], out, name)

    command.__doc__ = (algorithms[name].__doc__ or name).split("\n\n")[0]
    decorated: Any = command
    for option in reversed(own.values()):
        decorated = click.option(
            _flag(option.name), option.name, default=None, metavar="VALUE", help=_told(option)
        )(decorated)
    run.command(name)(shared_options(seeds="1")(decorated))


def _told(option: Option) -> str:
    what = (
        " or ".join(option.choices) if option.choices else str(option.range or option.kind.__name__)
    )
    return f"{what} [{'needed' if option.required else option.default}]"


for _name in algorithms:
    _add_run_command(_name)


def _train(
    settings: Settings, methods: list[Method], out: str | None, name: str, config: str | None = None
) -> None:
    start = time.perf_counter()
    with told_in_one_line():
        experiment = comparison.prepare(settings, methods)
        folder = results.new_folder(out, name)
    about = results.environment()
    size = 1
    if settings.seconds is None:
        scope = f"{settings.cohort_size} a round"
        size = chunk_size(settings.layout, settings.cohort_size)
    else:
        scope = f"{settings.seconds:g} virtual seconds of {settings.weather}"
    console.print(
        f"{settings.dataset}, {settings.model}, {settings.clients} clients ({settings.partition}), "
        f"{scope}, on {about['device_count']} {about['device']}, "
        f"{size} client{'s' * (size > 1)} at once",
        highlight=False,
        soft_wrap=True,
    )
    for note in experiment.notes:
        console.print(note, highlight=False)
    columns = [
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds" if settings.seconds is None else "virtual seconds"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
    ]
    with Progress(*columns, console=console) as progress:
        span, unit = settings.seconds or settings.rounds, "round"
        if settings.seconds is not None:
            unit = "simulated_seconds"
        total = span * len(settings.seeds)
        tasks = {
            m.label: progress.add_task(m.label, total=total, status="", start=False)
            for m in methods
        }
        order = {seed: number for number, seed in enumerate(settings.seeds)}

        def show(row):
            task = tasks[row["method"]]
            progress.start_task(task)
            done = order[row["seed"]] * span + row[unit]
            status = f"seed {row['seed']}: accuracy {row['test_accuracy']:.3f}"
            progress.update(task, completed=done, status=status)

        rows = comparison.run(experiment, show)
    summary = comparison.summarise(rows, settings.target)
    results.write(folder, experiment, rows, summary, config)
    plots.plot_metric(rows, folder / "accuracy.png", x=unit)
    wide = Console(width=1000)  # a narrow terminal may wrap lines, but no number is cut
    wide.print("", tables.summary_table(summary, settings), "", sep="\n")
    click.echo(tables.legend(summary, settings))
    click.echo(f"results and figure in {folder} ({time.perf_counter() - start:.0f} s)")


@cli.command()
@click.argument("folders", nargs=-1, metavar="RESULTS...")
@click.option("--metric", default="test_accuracy", help="column of metrics.csv [test_accuracy]")
@click.option("--x", "axis", default="round", help=f"{', '.join(plots.AXES)} [round]")
@click.option("--out", metavar="FILE", help="picture [METRIC-by-X.png in the first folder]")
def plot(folders: tuple[str, ...], metric: str, axis: str, out: str | None) -> None:
    """Plot a metric of one or more results folders in one picture."""
    with told_in_one_line():
        if not folders:
            raise ValueError(
                "no results folder is given; name one or more, such as results/compare"
            )
        if axis not in plots.AXES:
            raise ValueError(unknown("axis", axis, plots.AXES))
        rows = []
        for folder in folders:
            prefix = f"{Path(folder).name}: " if len(folders) > 1 else ""
            rows += [
                row | {"method": prefix + row["method"]} for row in results.read_metrics(folder)
            ]
        path = Path(out) if out else Path(folders[0]) / f"{metric}-by-{axis}.png"
        if path.exists():
            raise ValueError(f"out={str(path)!r} exists; name another file or remove it")
        plots.plot_metric(rows, path, metric=metric, x=axis)
    click.echo(path)


@cli.command()
@click.argument("folder", metavar="RESULTS")
@click.option("--paper", default="fedgbo", help=f"{', '.join(PAPERS)} [fedgbo]")
@click.option("--reference", metavar="METHOD", help="that costs or times are relative to")
@click.option("--target", metavar="VALUE", help="test accuracy, for fedlga and fedcompass")
@click.option("--json", "as_json", is_flag=True, help="a JSON array of objects, nothing else")
def summary(
    folder: str, paper: str, reference: str | None, target: str | None, as_json: bool
) -> None:
    """Summarise a results folder as one of the papers does.

    fedgbo: the maximum and the cost to reach it and the reference's. fedlga: rounds to the target.
    ghbm: the mean of the last 100 rounds, and the cost to reach the reference's. fedcompass: the
    first virtual time at the target, relative to the reference's.
    """
    with told_in_one_line():
        if paper not in PAPERS:
            raise ValueError(unknown("paper", paper, PAPERS))
        needs_target, default = PAPERS[paper]
        if needs_target and target is None:
            raise ValueError(f"paper={paper} needs target; give --target 0.9, say")
        rows = results.read_metrics(folder)
        goal = parse_value(options(Settings)["target"], target) if target else None
        lines = summaries.of_paper(rows, paper, reference or default, goal)
    told = [_plain(line) for line in lines]
    if as_json:
        click.echo(json.dumps(told))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in told[0]:
        table.add_column(name.replace("_", " "), no_wrap=True)
    for values in told:
        table.add_row(*map(_short, values.values()))
    Console(width=1000).print(table)


def _plain(value: Any) -> Any:
    """Named tuples as dicts, also inside."""
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return value


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return " / ".join(map(_short, value.values()))
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


@cli.command("list")
@click.argument("what", metavar="|".join(REGISTRIES))
@click.option("--json", "as_json", is_flag=True, help="a JSON array of names, nothing else")
def list_names(what: str, as_json: bool) -> None:
    """List the algorithms, datasets, models, partitions and so on that there are."""
    if what not in REGISTRIES:
        raise click.UsageError(unknown("list", what, REGISTRIES))
    registry: Registry = REGISTRIES[what]
    if as_json:
        click.echo(json.dumps(sorted(registry)))
        return
    table = Table("name", "what", "options")
    for name in sorted(registry):
        known = [o for o in options(registry[name]).values() if o.kind is not object]
        own = "\n".join(f"{option.name}: {_told(option)}" for option in known)
        table.add_row(name, *map(escape, [(registry[name].__doc__ or "").split("\n")[0], own]))
    Console().print(table)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line; what a user got wrong is one line on standard error, and exit 2."""
    try:
        cli.main(arguments, prog_name="fedjax-algos", standalone_mode=False)
    except click.exceptions.NoSuchOption as error:
        names = [flag for p in error.ctx.command.params for flag in p.opts] if error.ctx else []
        _fail(unknown("option", error.option_name, names))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.UsageError as error:
        _fail(error.format_message())
    except click.exceptions.Abort:
        _fail("interrupted", code=130)


def _fail(message: str, code: int = 2) -> None:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(code)
