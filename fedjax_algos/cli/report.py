"""The command `report`: a results folder as one HTML file."""

from pathlib import Path
from typing import Any

import click

from fedjax_algos.analysis.statistics import check_target_metric
from fedjax_algos.cli.method_tables import (
    clients_table,
    goal_of,
    method_tables,
    non_finite_lines,
)  # fmt: skip
from fedjax_algos.cli.options import Command, new_file
from fedjax_algos.core import Row
from fedjax_algos.core.files import write_text
from fedjax_algos.core.options import check_value, options
from fedjax_algos.core.reprs import printable
from fedjax_algos.runs import results
from fedjax_algos.runs.report.page import ReportTables, make_report
from fedjax_algos.runs.saving.results_folder import read_configuration, read_rows
from fedjax_algos.runs.settings import Settings


@click.command(cls=Command)
@click.argument("folder", metavar="RESULTS")
@click.option("--out", metavar="FILE", help="page [report.html in the folder]")
def report(folder: str, out: str | None) -> None:
    """Write a report of a results folder as one HTML file, which needs no network.

    It has the settings, the table of methods, figures that zoom, the partition, timelines on the
    virtual clock, what diverged, the environment, and how to repeat it.
    """
    rows = results.read_metrics(folder)
    place = Path(folder)
    configuration = read_configuration(place)
    if configuration is None:
        raise ValueError(
            f"{folder!r} has no config.json; name a folder that compare, run or sweep wrote"
        )
    path = new_file(out, place / "report.html")
    settings = _settings(place, configuration)
    tables = _tables(place, rows, "grid" in configuration, settings)
    write_text(path, make_report(place, rows, configuration, settings, tables))
    click.echo(printable(path))


def _settings(folder: Path, configuration: dict[str, Any]) -> Settings:
    """The settings of a folder; those that this version does not know are left out."""
    known = options(Settings)
    given = {name: value for name, value in configuration["settings"].items() if name in known}
    try:
        settings = Settings(**{**given, "seeds": tuple(given["seeds"])})
        for option in known.values():
            check_value(option, getattr(settings, option.name), "")
        check_target_metric(settings.target_metric)
    except ValueError as error:
        raise ValueError(f"{str(folder / 'config.json')!r}: {error}") from error
    return settings


def _tables(folder: Path, rows: list[Row], is_sweep: bool, settings: Settings) -> ReportTables:
    methods = method_tables(rows, *goal_of(settings), is_sweep=is_sweep)
    clients = None
    if settings.evaluate_clients != "none":
        rows_of_clients = read_rows(folder / "clients.csv")
        if not {"examples", "accuracy"} <= set.intersection(*map(set, rows_of_clients)):
            raise ValueError(
                f"{folder / 'clients.csv'} has no accuracy of each client; name a folder that "
                "compare or run wrote"
            )
        clients = clients_table(results.summarise_client_rows(rows_of_clients), settings)
    return ReportTables(methods, clients, non_finite_lines(rows))
