"""Implements `list`, which lists registries."""

import importlib
import json
from typing import Any

import click

from fedjax_algos.base.reprs import printable
from fedjax_algos.cli.options import range_of, text_options
from fedjax_algos.core.options import unknown
from fedjax_algos.core.registry import Registry

REGISTRIES = {  # the package or the module of each
    "algorithms": "algorithms", "client_optimizers": "core", "datasets": "data",
    "losses": "models", "metrics": "models", "models": "models", "partitions": "data",
    "rate_schedules": "participation", "planners": "asynchrony", "system_models": "asynchrony",
    "samplers": "participation", "failures": "participation", "local_works": "participation",
    "trackers": "runs.studies.trackers", "wrappers": "wrappers",
}  # fmt: skip


def registry_of(what: str) -> Registry[Any]:
    """Imports a registry by name, with everything registered in it."""
    return getattr(importlib.import_module(f"fedjax_algos.{REGISTRIES[what]}"), what)


def list_registry(what: str, as_json: bool) -> None:
    """Prints the names of a registry, with their descriptions and options."""
    if what not in REGISTRIES:
        raise click.UsageError(unknown("list", what, REGISTRIES))
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    registry = registry_of(what)
    if as_json:
        click.echo(json.dumps(sorted(registry)))
        return
    table = Table(Column("name", no_wrap=True), "description", "options")
    for name in sorted(registry):
        own = "\n".join(f"{o.name}: {range_of(o)}" for o in text_options(registry[name]))
        title = (registry[name].__doc__ or "").split("\n")[0]
        table.add_row(*map(Text, [printable(name), printable(title), own]))
    Console().print(table)
