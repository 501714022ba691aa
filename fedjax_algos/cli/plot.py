"""What `plot` does: it draws figures of results."""

from pathlib import Path
from typing import Any

import click

from fedjax_algos.analysis import pictures
from fedjax_algos.analysis.labels import file_name
from fedjax_algos.analysis.rows import rows_by_run
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import written
from fedjax_algos.base.reprs import printable
from fedjax_algos.cli.options import FACETS, known_as, labels_of, new_file
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice
from fedjax_algos.runs import results

_DEFAULTS = {"metric": "test_accuracy", "x": "round"}  # which name the file


def draw(folders: tuple[str, ...], label: tuple[str, ...], values: dict[str, str | None]) -> None:
    """Draws metrics of results folders."""
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
