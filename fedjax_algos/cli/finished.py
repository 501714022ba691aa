"""Implements `table`, `plot` and `report`, which show finished results."""

from pathlib import Path
from typing import Any

import click

from fedjax_algos.analysis import pictures
from fedjax_algos.analysis.labels import SEPARATOR, check_names, file_name
from fedjax_algos.analysis.rows import rows_by_run, within_budget
from fedjax_algos.analysis.statistics import check_target_metric, metric_column
from fedjax_algos.analysis.summary import summarise, summarise_pairs
from fedjax_algos.analysis.tables import FORMATS, RECORD_FORMATS, choose_columns, records
from fedjax_algos.base.errors import prefix_errors, require
from fedjax_algos.base.files import write_text, written
from fedjax_algos.base.reprs import printable
from fedjax_algos.cli.config_file import stored_settings
from fedjax_algos.cli.method_tables import (
    Goal,
    best_first,
    clients_table,
    goal_of,
    method_tables,
    non_finite_lines,
)
from fedjax_algos.cli.options import known_as, labels_of, new_file, values_of
from fedjax_algos.core import Row
from fedjax_algos.core.options import options
from fedjax_algos.runs import results
from fedjax_algos.runs.report.page import make_report
from fedjax_algos.runs.studies.folder_content import read_configuration, read_rows
from fedjax_algos.runs.studies.settings import Settings

_FIX = "name a folder that compare, run or sweep wrote"
_DEFAULTS = {"metric": "test_accuracy", "x": "round"}  # for the name of the file


def show_table(folders: tuple[str, ...], label: tuple[str, ...], values: dict[str, Any]) -> None:
    """Prints or writes results folders as a table."""
    form, columns, out = values["format"] or "text", values["columns"], values["out"]
    path = None if out is None else new_file(out)

    def warn(text: str) -> None:
        click.echo(f"warning: {printable(text)}", err=True)

    rows = results.read_folders(folders, on_missing=warn)
    configurations = [read_configuration(Path(folder)) or {} for folder in folders]
    target = values_of({"target": options(Settings)["target"]}, values).get("target")
    goal_options = target, values["target_metric"], values["reference"], values["at"]
    goal = goal_of_folders(folders, configurations, *goal_options)
    is_sweep = any("grid" in configuration for configuration in configurations)
    if is_sweep and len(set(results.comparison_names(folders))) == 1:
        rows = best_first(rows, goal.metric)
    names = None if columns is None else columns.split(",")
    labels = labels_of(label, rows)
    if form in RECORD_FORMATS:
        require(not labels, f"label is given, but {form} has the labels of the runs; leave it out")
        text = RECORD_FORMATS[form](choose_records(_records(rows, goal, is_sweep), names))
    else:
        tables = method_tables(rows, goal, is_sweep=is_sweep, labels=labels)
        text = FORMATS[form](tables if names is None else choose_columns(tables, names))
    if path is None:
        return click.echo(text, nl=False)
    write_text(path, text)
    click.echo(printable(path))


def choose_records(records: list[dict[str, Any]], names: list[str] | None) -> list[dict[str, Any]]:
    """Returns records with their label and the chosen columns."""
    if names is None:
        return records
    check_names("columns", names, [name for name in records[0] if name != "label"])
    return [{name: record[name] for name in ("label", *names)} for record in records]


def goal_of_folders(
    folders: tuple[str, ...],
    configurations: list[dict[str, Any]],
    target: float | None,
    target_metric: str | None,
    reference: str | None,
    budget: str | None = None,
) -> Goal:
    """Returns the goal from the arguments, else from what all folders share."""
    names = ("target", "target_metric", "reference", "budget")
    pairs = zip(folders, configurations, strict=True)
    stored = [stored_settings(Path(folder), content, names) for folder, content in pairs]
    sets = {name: {getattr(settings, name) for settings in stored} for name in names}
    shared = {name: values.pop() if len(values) == 1 else None for name, values in sets.items()}
    metric = target_metric or shared["target_metric"] or "accuracy"
    check_target_metric(metric)
    if target is None and metric == shared["target_metric"]:
        target = shared["target"]
    if reference is None and shared["reference"] is not None:
        first, *others = results.comparison_names(folders)
        several = len({first, *others}) > 1
        reference = f"{first}{SEPARATOR}" * several + shared["reference"]
    return Goal(target, reference, metric_column(metric), budget or shared["budget"])


