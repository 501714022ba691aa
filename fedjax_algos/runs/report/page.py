"""Makes the page of a report from its sections."""

import csv
import io
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis.labels import display_names, file_name, label_text
from fedjax_algos.analysis.pictures import method_styles
from fedjax_algos.analysis.pictures.axes import axes_of
from fedjax_algos.analysis.pictures.curves import SPREADS, choose_spread, spread
from fedjax_algos.analysis.rows import column_by_method
from fedjax_algos.analysis.statistics import METRIC, metric_column
from fedjax_algos.analysis.tables import ResultTable
from fedjax_algos.core import Row
from fedjax_algos.core.options import options
from fedjax_algos.runs.report.html import (
    Html,
    details,
    document,
    element,
    joined,
    picture,
    read_if_there,
    table,
    template,
)
from fedjax_algos.runs.studies.settings import Settings

_MAX_METHODS = 12  # with options or timelines that are shown at once
# options that name the process, or the place that something is written to
_PLACES = {"--out", "--track", "--compilation-cache", "--share"}
_FIRST_METRICS = (METRIC, "test_loss", "train_loss")
_MAX_DRAWN = 20  # in the figure; a page with a thousand settings would be slow
_DIGITS = 6  # of the numbers that are drawn


def make_report(
    folder: Path,
    rows: list[Row],
    configuration: dict,
    settings: Settings,
    tables: Sequence[ResultTable],
    not_finite: Sequence[str],
) -> str:
    """Makes the report of a results folder as HTML, with every text of the folder escaped.

    The `tables` and the lines `not_finite`, on runs that diverged and on updates left out, are what
    the command line shows too.
    """
    data = figure_data(rows, metric_column(settings.target_metric))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    parts = {
        "Settings": _settings_section(configuration),
        "Results": _results_section(folder, tables),
        "Figure": figure(data, folder, len(settings.seeds), len(methods)),
        "Partition": _partition_section(folder, settings),
        "Timeline": _timeline_section(folder, methods) if settings.seconds is not None else [],
        "Not finite": [element("p", line, class_="warning") for line in not_finite]
        or [element("p", "All models were finite, and no update was left out.")],
        "Environment": _environment_section(configuration),
        "How to repeat it": _repeat_section(configuration),
    }
    names = {title: title.lower().replace(" ", "-") for title, content in parts.items() if content}
    links = [element("li", element("a", title, href=f"#{name}")) for title, name in names.items()]
    sections = [
        element("section", element("h2", title, id=name), *parts[title], aria_labelledby=name)
        for title, name in names.items()
    ]
    labels, study = list(configuration["methods"]), f"Comparison of {len(methods)} methods"
    if "grid" in configuration or len(labels) == 1:
        study = f"Sweep of {len(labels)} settings" if "grid" in configuration else labels[0]
    title = f"{study} on {settings.dataset}"
    body = [
        element("header", element("h1", title), element("p", _scope(settings))),
        element("nav", element("ul", *links), aria_label="Sections"),
        element("main", *sections),
    ]
    return document(title, body, data)


def _scope(settings: Settings) -> str:
    """Describes the task in one sentence."""
    if settings.seconds is None:
        length = f"{settings.rounds} rounds of {settings.cohort_size} clients"
    else:
        length = f"{settings.seconds:g} simulated seconds (system model {settings.system})"
    task = f"{settings.clients} clients ({settings.partition}) train the model {settings.model}"
    return f"{task}: {length}, {len(settings.seeds)} seed{'s' * (len(settings.seeds) > 1)}."


def _settings_section(configuration: Mapping[str, Any]) -> list[Html]:
    """Shows all settings, changed ones first, and the methods' options."""
    known, methods = options(Settings), configuration["methods"]
    defaults = {name: option.default for name, option in known.items()}
    settings = configuration["settings"].items()
    rows = [[name, _text_of(v), _text_of(defaults.get(name))] for name, v in settings]
    headings, caption = ["setting", "value", "default"], "Settings that differ from defaults"
    changed, same = [row for row in rows if row[1] != row[2]], [r[:2] for r in rows if r[1] == r[2]]
    first = element("p", "All settings have their defaults.")
    if changed:
        first = table(headings, changed, caption=caption, kind="texts")
    others = table(headings[:2], same, caption="Others", kind="texts")
    last = _methods(methods)
    if len(methods) > _MAX_METHODS:
        last = details(f"Options of {len(methods)} methods", last)
    return [first, details("Settings with their defaults", others), last]


