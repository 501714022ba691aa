"""The figure of a report: its data, and its controls, which `figure.js` makes work."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_algos.analysis.labels import display_names
from fedjax_algos.analysis.pictures import method_styles
from fedjax_algos.analysis.pictures.axes import axes_of
from fedjax_algos.analysis.rows import column_by_method
from fedjax_algos.analysis.statistics import METRIC, SPREADS, choose_spread, spread
from fedjax_algos.core import Row
from fedjax_algos.core.reprs import printable
from fedjax_algos.runs.report.html import Html, element, joined, picture, template

_FIRST_METRICS = (METRIC, "test_loss", "train_loss")
_MAX_METHODS = 20  # in the figure; a page with a thousand settings would be slow
_MAX_CHARACTERS = 80  # of a label
_DIGITS = 6  # of the numbers, which are drawn


def figure_data(rows: list[Row], metric: str = METRIC) -> dict[str, Any]:
    """The lines of the figure: means over the seeds, and the ends of the bands around them.

    They are values of JSON: `axes` and `metrics`, each with a name, a label and a unit, and
    `methods` with a label, a `style` (of `method_styles`, with the line as lengths of dashes and
    gaps in widths of the line), `columns` (the means of axes and metrics by name) and `bands` (the
    lower and the upper ends by metric; see `analysis.statistics.spread`). Numbers that are not
    finite are None. The metric, the quality by which methods are compared, is the first.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    given = {name: column_by_method(rows, name) for name in names if name not in ("method", "seed")}
    columns = {name: own for name, own in given.items() if _has_numbers(own)}
    axes = axes_of(columns)
    if "simulated_seconds" in axes:  # the virtual clock
        axes = {"simulated_seconds": axes["simulated_seconds"], **axes}
    first = dict.fromkeys((metric, *_FIRST_METRICS))
    others = [name for name in columns if name not in axes and name not in first]
    metrics = [name for name in first if name in columns] + others
    labels = list(next(iter(given.values())))
    # those that other figures of the folder have
    shown, styles = display_names(labels), method_styles(labels)
    return {
        "axes": [{"name": n, "label": label, "unit": unit} for n, (label, unit) in axes.items()],
        "metrics": [
            {
                "name": name,
                "label": printable(name.replace("_", " "), _MAX_CHARACTERS),
                "unit": "",
                "percent": "accuracy" in name or name == metric,
            }
            for name in metrics
        ],
        "methods": [
            {
                "label": printable(shown[label], _MAX_CHARACTERS),
                "style": {**styles[label]._asdict(), "line": _dashes(styles[label].line)},
                "columns": {name: _means(columns[name][label]) for name in [*axes, *metrics]},
                "bands": {name: _band(columns[name][label]) for name in metrics},
            }
            for label in labels[:_MAX_METHODS]
        ],
    }


def _dashes(line: Any) -> list[float]:
    return [] if line == "-" else list(line[1])


def _has_numbers(by_method: dict[str, np.ndarray]) -> bool:
    return any(np.isfinite(values).any() for values in by_method.values())


def _means(values: np.ndarray) -> list[float | None]:
    with np.errstate(invalid="ignore"):  # infinite values give NaN
        return [_rounded(mean) for mean in values.mean(axis=0)]


def _band(values: np.ndarray) -> list[list[float | None]]:
    if len(values) < 2:
        return [[], []]
    return [[_rounded(end) for end in ends] for ends in spread(values)]


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def as_script(data: dict[str, Any]) -> Html:
    """JSON that stands in a script element, which no text in it can end."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)


def figure(data: dict[str, Any], folder: Path, seeds: int, num_methods: int) -> list[Html]:
    """The place of the figure, its controls, and a picture where scripts do not run.

    The data are those of `figure_data`, which has only the first of many methods.
    """
    mean = f"The lines are means of {seeds} seeds; band: {SPREADS[choose_spread(seeds)]}. "
    told = (mean if seeds > 1 else "") + "A line ends where a seed has no finite value."
    if num_methods > len(data["methods"]):
        told += f" The first {len(data['methods'])} of {num_methods} methods are drawn."
    how = (
        "Drag a rectangle to zoom, and double-click for the whole. The table below the figure has "
        "the values at the cursor; the arrow keys move it."
    )
    fallback = element("p", "Without JavaScript this is the figure that was saved.")
    saved = picture(folder / "accuracy.png", "Test accuracy of the methods")
    parts = template("figure.html").substitute(
        metrics=_choices(data["metrics"]),
        axes=_choices(data["axes"]),
        hidden=" hidden" if seeds < 2 else "",
        methods=joined(_line(number, each["label"]) for number, each in enumerate(data["methods"])),
    )
    return [
        element("p", told),
        element("p", how, class_="hint"),
        element("noscript", fallback, saved),
        Html("".join(parts.splitlines())),
    ]


def _choices(choices: Sequence[dict[str, str]]) -> Html:
    return joined(element("option", choice["label"], value=choice["name"]) for choice in choices)


def _line(number: int, label: str) -> Html:
    """A method with its switch, beside which is a sample of its line, and values at the cursor."""
    box = {"type": "checkbox", "checked": True, "autocomplete": "off"}
    switch = element("input", id=f"show-{number}", **box)
    name = element("th", element("label", switch, element("span", label)), scope="row")
    return element(
        "tr", name, element("td", id=f"value-{number}"), element("td", id=f"place-{number}")
    )
