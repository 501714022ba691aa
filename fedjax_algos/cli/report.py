"""What `report` does: it shows a results folder as one HTML file."""

from pathlib import Path

import click

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import write_text
from fedjax_algos.base.reprs import printable
from fedjax_algos.cli import method_tables
from fedjax_algos.cli.config_file import stored_settings
from fedjax_algos.cli.options import new_file
from fedjax_algos.core import Row
from fedjax_algos.runs import results
from fedjax_algos.runs.report.page import ReportTables, make_report
from fedjax_algos.runs.studies.results_folder import read_configuration, read_rows
from fedjax_algos.runs.studies.settings import Settings


def write_report(folder: str, out: str | None) -> None:
    """Writes the report of a results folder."""
    rows = results.read_metrics(folder)
    place = Path(folder)
    configuration = read_configuration(place)
    fix = "name a folder that compare, run or sweep wrote"
    if configuration is None:
        raise ValueError(f"{folder!r} has no config.json; {fix}")
    path = new_file(out, place / "report.html")
    settings = stored_settings(place, configuration)
    tables = _tables(place, rows, "grid" in configuration, settings)
    write_text(path, make_report(place, rows, configuration, settings, tables))
    click.echo(printable(path))


def _tables(folder: Path, rows: list[Row], is_sweep: bool, settings: Settings) -> ReportTables:
    goal = method_tables.goal_of(settings)
    methods = method_tables.method_tables(rows, *goal, is_sweep=is_sweep)
    clients = None
    if settings.evaluate_clients != "none":
        rows_of_clients = read_rows(folder / "clients.csv")
        complete = {"examples", "accuracy"} <= set.intersection(*map(set, rows_of_clients))
        text = f"{folder / 'clients.csv'} has no accuracy of each client"
        require(complete, f"{text}; name a folder that compare or run wrote")
        clients = method_tables.clients_table(rows_of_clients, settings)
    return ReportTables(methods, clients, method_tables.non_finite_lines(rows))
