"""Declares the commands: their arguments, options and help.

This file and its imports do not need JAX. A command imports the file that does its work when it is
called.
"""

import importlib
import json
from typing import Any

import click

from fedjax_algos.analysis.pictures.axes import AXES, PICTURE_STYLES
from fedjax_algos.analysis.pictures.curves import BANDS
from fedjax_algos.analysis.pictures.metrics import LOG_AXES
from fedjax_algos.base.limits import MAX_INT32, MAX_SEED
from fedjax_algos.base.reprs import printable
from fedjax_algos.cli import options
from fedjax_algos.core.registry import Registry

_COMPARE_HELP = {
    "config": "settings and methods: a TOML file, a run's config.json, or standard_cifar100",
    "label": "another text for a method in the table and the figure; may be repeated",
}
_OF_COSTS = (
    "dataset", "model", "loss", "compute_dtype", "partition", "clients", "cohort", "work",
    "local_steps", "local_epochs", "batch_size", "batches", "client_optimizer", "weight_decay",
    "clip_norm",
)  # fmt: skip
_SWEEP_HELP = {
    "grid": "values; may be repeated",
    "runs_per_device": "runs computed at once on a device [1 on a CPU, else what --memory allows]",
    "memory": "bytes for the states of a call's runs [2**30, or more if those at once need it]",
}
_NOT_OF_SWEEP = ("evaluate_clients", "evaluate_clients_at", "held_out", "personal_steps", "budget")
# --validation sets what clients hold out; trackers would not label rows as held-out results
_NOT_OF_TUNE = (*_NOT_OF_SWEEP, "track")
_TUNE_HELP = {
    "grid": "[ALGORITHM:]OPTION=VALUE,VALUE,... or OPTION=LOW..HIGH; may be repeated",
    "validation": "share of each client's examples to hold out [0.2]",
    "trials": "settings to draw for each method [the whole grid]",
    "halving": "keep 1/FACTOR of the settings after each stage; the next is FACTOR times as long",
}
_TABLE_HELP = {
    "format": "[text]",
    "at": "COLUMN=NUMBER, such as upload_bytes=5e5: show the quality at that cost [the runs' end]",
    "target": "quality to reach [the run's, else the reference's best]",
    "target_metric": "the quality: a metric that the runs measured [the run's, else accuracy]",
    "reference": "method to compare the others with [the run's, else the first]",
    "label": "another text for a method; may be repeated [as the papers spell it]",
    "columns": "the columns to show, in this order [all]",
    "out": "file to write [standard output]",
}
_PLOT_HELP = {
    "metric": "column of metrics.csv; A,B: a panel for each [test_accuracy]",
    "x": f"{', '.join(AXES)}; A,B: a panel for each [round]",
    "facet": "a panel for each",
    "methods": "LABEL,LABEL: the methods to draw, in this order [all]",
    "band": f"{', '.join(BANDS)} [interval from five seeds on, else range]",
    "log": f"logarithmic axes: {', '.join(LOG_AXES)} [none]",
    "x_limits": "A,B in bytes, FLOPs or seconds if the column is; A, or ,B for one",
    "y_limits": "likewise [fit the curves after the first tenth]",
    "label": "OLD=NEW: another text for a method or a results folder; may be repeated",
    "title": "[the number of seeds and the band]; '' for none",
    "x_label": "[the column and its unit]",
    "y_label": "[the column and its unit]",
    "size": "WIDTHxHEIGHT in inches, such as 7x3",
    "style": f"{' or '.join(PICTURE_STYLES)}: as wide as one or two columns, with a Times font",
    "out": "picture: .png, .pdf or .svg [METRIC-by-X.png in the first folder]",
}
REGISTRIES = {  # the package or module of each registry
    "algorithms": "algorithms", "client_optimizers": "core", "datasets": "data",
    "losses": "models", "metrics": "models", "models": "models", "partitions": "data",
    "rate_schedules": "participation", "planners": "asynchrony", "system_models": "asynchrony",
    "samplers": "participation", "shifts": "data", "failures": "participation",
    "local_works": "participation", "trackers": "runs.studies.trackers", "wrappers": "wrappers",
}  # fmt: skip


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="fedjax_algos")
def cli() -> None:
    """Federated learning, simulated in JAX."""


