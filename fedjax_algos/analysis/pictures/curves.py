"""Computes the curves of methods, means over seeds with bands, and the style of each method.

A numerical search chose the colours. Each pair differs for readers with normal vision and for
readers who lack one kind of cones; the greys are evenly spaced from black to light grey.
"""

import zlib
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.analysis import statistics
from fedjax_algos.analysis.labels import SEPARATOR, STYLE_TABLE, STYLED, algorithm_of
from fedjax_algos.analysis.pictures.axes import Axis, Limits
from fedjax_algos.analysis.rows import column_by_method
from fedjax_algos.base.errors import require
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice

SPREADS = {"interval": "95% confidence interval", "range": "lowest to highest"}
_MARGIN = 0.08  # above and below the curves, relative to their height
OUTSIDE = "outside the limits"  # the note on such a method
BANDS = {  # with the text in a figure
    "none": "",
    **{name: f", band: {text}" for name, text in SPREADS.items()},
    "seeds": ", thin lines: each seed",
}
COLOURS = (
    "#000000",  # black
    "#2e73eb",  # blue
    "#761d87",  # purple
    "#32ccff",  # light blue
    "#e6478e",  # pink
    "#4b662f",  # dark green
    "#a7a400",  # olive
    "#ff9a85",  # salmon
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1.2)))
_SLOTS = 64  # different styles


class Curve(NamedTuple):
    """The curve of a method. Values that are not finite are NaN."""

    x: np.ndarray  # float[evaluations], the mean over seeds
    mean: np.ndarray  # float[evaluations]
    low: np.ndarray  # float[evaluations], of the band or the seeds' lines, else the mean
    high: np.ndarray  # float[evaluations], likewise
    lines: list[tuple[np.ndarray, np.ndarray]]  # x and y of each seed, if it is drawn
    lost: int  # seeds whose last value is not finite
    seeds: int


class Panel(NamedTuple):
    """The content of one panel."""

    title: str  # "" if there is only one facet
    curves: dict[str, Curve]  # by label
    x: Axis
    y: Axis


def choose_spread(seeds: int) -> str:
    """Chooses the kind of `SPREADS` that figures draw around a mean over this many seeds."""
    return "interval" if seeds >= statistics.MIN_SEEDS_OF_AN_INTERVAL else "range"


