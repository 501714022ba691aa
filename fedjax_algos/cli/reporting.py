"""The commands that read results and registries: `plot` and `list`."""

import json
import re
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis import plots
from fedjax_algos.asynchrony import schedules, system_models
from fedjax_algos.cli.options import Command, check_path, range_of, text_options
from fedjax_algos.core.optimizers import client_optimizers
from fedjax_algos.core.options import unknown
from fedjax_algos.core.registry import Registry
from fedjax_algos.core.texts import printable
from fedjax_algos.data import datasets, partitions
from fedjax_algos.models import losses, models
from fedjax_algos.runs import results
from fedjax_algos.runs.saving.files import writing, written
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