cli.command_class = options.Command


@cli.command()
@click.argument("methods", nargs=-1)
@options.add_options(_COMPARE_HELP)
@options.shared_options(options.SEEDS["compare"])
def compare(methods: tuple[str, ...], **values: Any) -> None:
    """Compare METHODS, by default FedAvg, FedProx and FedGBO with three optimisers.

    \b
    fedjax-algos compare fedavg scaffold ghbm:tau=10 --rounds 200
    fedjax-algos compare fedavg fedavg+topk:fraction=0.01,feedback=ef
    fedjax-algos compare fedasync fedbuff fedcompass --seconds 100

    A method is an algorithm with its options: fedprox:mu=0.1,client_learning_rate=0.3. The
    algorithm may be your own function: my_file.py:fedinit:beta=0.1 or package.module:fedinit.
    Wrappers follow after a plus, and on the virtual clock (--seconds) a planner after an @:
    fedprox:mu=0.1+identity, fedbuff@buffered:size=5.

    Costs are counted until the reference's best accuracy (or --target-metric) is reached, unless
    --target is given.

    A file has the options as keys (local_steps = 5) and methods = ["fedavg", "fedprox:mu=0.1"].
    The command line replaces options and methods of the file.
    """
    from fedjax_algos.cli import training

    training.compare(methods, values)


class MethodCommands(click.Group):
    """A group that makes the command of a method when it is used."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Click's hook; raises UsageError for a wrong spec."""
        from fedjax_algos.cli.training import method_command

        return method_command(cmd_name)


@cli.group(cls=MethodCommands, subcommand_metavar="METHOD [OPTIONS]")
def run() -> None:
    """Run one METHOD; `run METHOD --help` lists its algorithm's options.

    \b
    fedjax-algos run fedavg --dataset synthetic --partition natural --clients 30
    fedjax-algos run fedprox --mu 0.1 --local-epochs 2
    fedjax-algos run scaffold+qsgd:levels=4 --seeds 3

    METHOD is an algorithm, see `list algorithms`, or your own function: my_file.py:fedinit or
    package.module:fedinit.
    """


@cli.command()
@click.argument("method")
@options.add_options(_SWEEP_HELP)
@options.shared_options(options.SEEDS["sweep"], _NOT_OF_SWEEP)
def sweep(method: str, grid: tuple[str, ...], **values: Any) -> None:
    """Run METHOD on every setting of a grid and every seed.

    \b
    fedjax-algos sweep fedavg --grid client_learning_rate=0.01,0.1,1
    fedjax-algos sweep fedprox --grid mu=0.001,0.01,0.1 --grid client_learning_rate=0.1,0.3
    fedjax-algos sweep fedgbo --grid optimizer=sgdm,adam --seeds 5

    Two grids of three and two values are six settings. A grid may contain the method's options,
    client_learning_rate, and settings of the local work such as local_steps. Settings that differ
    only in real numbers share a compiled program. METHOD may be your own function:
    my_file.py:fedinit --grid beta=0.1,0.2.
    """
    from fedjax_algos.cli import training

    training.sweep(method, grid, values)


@cli.command()
@click.argument("methods", nargs=-1, required=True)
@options.add_options(_TUNE_HELP)
@options.shared_options(options.SEEDS["tune"], _NOT_OF_TUNE)
def tune(methods: tuple[str, ...], grid: tuple[str, ...], **values: Any) -> None:
    """Find good settings of METHODS, with the same budget for each, and without test data.

    \b
    fedjax-algos tune fedavg scaffold --grid client_learning_rate=0.03,0.1,0.3
    fedjax-algos tune fedavg --grid client_learning_rate=0.01..1 --trials 20
    fedjax-algos tune fedavg fedavgm --grid client_learning_rate=0.03,0.1,0.3,1 --halving 2

    An interval LOW..HIGH is drawn on a logarithmic scale. Each client holds out some of its
    training examples; the score of a setting is the mean accuracy (or --target-metric) on them. The
    best settings are written to tuned.toml, which compare --config reads.
    """
    from fedjax_algos.cli.tune import tune_methods

    tune_methods(methods, grid, values)


