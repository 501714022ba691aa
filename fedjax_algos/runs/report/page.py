"""The page of a report: its sections in the template, with the style and the script."""

import base64
import csv
import hashlib
import io
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis.labels import file_name
from fedjax_algos.analysis.statistics import PREFIX
from fedjax_algos.analysis.tables import ResultTable
from fedjax_algos.core import Row
from fedjax_algos.core.files import read_file
from fedjax_algos.core.options import options
from fedjax_algos.runs.report.figure import as_script, figure, figure_data
from fedjax_algos.runs.report.html import Html, details, element, joined, picture, table, template
from fedjax_algos.runs.settings import Settings

_MAX_METHODS = 12  # whose options or timelines are shown at once
_PLACES = {"--out", "--track", "--compilation-cache"}  # options that say where something is written


class ReportTables(NamedTuple):
    """What the command line prints of a results folder, and the report shows too.

    The tables are of the methods, alone and against the reference, and of the clients' own models,
    if they were evaluated; `not_finite` has lines on runs that diverged and updates left out.
    """

    methods: Sequence[ResultTable]
    clients: ResultTable | None
    not_finite: Sequence[str]


def make_report(
    folder: Path, rows: list[Row], configuration: dict, settings: Settings, tables: ReportTables
) -> str:
    """The report of a results folder as HTML, in which every text of the folder is escaped.

    `rows` are those of `read_metrics`, and the configuration is the content of `config.json`.
    """
    data = figure_data(rows, PREFIX + settings.target_metric)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    parts = {
        "Settings": _settings_section(configuration),
        "Results": _results_section(folder, tables.methods, tables.clients),
        "Figure": figure(data, folder, len(settings.seeds), len(methods)),
        "Partition": _partition_section(folder, settings),
        "Timeline": _timeline_section(folder, methods) if settings.seconds is not None else [],
        "Not finite": [element("p", line, class_="warning") for line in tables.not_finite]
        or [element("p", "All models were finite, and no update was left out.")],
        "Environment": _environment_section(configuration),
        "How to repeat it": _repeat_section(configuration),
    }
    names = {title: title.lower().replace(" ", "-") for title, content in parts.items() if content}
    links = [element("li", element("a", title, href=f"#{name}")) for title, name in names.items()]
    title = _title(configuration, settings)
    sections = [_section(title, name, parts[title]) for title, name in names.items()]
    body = [
        element("header", element("h1", title), element("p", _scope(settings))),
        element("nav", element("ul", *links), aria_label="Sections"),
        element("main", *sections),
    ]
    style, script = template("style.css").template, template("figure.js").template
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src {_hash(style)}; script-src {_hash(script)}"
    )
    return template("template.html").substitute(
        policy=policy,
        title=joined([title]),
        style=style,
        body=joined(body),
        data=as_script(data),
        script=script,
    )


def _section(title: str, name: str, content: Sequence[Html]) -> Html:
    return element("section", element("h2", title, id=name), *content, aria_labelledby=name)


def _hash(text: str) -> str:
    """How the policy of the page names a script or a style, so that no other one has an effect."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _title(configuration: Mapping[str, Any], settings: Settings) -> str:
    """The title of the page."""
    labels = list(configuration["methods"])
    if "grid" in configuration:
        return f"Sweep of {len(labels)} settings on {settings.dataset}"
    what = labels[0] if len(labels) == 1 else f"Comparison of {len(labels)} methods"
    return f"{what} on {settings.dataset}"


def _scope(settings: Settings) -> str:
    """The task in one sentence."""
    seeds = f"{len(settings.seeds)} seed{'s' * (len(settings.seeds) > 1)}"
    if settings.seconds is None:
        length = f"{settings.rounds} rounds of {settings.cohort_size} clients"
    else:
        length = f"{settings.seconds:g} simulated seconds (system model {settings.system})"
    return (
        f"{settings.clients} clients ({settings.partition}) train the model {settings.model}: "
        f"{length}, {seeds}."
    )


def _settings_section(configuration: Mapping[str, Any]) -> list[Html]:
    """All settings, first those that differ from their defaults, and the methods' options."""
    known = options(Settings)
    rows: dict[bool, list[tuple[str, str, str]]] = {True: [], False: []}
    for name, value in configuration["settings"].items():
        default = known[name].default if name in known else None
        cells = (name, _shown(value), _shown(default))
        rows[_shown(value) != _shown(default)].append(cells)
    headings = ["setting", "value", "default"]
    caption = "Settings that differ from defaults"
    changed = table(headings, rows[True], caption=caption, kind="texts")
    same = table(headings[:2], [cells[:2] for cells in rows[False]], caption="Others", kind="texts")
    listed = _methods(configuration["methods"])
    count = len(configuration["methods"])
    return [
        changed if rows[True] else element("p", "All settings have their defaults."),
        details("Settings with their defaults", same),
        listed if count <= _MAX_METHODS else details(f"Options of {count} methods", listed),
    ]


def _methods(methods: Mapping[str, Any]) -> Html:
    """The options of each method; those that differ from defaults come first."""
    rows = []
    for label, given in methods.items():
        values = dict(given) if isinstance(given, dict) else {}
        algorithm = _shown(values.pop("algorithm", None))
        # a function of the user's own is not imported to read a report
        known = options(algorithms[algorithm]) if algorithm in algorithms else {}
        own = {n: v for n, v in values.items() if n not in known or v != known[n].default}
        rest = {n: v for n, v in values.items() if n not in own}
        rows.append([label, algorithm, *(_listed(part) if part else "-" for part in (own, rest))])
    headings = ["method", "algorithm", "options", "options with their defaults"]
    return table(headings, rows, caption="Methods", kind="texts")


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in values.items())


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 10 and 10.0 are one setting
    return "-" if value is None else str(value)


