"""The commands that read results and registries: `plot`, `summary` and `list`."""

import json
import math
import re
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis import papers, plots
from fedjax_algos.asynchrony import schedules, system_models
from fedjax_algos.cli.options import Command, check_path, range_of, text_options
from fedjax_algos.cli.tables import plain_table
from fedjax_algos.core.optimizers import client_optimizers
from fedjax_algos.core.options import options, parse_value, unknown
from fedjax_algos.core.registry import Registry
from fedjax_algos.core.texts import printable
from fedjax_algos.data import datasets, partitions
from fedjax_algos.models import losses, models
from fedjax_algos.runs import results
from fedjax_algos.runs.saving.files import writing, written
from fedjax_algos.runs.settings import Settings
from fedjax_algos.runs.tracking import trackers
from fedjax_algos.schedules import local_works, rate_schedules, samplers

REGISTRIES: dict[str, Registry[Any]] = {
    "algorithms": algorithms,
    "client_optimizers": client_optimizers,
    "datasets": datasets,
    "losses": losses,
    "models": models,
    "partitions": partitions,
    "rate_schedules": rate_schedules,
    "schedules": schedules,
    "system_models": system_models,
    "samplers": samplers,
    "local_works": local_works,
    "trackers": trackers,
}


@click.command(cls=Command)
@click.argument("folders", nargs=-1, metavar="RESULTS...")
@click.option("--metric", default="test_accuracy", help="column of metrics.csv [test_accuracy]")
@click.option("--x", "axis", default="round", help=f"{', '.join(plots.AXES)} [round]")
@click.option("--out", metavar="FILE", help="picture [METRIC-by-X.png in the first folder]")
def plot(folders: tuple[str, ...], metric: str, axis: str, out: str | None) -> None:
    """Plot a metric of one or more results folders in one picture."""
    if not folders:
        raise ValueError("no results folder is given; name one or more, such as results/compare")
    if axis not in plots.AXES:
        raise ValueError(unknown("axis", axis, plots.AXES))
    rows = []
    for folder in folders:
        prefix = f"{Path(folder).name}: " if len(folders) > 1 else ""
        for row in results.read_metrics(folder):
            rows.append(row | {"method": prefix + row["method"]})
    check_path("out", out)
    name = re.sub(r"[^\w.=+-]+", "-", metric)
    path = Path(folders[0], f"{name}-by-{axis}.png") if out is None else Path(out)
    with writing(path):
        if path.exists():
            raise ValueError(f"out={str(path)!r} exists; name another file or remove it")
    with written(path) as beside:
        plots.plot_metric(rows, beside, metric=metric, x=axis)
    click.echo(printable(path))


@click.command(cls=Command)
@click.argument("folder", metavar="RESULTS")
@click.option("--paper", default="fedgbo", help=f"{', '.join(papers.PAPERS)} [fedgbo]")
@click.option("--reference", metavar="METHOD", help="method that costs or times are relative to")
@click.option("--target", metavar="VALUE", help="test accuracy to reach, for fedlga and fedcompass")
@click.option("--json", "as_json", is_flag=True, help="print a JSON array of objects")
def summary(
    folder: str, paper: str, reference: str | None, target: str | None, as_json: bool
) -> None:
    """Summarise a results folder as one of the papers does.

    fedgbo: the best accuracy, and the costs to reach it and the reference's. fedlga: rounds to the
    target. ghbm: the mean accuracy of the last 100 rounds, and the costs to reach the reference's.
    fedcompass: simulated seconds to the target, relative to the reference's.
    """
    rows = results.read_metrics(folder)
    goal = None if target is None else parse_value(options(Settings)["target"], target)
    lines = papers.of_paper(rows, paper, reference, goal)
    entries = [_plain(line) for line in lines]
    if as_json:
        click.echo(json.dumps(entries, allow_nan=False))
        return
    headings = [name.replace("_", " ") for name in entries[0]]
    cells = [[_short(value) for value in entry.values()] for entry in entries]
    Console(width=1000).print(plain_table(headings, cells, justify="left"))


def _plain(value: Any) -> Any:
    """Named tuples as dictionaries, nested ones included, and None for numbers that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return value


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return " / ".join(map(_short, value.values()))
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


@click.command("list", cls=Command)
@click.argument("what", metavar="|".join(REGISTRIES))
@click.option("--json", "as_json", is_flag=True, help="print a JSON array of names")
def list_names(what: str, as_json: bool) -> None:
    """List the registered algorithms, datasets, models, partitions and so on."""
    if what not in REGISTRIES:
        raise click.UsageError(unknown("list", what, REGISTRIES))
    registry = REGISTRIES[what]
    if as_json:
        click.echo(json.dumps(sorted(registry)))
        return
    table = Table(Column("name", no_wrap=True), "description", "options")
    for name in sorted(registry):
        own = "\n".join(f"{o.name}: {range_of(o)}" for o in text_options(registry[name]))
        title = (registry[name].__doc__ or "").split("\n")[0]
        table.add_row(*map(Text, [printable(name), printable(title), own]))
    Console().print(table)