def _records(rows: list[Row], goal: Goal, is_sweep) -> list[dict]:
    """Returns the records of methods and of their differences from the reference."""
    rows, _ = within_budget(rows, goal.budget)
    methods = records(summarise(rows, goal.target, goal.reference, metric=goal.metric))
    pairs = records(summarise_pairs(rows, goal.target, goal.reference, metric=goal.metric))
    if not pairs or (is_sweep and goal.reference is None):  # as in `method_tables`
        return methods
    by_label = {pair["label"]: pair for pair in pairs}
    empty = dict.fromkeys(pairs[0]) | {"reference": goal.reference or methods[0]["label"]}
    return [each | empty | by_label.get(each["label"], {}) | each for each in methods]


def draw(folders: tuple[str, ...], label: tuple[str, ...], values: dict[str, str | None]) -> None:
    """Draws the metrics of results folders."""
    texts = {name: text for name, text in values.items() if name != "out" and text is not None}
    apart = texts.get("facet") == "results"
    rows = results.read_folders(folders, apart=apart)
    seeds = {frozenset(by_seed) for by_seed in rows_by_run(rows).values()}
    text = "the results folders have different seeds, so their means are not comparable; add "
    require(apart or 1 in (len(folders), len(seeds)), f"{text}--facet results, for a panel each")
    options: dict[str, Any] = {**texts, "labels": labels_of(label, rows)}
    for name in {"metric", "x"} & texts.keys():
        is_one = texts[name] in rows[0]  # a column's name may contain commas
        options[name] = [texts[name]] if is_one else texts[name].split(",")
    if "methods" in texts:
        text, known = texts["methods"], dict.fromkeys(str(row["method"]) for row in rows)
        names = [text] if known_as(text, known) else text.split(",")
        options["methods"] = [each for name in names for each in known_as(name, known) or [name]]
    for name in {"x_limits", "y_limits", "size"} & texts.keys():
        parts = texts[name].split("x" if name == "size" else ",")  # a limit may be left out
        form = "WIDTHxHEIGHT, such as 3.5x2.6" if name == "size" else "A,B, or A, or ,B"
        with prefix_errors(f"{name}={texts[name]!r} is not {form}: "):
            options[name] = tuple(float(part) if part or not any(parts) else None for part in parts)
    name = "-by-".join("-".join(options.get(k, [v])) for k, v in _DEFAULTS.items())
    default, out = Path(folders[0], f"{file_name(name)}.png"), values["out"]
    path = new_file(default if out is None else out)
    with written(path) as beside:
        notes = pictures.plot_metric(rows, beside, **options).notes
    for note in notes:
        click.echo(printable(note), err=True)
    click.echo(printable(path))


def write_report(folder: str, out: str | None) -> None:
    """Writes the report of a results folder."""
    rows, place = results.read_metrics(folder), Path(folder)
    configuration = read_configuration(place)
    if configuration is None:
        raise ValueError(f"{folder!r} has no config.json; {_FIX}")
    path = new_file(place / "report.html" if out is None else out)
    settings, is_sweep = stored_settings(place, configuration), "grid" in configuration
    tables = method_tables(rows, goal_of(settings), is_sweep=is_sweep)
    if settings.evaluate_clients != "none":
        rows_of_clients = read_rows(place / "clients.csv")
        complete = {"examples", "accuracy"} <= set.intersection(*map(set, rows_of_clients))
        require(complete, f"{place / 'clients.csv'} has no accuracy of each client; {_FIX}")
        of_clients = clients_table(rows_of_clients, settings)
        tables = [*tables, of_clients._replace(title="Each client's own model")]
    report = make_report(place, rows, configuration, settings, tables, non_finite_lines(rows))
    write_text(path, report)
    click.echo(printable(path))
