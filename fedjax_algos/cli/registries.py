"""The command that lists registries: `list`."""

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import planners, system_models
from fedjax_algos.base.reprs import printable
from fedjax_algos.cli.options import Command, range_of, text_options
from fedjax_algos.core.optimizers import client_optimizers
from fedjax_algos.core.options import unknown
from fedjax_algos.core.registry import Registry
from fedjax_algos.data import datasets, partitions
from fedjax_algos.models import losses, metrics, models
from fedjax_algos.participation import failures, local_works, rate_schedules, samplers
from fedjax_algos.runs.studies.trackers import trackers
from fedjax_algos.wrappers import wrappers

REGISTRIES: dict[str, Registry[Any]] = {
    "algorithms": algorithms, "client_optimizers": client_optimizers, "datasets": datasets,
    "losses": losses, "metrics": metrics, "models": models, "partitions": partitions,
    "rate_schedules": rate_schedules, "planners": planners, "system_models": system_models,
    "samplers": samplers, "failures": failures, "local_works": local_works, "trackers": trackers,
    "wrappers": wrappers,
}  # fmt: skip


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