@cli.command()
@click.argument("methods", nargs=-1)
@options.add_options({"config": _COMPARE_HELP["config"]} | options.settings_texts(_OF_COSTS))
def costs(methods: tuple[str, ...], **values: str | None) -> None:
    """Show what METHODS cost in a round, before anything is trained.

    Costs are the bytes that a client receives and sends, the operations of its local update, the
    memory that it needs, and the server's state. METHODS are named as in `compare`. The file
    that --config names may give them instead.
    """
    from fedjax_algos.cli.costs import show_costs

    show_costs(methods, values)


@cli.command()
@click.argument("source", metavar="SOURCE")
@click.argument("folder", metavar="FOLDER")
@click.option("--partition", metavar="NAME", help="divides a data set in memory [natural]")
@click.option("--clients", type=click.IntRange(1, MAX_INT32), help="clients of the partition")
@click.option("--seed", type=click.IntRange(0, MAX_SEED), help="seed of the partition [0]")
def pack(source: str, folder: str, **values: Any) -> None:
    """Write the examples of all clients into a folder, for populations larger than the memory.

    SOURCE is a data set, see `list datasets`, or your own function that returns a data set or a
    ClientSource: my_file.py:my_source. `--dataset packed:FOLDER --partition natural` reads the
    folder. After an interruption, the same command goes on.
    """
    from fedjax_algos.cli.pack import pack_clients

    pack_clients(source, folder, **values)


@cli.command()
@click.argument("folders", nargs=-1, metavar="RESULTS...")
@options.add_options(_TABLE_HELP)
def table(folders: tuple[str, ...], label: tuple[str, ...], **values: str | None) -> None:
    """Show one or more results folders as a table, with the columns of compare.

    The target, its metric and the reference of the runs hold here too, if all folders share them.

    text, markdown and latex have units and notes on the columns. They mark the best method and the
    methods that do not differ significantly from it. csv and json have plain numbers: shares from 0
    to 1, bytes, operations and seconds; --columns chooses among the columns of the format.
    """
    from fedjax_algos.cli.finished import show_table

    show_table(folders, label, values)


@cli.command()
@click.argument("folders", nargs=-1, metavar="RESULTS...")
@options.add_options(_PLOT_HELP)
def plot(folders: tuple[str, ...], label: tuple[str, ...], **values: str | None) -> None:
    """Draw metrics of one or more results folders, with one style for each method.

    Several folders share one panel, with the folder's name before each method; with --facet
    results, each has a panel. The command prints what the figure does not show.
    """
    from fedjax_algos.cli.finished import draw

    draw(folders, label, values)


@cli.command()
@click.argument("folder", metavar="RESULTS")
@click.option("--out", metavar="FILE", help="page [report.html in the folder]")
def report(folder: str, out: str | None) -> None:
    """Write a report of a results folder as one HTML file, which needs no network.

    It has the settings, the table of methods, figures that zoom, the partition, timelines on the
    virtual clock, diverged runs, the environment, and the command that repeats it.
    """
    from fedjax_algos.cli.finished import write_report

    write_report(folder, out)


@cli.command("list", help=f"List the names in one of: {', '.join(REGISTRIES)}.")
@click.argument("what", type=click.Choice([*REGISTRIES]), metavar="WHAT")
@click.option("--json", "as_json", is_flag=True, help="print descriptions and options as JSON")
def list_names(what: str, as_json: bool) -> None:
    """Lists a registry."""
    registry = registry_of(what)
    if as_json:
        described = {name: options.described(registry[name]) for name in sorted(registry)}
        return click.echo(json.dumps(described))
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(Column("name", no_wrap=True), "description", "options")
    for name in sorted(registry):
        known = options.text_options(registry[name])
        lines = "\n".join(f"{option.name}: {options.range_of(option)}" for option in known)
        title = (registry[name].__doc__ or "").split("\n")[0]
        table.add_row(*map(Text, [printable(name), printable(title), lines]))
    Console().print(table)


def registry_of(what: str) -> Registry[Any]:
    """Imports a registry by name, with everything registered in it."""
    return getattr(importlib.import_module(f"fedjax_algos.{REGISTRIES[what]}"), what)