def _methods(methods: Mapping[str, Any]) -> Html:
    """Shows the options of each method, changed ones first."""
    rows = []
    for label, method in methods.items():
        values = dict(method) if isinstance(method, dict) else {}
        algorithm = _text_of(values.pop("algorithm", None))
        # a user's function is not imported to read a report
        known = options(algorithms[algorithm]) if algorithm in algorithms else {}
        changed = {n: v for n, v in values.items() if n not in known or v != known[n].default}
        same = {n: v for n, v in values.items() if n not in changed}
        parts = ([f"{n}={_text_of(v)}" for n, v in part.items()] for part in (changed, same))
        rows.append([label, algorithm, *(", ".join(part) or "-" for part in parts)])
    headings = ["method", "algorithm", "options", "options with their defaults"]
    return table(headings, rows, caption="Methods", kind="texts")


def _text_of(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text_of, value))
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 10 and 10.0 are one setting
    return "-" if value is None else str(value)


def _results_section(folder: Path, tables: Sequence[ResultTable]) -> list[Html]:
    """Shows the tables of results, and `summary.csv` with all digits."""
    content = []
    for each in tables:
        headings, title = [column.heading for column in each.columns], each.title or "methods"
        whole = table(headings, each.text_lines(), caption=title[:1].upper() + title[1:])
        notes = element("p", "\n".join(each.legend()), class_="legend")
        content.append(element("div", whole, notes))
    content.append(picture(folder / "clients.png", "Accuracy and dispatches of each client"))
    if lines := _read_table(folder / "summary.csv"):
        exact = table(lines[0], lines[1:], caption="summary.csv")
        content.append(details("All digits (summary.csv)", exact))
    return content


def _partition_section(folder: Path, settings: Settings) -> list[Html]:
    """Shows which client holds which examples."""
    clients = f"over {settings.clients} clients."
    content = [element("p", f"Partition {settings.partition} of the training examples {clients}")]
    about = f"Labels of each client's examples on seed {settings.seeds[0]}"
    content.append(picture(folder / "partition.png", about))  # not for examples in files
    text = read_if_there(folder / "partition.txt").decode(errors="replace")
    for number, part in enumerate(re.split(r"^(?=seed )", text, flags=re.MULTILINE)[1:]):
        heading, _, rest = part.partition("\n")
        counts = element("pre", rest.rstrip(), tabindex=0)
        whole = element("div", element("h3", heading), counts)
        content.append(details(heading, counts) if number else whole)
    return content


def _timeline_section(folder: Path, methods: Sequence[str]) -> list[Html]:
    """Shows the plans of the virtual clock: their numbers, timelines and staleness."""
    content = [element("p", "The plan of each method on the first seed.")]
    if lines := _read_table(folder / "timelines.csv"):
        headings, *rows = lines
        names = [heading.replace("_", " ") for heading in headings]
        cells = [[row[0], *map(_short, row[1:])] for row in rows]
        content.append(table(names, cells, caption="Plans, in simulated seconds"))
    for number, label in enumerate(methods):
        name = file_name(label)
        timeline = f"Dispatches of each client over time: {label}"
        staleness = f"Staleness of the updates: {label}"
        pictures = [picture(folder / f"timeline-{name}.png", timeline)]
        pictures.append(picture(folder / f"staleness-{name}.png", staleness))
        if any(pictures):
            part = element("div", element("h3", label), *pictures)
            content.append(part if number < _MAX_METHODS else details(label, *pictures))
    return content


def _short(cell: str) -> str:
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.4g}", cell)


def _environment_section(configuration: Mapping[str, Any]) -> list[Html]:
    """Shows versions, devices, the layout, and notes on the data."""
    about = dict(configuration["environment"])
    rows = list({**about, **about.pop("packages")}.items())
    rows = [(name.replace("_", " "), value) for name, value in rows if name != "packages"]
    placed = (configuration["layout"] or {}).items()
    rows += [(f"layout: {name}", value) for name, value in placed if name != "per_client"]
    seconds = _entry(configuration, "compilation", dict).get("seconds")
    if isinstance(seconds, int | float):
        rows.append(("seconds of compilation", f"{seconds:.1f}"))
    for seed, digest in _entry(configuration, "partition_sha256", dict).items():
        rows.append((f"partition of seed {seed}, SHA-256", digest))
    versions = table(["what", "value"], rows, caption="Versions and devices", kind="texts")
    notes = [_entry(configuration, name, list) for name in ("dataset_notes", "sweep_notes")]
    return [versions, *(element("p", note) for part in notes for note in part)]


def _repeat_section(configuration: Mapping[str, Any]) -> list[Html]:
    """Shows the command line without options that name folders of this run."""
    command, arguments = ["fedjax-algos"], iter(map(str, _entry(configuration, "command", list)))
    for argument in arguments:
        if argument in _PLACES:
            next(arguments, None)
        elif argument != "--resume" and argument.partition("=")[0] not in _PLACES:
            command.append(argument)
    if len(command) == 1:
        return [element("p", "The command line was not recorded.")]
    content = [element("pre", shlex.join(command), class_="command")]
    if file := configuration.get("config"):
        text = f"It read the settings file {file}, whose values are among the settings above."
        content.append(element("p", text))
    if "grid" not in configuration:
        again = "fedjax-algos compare --config RESULTS/config.json"
        content.append(element("p", "To repeat it from the folder, also with another version:"))
        content.append(element("pre", again, class_="command"))
    same = "With the same versions, device and layout the digits are the same; elsewhere they"
    return [*content, element("p", f"{same} agree up to rounding.")]


