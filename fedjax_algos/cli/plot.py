"""The command that draws figures of results: `plot`."""

from pathlib import Path
from typing import Any

import click

from fedjax_algos.analysis import pictures
from fedjax_algos.analysis.labels import file_name
from fedjax_algos.analysis.pictures.axes import PICTURE_STYLES
from fedjax_algos.analysis.rows import rows_by_run
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import written
from fedjax_algos.base.reprs import printable
from fedjax_algos.cli.options import Command, add_options, known_as, labels_of, new_file
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice
from fedjax_algos.runs import results

_FACETS = ("results", "method", "seed")
_DEFAULTS = {"metric": "test_accuracy", "x": "round"}  # which name the file
_HELP = {
    "metric": "column of metrics.csv; A,B: a panel for each [test_accuracy]",
    "x": f"{', '.join(pictures.AXES)}; A,B: a panel for each [round]",
    "facet": f"a panel for each of: {', '.join(_FACETS)}",
    "methods": "LABEL,LABEL: the methods to draw, in this order [all]",
    "band": f"{', '.join(pictures.BANDS)} [interval from five seeds on, else range]",
    "log": f"logarithmic axes: {', '.join(pictures.LOG_AXES)} [none]",
    "x_limits": "A,B in bytes, FLOPs or seconds if the column is; A, or ,B for one",
    "y_limits": "likewise [those of the curves after the first tenth]",
    "label": "OLD=NEW: another text for a method or a results folder; may be repeated",
    "title": "[the number of seeds and the band]; '' for none",
    "x_label": "[the column and its unit]",
    "y_label": "[the column and its unit]",
    "size": "WIDTHxHEIGHT in inches, such as 7x3",
    "style": f"{' or '.join(PICTURE_STYLES)}: as wide as one or two columns, with a Times font",
    "out": "picture: .png, .pdf or .svg [METRIC-by-X.png in the first folder]",
}


@click.command(cls=Command)
@click.argument("folders", nargs=-1, metavar="RESULTS...")
@add_options(_HELP, {"label"}, out="FILE")
def plot(folders: tuple[str, ...], label: tuple[str, ...], **values: str | None) -> None:
    """Draw metrics of one or more results folders, with one style for each method.

    Several folders are in one panel, with the folder's name before each method, or in a panel each
    with --facet results. The command prints what the figure does not show.
    """
    facet = values["facet"]
    if facet is not None:
        check_choice("facet", facet, _FACETS)
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
        options[name] = _numbers(name, texts[name], ",", "A,B, of which one may be left out")
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
        raise ValueError(f"{name}={text!r} is no pair of numbers; give {fix}")
    return numbers