def spread(values: np.ndarray, kind: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Computes both ends, float[...], of a band of `SPREADS` around float[seeds, ...]."""
    if (kind or choose_spread(len(values))) == "range":
        return values.min(axis=0), values.max(axis=0)
    mean, half_width = values.mean(axis=0), statistics.confidence_half_width(values)
    return mean - half_width, mean + half_width


def choose_band(band: str | None, seeds: int) -> str:
    """Checks the band of a figure; None chooses one for panels with at least this many seeds."""
    if band is None:
        return choose_spread(seeds) if seeds > 1 else "none"
    check_choice("band", band, BANDS)
    needed = statistics.MIN_SEEDS_OF_AN_INTERVAL
    found = f"band='interval' needs at least {needed} seeds, but there are {seeds}"
    fits = band != "interval" or seeds >= needed
    require(fits, f"{found}; choose range or seeds, or run more seeds")
    return band


def curves_of(
    rows: list[Row], metric: str, x: str, band: str, labels: Collection[str]
) -> dict[str, Curve]:
    """Computes the curves of the methods with rows in a panel; they have the same seeds."""
    rows = [row for row in rows if row["method"] in labels]
    values, positions = column_by_method(rows, metric), column_by_method(rows, x)
    with np.errstate(over="ignore", invalid="ignore"):
        return {n: _curve(positions[n], values[n], band) for n in labels if n in values}


def _curve(x: np.ndarray, y: np.ndarray, band: str) -> Curve:
    x, y = _finite(x), _finite(y)
    mean = _finite(y.mean(axis=0))
    low = high = mean
    if band in SPREADS:
        low, high = map(_finite, spread(y, band))
    elif band == "seeds":  # fmin and fmax ignore NaN, so the other seeds go on
        low, high = np.fmin.reduce(y), np.fmax.reduce(y)
    lines = list(zip(x, y, strict=True)) if band == "seeds" else []
    lost = int(np.isnan(y[:, -1]).sum())
    return Curve(_finite(x.mean(axis=0)), mean, low, high, lines, lost, len(y))


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def fit_y_limits(
    curves: list[Curve], given: Limits, x_limits: Limits, *, logarithmic: bool, whole: bool
) -> Limits:
    """Returns the given limits, or fits the visible curves after their first tenth."""
    left = -np.inf if x_limits[0] is None else x_limits[0]
    right = np.inf if x_limits[1] is None else x_limits[1]
    parts = [np.empty(0)]
    for curve in curves:
        visible = (curve.x >= left) & (curve.x <= right)
        # the first tenth hardly differs between methods, except in simulated time (`whole`)
        visible[: 0 if whole else len(visible) // 10] = False
        least = min(0.0, float(np.fmin.reduce(curve.mean, initial=0.0)))
        low = np.maximum(curve.low, least)  # no accuracy is below 0, although an interval may be
        parts += [values[visible] for values in (curve.mean, low, curve.high)]
    values = np.concatenate(parts)
    values = values[np.isfinite(values) & ((values > 0) | (not logarithmic))]
    if not len(values) or values.min() == values.max():
        return given
    ends = np.array([values.min(), values.max()])
    ends = np.log10(ends) if logarithmic else ends
    ends = ends + _MARGIN * (ends[1] - ends[0]) * np.array([-1, 1])
    low, high = (10**ends if logarithmic else ends).tolist()
    return low if given[0] is None else given[0], high if given[1] is None else given[1]


class Style(NamedTuple):
    """The style of a curve: the `colour` as "#1e88ff", the `marker` and `line` of matplotlib."""

    colour: str
    marker: str
    line: Any


def _style(slot: int) -> Style:
    column, row = slot % len(COLOURS), slot // len(COLOURS)
    marker = MARKERS[(column + 3 * row) % len(MARKERS)]
    return Style(COLOURS[column], marker, LINES[(column + row) % len(LINES)])


FIXED_STYLES = {name: _style(STYLE_TABLE.index(spelled)) for name, spelled in STYLED.items()}


def method_styles(labels: Iterable[str]) -> dict[str, Style]:
    """Returns the styles of the methods of a figure; the order of the labels has no effect.

    An algorithm of the package has one style in all figures, regardless of upper or lower case and
    of the options after its name. Beside other algorithms, two to four variants of an algorithm,
    such as `fedavg` and `fedavg weighting=uniform`, share its colour, and differ in the marker and
    the line. Any other label has a style that follows from its text, unless other methods of the
    figure have its colour, marker or line. Up to 64 methods have different styles.

    Args:
      labels: the labels of all methods of the figure.
    """
    labels = list(dict.fromkeys(labels))
    # without the name of a results folder, unless several folders have the method
    methods = {label: label.rpartition(SEPARATOR)[2] for label in labels}
    uses = Counter(methods.values())
    texts = {label: name if uses[name] == 1 else label for label, name in methods.items()}
    variants: dict[str, list[str]] = {}  # by algorithm
    for label in sorted(labels, key=lambda label: (_has_options(label), texts[label])):
        if name := algorithm_of(label):
            variants.setdefault(name, []).append(label)
    styles: dict[str, Style] = {}
    used: Counter[Any] = Counter()  # counts styles, colours, markers and lines

    def take(label: str, style: Style) -> None:
        styles[label] = style
        used.update([style, *style])

    def cost(style: Style) -> tuple[int, ...]:
        other = style.colour != candidates[0].colour
        return used[style], used[style.colour], other, used[style.marker], used[style.line]

    most = min(len(LINES), len(labels) - 1)  # variants with the colour of the first
    for name, same in variants.items():
        if len(same) <= max(most, 1) or not _has_options(same[0]):
            take(same[0], FIXED_STYLES[name])
    wrappers = {label: texts[label].partition("+")[2] for label in labels}
    wrapped = sorted({*wrappers.values()} - {""})
    for first, *others in (same for same in variants.values() if len(same) <= most):
        for place, label in enumerate(others, 1):
            found = _variants(styles[first], place)
            if wrappers[label]:  # they have one line in all colours
                line = LINES[1 + wrapped.index(wrappers[label]) % (len(LINES) - 1)]
                found = [style._replace(line=line) for style in found]
            take(label, min(found, key=used.__getitem__))
    for label in sorted(set(labels) - set(styles), key=texts.__getitem__):  # whatever their order
        preferred = zlib.crc32(texts[label].encode("utf-8", "surrogatepass"))
        candidates = [_style((preferred + step) % _SLOTS) for step in range(_SLOTS)]
        take(label, min(candidates, key=cost))
    return {label: styles[label] for label in labels}


def _variants(style: Style, number: int) -> list[Style]:
    """Returns styles of the same colour with all markers and another line, the next ones first."""
    first, line = MARKERS.index(style.marker) + number, LINES.index(style.line) + number
    markers = [MARKERS[index % len(MARKERS)] for index in range(first, first + len(MARKERS))]
    return [Style(style.colour, marker, LINES[line % len(LINES)]) for marker in markers]


def _has_options(label: str) -> bool:
    """Returns whether a label is more than the name of an algorithm."""
    return label.lower().replace("-", "") not in STYLED
