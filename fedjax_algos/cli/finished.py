"""Implements `table`, `plot` and `report`, which show finished results."""

from pathlib import Path
from typing import Any

import click

from fedjax_algos.analysis import pictures
from fedjax_algos.analysis.labels import SEPARATOR, check_names, file_name
from fedjax_algos.analysis.rows import rows_by_run, within_budget
from fedjax_algos.analysis.statistics import check_target_metric, metric_column, records
from fedjax_algos.analysis.summary import summarise, summarise_pairs
from fedjax_algos.analysis.tables import FORMATS, RECORD_FORMATS, ResultTable, choose_columns
from fedjax_algos.base.errors import require
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
from fedjax_algos.cli.options import FACETS, known_as, labels_of, new_file, values_of
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice, options
from fedjax_algos.runs import results
from fedjax_algos.runs.report.page import make_report
from fedjax_algos.runs.studies.results_folder import read_configuration, read_rows
from fedjax_algos.runs.studies.settings import Settings

_DEFAULTS = {"metric": "test_accuracy", "x": "round"}  # for the name of the file


def show_table(
    folders: tuple[str, ...], label: tuple[str, ...], values: dict[str, str | None]
) -> None:
    """Prints or writes results folders as a table."""

    def say(text: str) -> None:
        click.echo(f"warning: {printable(text)}", err=True)

    form, columns = "text" if values["format"] is None else values["format"], values["columns"]
    check_choice("format", form, [*FORMATS, *RECORD_FORMATS])
    path = None if values["out"] is None else new_file(values["out"])
    rows = results.read_folders(folders, on_missing=say)
    configurations = [read_configuration(Path(folder)) or {} for folder in folders]
    target = values_of({"target": options(Settings)["target"]}, values).get("target")
    given = target, values["target_metric"], values["reference"], values["at"]
    goal = goal_of_folders(folders, configurations, *given)
    is_sweep = any("grid" in configuration for configuration in configurations)
    if is_sweep and len(set(results.comparison_names(folders))) == 1:
        rows = best_first(rows, goal.metric)
    names = None if columns is None else columns.split(",")
    labels = labels_of(label, rows)
    if form in RECORD_FORMATS:
        if labels:
            raise ValueError(f"label is given, but {form} has the labels of the runs; leave it out")
        text = RECORD_FORMATS[form](choose_records(_records(rows, goal, is_sweep), names))
    else:
        tables = method_tables(rows, *goal, is_sweep=is_sweep, labels=labels)
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
    """Returns the goal from what is given, else from what all folders share."""
    names = ("target", "target_metric", "reference", "budget")
    pairs = zip(folders, configurations, strict=True)
    stored = [stored_settings(Path(folder), content, names) for folder, content in pairs]

    def shared(name: str) -> Any:
        """Returns the value of a setting if all folders have the same, else None."""
        values = {getattr(own, name) for own in stored}
        return values.pop() if len(values) == 1 else None

    own = shared("target_metric")
    metric = target_metric or own or "accuracy"
    check_target_metric(metric)
    if target is None and metric == own:
        target = shared("target")
    if reference is None:
        reference = shared("reference")
        comparisons = results.comparison_names(folders)
        if reference is not None and len(set(comparisons)) > 1:
            reference = f"{comparisons[0]}{SEPARATOR}{reference}"
    return Goal(target, reference, metric_column(metric), budget or shared("budget"))


def _records(rows: list[Row], goal: Goal, is_sweep) -> list[dict]:
    target, reference, metric, budget = goal
    rows, _ = within_budget(rows, budget)
    own = records(summarise(rows, target, reference, metric=metric))
    if is_sweep and reference is None:  # as in `method_tables`
        return own
    lines = records(summarise_pairs(rows, target, reference, metric=metric))
    pairs = {each["label"]: each for each in lines}
    without = dict.fromkeys(next(iter(pairs.values()), {}))  # the reference has no pair
    without |= {"reference": reference or own[0]["label"]} if pairs else {}
    return [each | without | pairs.get(each["label"], {}) | each for each in own]


def draw(folders: tuple[str, ...], label: tuple[str, ...], values: dict[str, str | None]) -> None:
    """Draws the metrics of results folders."""
    facet = values["facet"]
    if facet is not None:
        check_choice("facet", facet, FACETS)
    rows = results.read_folders(folders, apart=facet == "results")
    seeds = {frozenset(by_seed) for by_seed in rows_by_run(rows).values()}
    comparable = facet == "results" or len(folders) == 1 or len(seeds) == 1
    text = "the results folders have different seeds, whose means are not comparable"
    require(comparable, f"{text}; add --facet results, for a panel each")
    texts = {name: text for name, text in values.items() if name != "out" and text is not None}
    options: dict[str, Any] = {**texts, "labels": labels_of(label, rows)}
    for name in {"metric", "x"} & texts.keys():
        whole = texts[name] in rows[0]  # one name, which may contain commas
        options[name] = [texts[name]] if whole else texts[name].split(",")
    if "methods" in texts:
        options["methods"] = _methods(texts["methods"], rows)
    for name in {"x_limits", "y_limits"} & texts.keys():
        options[name] = _numbers(name, texts[name], ",", "A,B; one of them may be left out")
    if "size" in texts:
        options["size"] = _numbers("size", texts["size"], "x", "WIDTHxHEIGHT, such as 3.5x2.6")
    name = "-by-".join("-".join(options.get(k, [v])) for k, v in _DEFAULTS.items())
    path = new_file(values["out"], Path(folders[0], f"{file_name(name)}.png"))
    with written(path) as beside:
        hidden = pictures.plot_metric(rows, beside, **options).notes
    for line in hidden:
        click.echo(printable(line), err=True)
    click.echo(printable(path))


def _methods(text: str, rows: list[Row]) -> list[str]:
    known = dict.fromkeys(str(row["method"]) for row in rows)
    whole = [text] if known_as(text, known) else text.split(",")
    return [label for name in whole for label in known_as(name, known) or [name]]


def _numbers(name: str, text: str, separator: str, fix: str) -> tuple[float | None, ...]:
    parts = text.split(separator)
    try:
        numbers = tuple(float(part) if part else None for part in parts)
    except ValueError:
        numbers = ()
    if len(numbers) != 2 or numbers == (None, None):
        raise ValueError(f"{name}={text!r} is not a pair of numbers; give {fix}")
    return numbers


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
    report = make_report(place, rows, configuration, settings, tables, non_finite_lines(rows))
    write_text(path, report)
    click.echo(printable(path))


def _tables(folder: Path, rows: list[Row], is_sweep: bool, settings: Settings) -> list[ResultTable]:
    tables = method_tables(rows, *goal_of(settings), is_sweep=is_sweep)
    if settings.evaluate_clients != "none":
        rows_of_clients = read_rows(folder / "clients.csv")
        complete = {"examples", "accuracy"} <= set.intersection(*map(set, rows_of_clients))
        text = f"{folder / 'clients.csv'} has no accuracy of each client"
        require(complete, f"{text}; name a folder that compare or run wrote")
        own = clients_table(rows_of_clients, settings)
        tables = [*tables, own._replace(title="Each client's own model")]
    return tables
