"""The whole page: its sections in the template, with the style and the script."""

import base64
import hashlib
import string
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from fedjax_algos.analysis.statistics import PREFIX
from fedjax_algos.analysis.tables import ResultTable
from fedjax_algos.core import Row
from fedjax_algos.runs.report import sections
from fedjax_algos.runs.report.figure import as_script, figure, figure_data
from fedjax_algos.runs.report.html import Html, element, joined
from fedjax_algos.runs.settings import Settings


class ReportTables(NamedTuple):
    """What the command line prints of a results folder, and the report shows too.

    Attributes:
      methods: by themselves, and against the reference.
      clients: of the clients' own models, if they were evaluated.
      not_finite: lines on runs that diverged and updates that were left out.
    """

    methods: Sequence[ResultTable]
    clients: ResultTable | None
    not_finite: Sequence[str]


def make_report(
    folder: Path, rows: list[Row], configuration: dict, settings: Settings, tables: ReportTables
) -> str:
    """The report of a results folder as HTML, in which every text of the folder is escaped.

    Args:
      folder: that compare, run or sweep wrote.
      rows: of `read_metrics`.
      configuration: the content of its `config.json`.
      settings: of the configuration.
      tables: made of the rows.
    """
    on_virtual_clock = settings.seconds is not None
    data = figure_data(rows, PREFIX + settings.target_metric)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    parts = {
        "Settings": sections.settings_section(configuration),
        "Results": sections.results_section(folder, tables.methods, tables.clients),
        "Figure": figure(data, folder, len(settings.seeds), len(methods)),
        "Partition": sections.partition_section(folder, settings),
        "Timeline": sections.timeline_section(folder, methods) if on_virtual_clock else [],
        "Not finite": sections.not_finite_section(tables.not_finite),
        "Environment": sections.environment_section(configuration),
        "How to repeat it": sections.repeat_section(configuration),
    }
    shown = {title: content for title, content in parts.items() if content}
    links = [element("li", element("a", title, href=f"#{_identifier(title)}")) for title in shown]
    title = sections.title(configuration, settings)
    body = [
        element("header", element("h1", title), element("p", sections.scope(settings))),
        element("nav", element("ul", *links), aria_label="Sections"),
        element("main", *(_section(name, content) for name, content in shown.items())),
    ]
    style, script = _file("style.css"), _file("figure.js")
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src {_hash(style)}; script-src {_hash(script)}"
    )
    return string.Template(_file("template.html")).substitute(
        policy=policy,
        title=joined([title]),
        style=style,
        body=joined(body),
        data=as_script(data),
        script=script,
    )


def _section(title: str, content: Sequence[Html]) -> Html:
    name = _identifier(title)
    heading = element("h2", title, id=name)
    return element("section", heading, *content, aria_labelledby=name)


def _identifier(title: str) -> str:
    return title.lower().replace(" ", "-")


def _file(name: str) -> str:
    return resources.files("fedjax_algos.runs.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How the policy of the page names a script or a style, so that no other one has an effect."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