def _entry(configuration: Mapping[str, Any], name: str, kind: type) -> Any:
    """Returns an entry of `config.json`; an empty one unless it is there and of this type."""
    value = configuration.get(name)
    return value if isinstance(value, kind) else kind()


def _read_table(path: Path) -> list[list[str]]:
    """Reads the lines of a CSV file; returns none if it cannot be read, is empty, or is cut."""
    text = read_if_there(path).decode(errors="replace")
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return []
    return rows if len({len(row) for row in rows}) == 1 < len(rows) else []


@np.errstate(invalid="ignore")  # infinite values give NaN
def figure_data(rows: list[Row], metric: str = METRIC) -> dict[str, Any]:
    """Returns the lines of the figure as JSON: means over seeds, and the ends of their bands."""
    names = dict.fromkeys(name for row in rows for name in row if name not in ("method", "seed"))
    columns = {name: column_by_method(rows, name) for name in names}
    columns = {n: c for n, c in columns.items() if np.isfinite(np.hstack([*c.values()])).any()}
    axes = axes_of(columns)
    if "simulated_seconds" in axes:  # the virtual clock
        axes = {"simulated_seconds": axes["simulated_seconds"], **axes}
    metrics = list(dict.fromkeys([metric, *_FIRST_METRICS, *columns]))
    metrics = [name for name in metrics if name in columns and name not in axes]
    labels = list(dict.fromkeys(row["method"] for row in rows))
    # the styles of the other figures in the folder
    short, styles = display_names(labels), method_styles(labels)

    def drawn(label):
        style = styles[label]._asdict()
        style["line"] = [] if style["line"] == "-" else [*style["line"][1]]
        return {
            "label": label_text(short[label]),
            "style": style,
            "columns": {n: _rounded(columns[n][label].mean(axis=0)) for n in [*axes, *metrics]},
            "bands": {name: _band(columns[name][label]) for name in metrics},
        }

    def described(name):
        percent = "accuracy" in name or name == metric
        return {"name": name, "label": label_text(name.replace("_", " ")), "percent": percent}

    return {
        "axes": [{"name": n, "label": label, "unit": unit} for n, (label, unit) in axes.items()],
        "metrics": [described(name) for name in metrics],
        "methods": [drawn(label) for label in labels[:_MAX_DRAWN]],
    }


def _band(values: np.ndarray) -> list[list[float | None]]:
    return [[], []] if len(values) < 2 else [*map(_rounded, spread(values))]


def _rounded(values: np.ndarray) -> list[float | None]:
    return [float(f"{v:.{_DIGITS}g}") if math.isfinite(v) else None for v in values]


def figure(data: dict[str, Any], folder: Path, seeds: int, num_methods: int) -> list[Html]:
    """Makes the place of the figure of `figure_data`, its controls, and a fallback picture."""
    mean = f"The lines are means of {seeds} seeds; band: {SPREADS[choose_spread(seeds)]}. "
    text = (mean if seeds > 1 else "") + "A line ends where a seed has no finite value."
    if num_methods > len(data["methods"]):
        text += f" The first {len(data['methods'])} of {num_methods} methods are drawn."
    hint = "Drag a rectangle to zoom, and double-click to zoom out. The table below the figure "
    hint += "has the values at the cursor; the arrow keys move the cursor."
    fallback = element("p", "JavaScript is off, so this is the saved figure.")
    saved = picture(folder / "accuracy.png", "Test accuracy of the methods")
    parts = template("figure.html").substitute(
        metrics=_choices(data["metrics"]),
        axes=_choices(data["axes"]),
        hidden=" hidden" if seeds < 2 else "",
        methods=joined(_line(number, each["label"]) for number, each in enumerate(data["methods"])),
    )
    return [
        element("p", text),
        element("p", hint, class_="hint"),
        element("noscript", fallback, saved),
        Html("".join(parts.splitlines())),
    ]


def _choices(choices: Sequence[dict[str, str]]) -> Html:
    return joined(element("option", choice["label"], value=choice["name"]) for choice in choices)


def _line(number: int, label: str) -> Html:
    """Makes a method's row: a switch, a sample of its line, and its values at the cursor."""
    box = {"type": "checkbox", "checked": True, "autocomplete": "off"}
    switch = element("input", id=f"show-{number}", **box)
    name = element("th", element("label", switch, element("span", label)), scope="row")
    cells = (element("td", id=f"{part}-{number}") for part in ("value", "place"))
    return element("tr", name, *cells)