def _results_section(
    folder: Path, methods: Sequence[ResultTable], clients: ResultTable | None
) -> list[Html]:
    """The tables of results, and `summary.csv` with all digits."""
    content = [_shown_table(each, each.title or "methods") for each in methods]
    content += [_shown_table(clients, "each client's own model")] if clients else []
    headings, *rows = _read_table(folder / "summary.csv") or [[]]
    if rows:
        exact = table(headings, rows, caption="summary.csv")
        content.append(details("All digits (summary.csv)", exact))
    return content


def _shown_table(given: ResultTable, caption: str) -> Html:
    headings = [column.heading for column in given.columns]
    shown = table(headings, given.text_lines(), caption=caption[:1].upper() + caption[1:])
    return element("div", shown, element("p", "\n".join(given.legend()), class_="legend"))


def _partition_section(folder: Path, settings: Settings) -> list[Html]:
    """Which client holds which examples."""
    told = f"Partition {settings.partition} of the training examples over "
    content = [element("p", f"{told}{settings.clients} clients.")]
    about = f"Labels of each client's examples on seed {settings.seeds[0]}"
    content.append(picture(folder / "partition.png", about))  # none of examples in files
    text = _read_text(folder / "partition.txt")
    for number, part in enumerate(re.split(r"^(?=seed )", text, flags=re.MULTILINE)[1:]):
        heading, _, rest = part.partition("\n")
        counts = element("pre", rest.rstrip(), tabindex=0)
        whole = element("div", element("h3", heading), counts)
        content.append(details(heading, counts) if number else whole)
    return content


def _timeline_section(folder: Path, methods: Sequence[str]) -> list[Html]:
    """The plans of the virtual clock: their numbers, timelines and staleness."""
    content = [element("p", "The plan of each method on the first seed.")]
    headings, *rows = _read_table(folder / "timelines.csv") or [[]]
    if rows:
        names = [heading.replace("_", " ") for heading in headings]
        shown = [[row[0], *map(_short, row[1:])] for row in rows]
        content.append(table(names, shown, caption="Plans, in simulated seconds"))
    for number, label in enumerate(methods):
        name = file_name(label)
        dispatches = f"Dispatches of each client over time: {label}"
        staleness = f"Staleness of the updates: {label}"
        pictures = [
            picture(folder / f"timeline-{name}.png", dispatches),
            picture(folder / f"staleness-{name}.png", staleness),
        ]
        if any(pictures):
            part = element("div", element("h3", label), *pictures)
            content.append(part if number < _MAX_METHODS else details(label, *pictures))
    return content


def _short(cell: str) -> str:
    try:
        return f"{float(cell):.4g}" if "." in cell else cell
    except ValueError:
        return cell


def _environment_section(configuration: Mapping[str, Any]) -> list[Html]:
    """Versions, devices, the layout, and notes on the data."""
    about = dict(configuration["environment"])
    packages = about.pop("packages")
    layout = configuration["layout"] or {}
    placed = {f"layout: {name}": layout.get(name) for name in ("layout", "devices", "source")}
    rows = [(name.replace("_", " "), value) for name, value in {**about, **packages}.items()]
    rows += [(name, value) for name, value in placed.items() if value is not None]
    compiled = configuration.get("compilation")
    if isinstance(compiled, dict) and isinstance(compiled.get("seconds"), int | float):
        rows.append(("seconds of compilation", f"{compiled['seconds']:.1f}"))
    hashes = configuration.get("partition_sha256")
    for seed, digest in hashes.items() if isinstance(hashes, dict) else ():
        rows.append((f"partition of seed {seed}, SHA-256", digest))
    shown = table(["what", "value"], rows, caption="Versions and devices", kind="texts")
    notes = [*_list(configuration, "dataset_notes"), *_list(configuration, "sweep_notes")]
    return [shown, *(element("p", note) for note in notes)]


def _repeat_section(configuration: Mapping[str, Any]) -> list[Html]:
    """The command line, without the options that name folders of this run."""
    kept, given = [], iter(map(str, _list(configuration, "command")))
    for argument in given:
        if argument in _PLACES:
            next(given, None)
        elif argument != "--resume" and argument.partition("=")[0] not in _PLACES:
            kept.append(argument)
    if not kept:
        return [element("p", "The command line was not recorded.")]
    content = [element("pre", shlex.join(["fedjax-algos", *kept]), class_="command")]
    if file := configuration.get("config"):
        told = f"It read the settings file {file}, whose values are among the settings above."
        content.append(element("p", told))
    if "grid" not in configuration:
        again = "fedjax-algos compare --config RESULTS/config.json"
        content.append(element("p", "From the results folder, also with another version:"))
        content.append(element("pre", again, class_="command"))
    same = "With the same versions, device and layout the digits are the same; elsewhere they"
    return [*content, element("p", f"{same} agree up to rounding.")]


def _list(configuration: Mapping[str, Any], name: str) -> list[Any]:
    value = configuration.get(name)
    return value if isinstance(value, list) else []


def _read_text(path: Path) -> str:
    """The content of a text file; nothing if it cannot be read."""
    try:
        return read_file(path).decode()
    except (OSError, ValueError):
        return ""


def _read_table(path: Path) -> list[list[str]]:
    """The rows of a CSV file; nothing if it cannot be read, or if a row is cut."""
    try:
        rows = list(csv.reader(io.StringIO(_read_text(path), newline=""), strict=True))
    except csv.Error:
        return []
    return rows if len({len(row) for row in rows}) == 1 else []
