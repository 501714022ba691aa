"""The colour, the marker and the line style of each method in a figure.

The colours were chosen by a numerical search: each pair differs for readers with normal vision and
for those who lack one kind of cones, and their greys are evenly spaced from black to light grey.
"""

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from fedjax_algos.analysis.labels import DISPLAY_NAMES, SEPARATOR, algorithm_of

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
# A column for each colour. Algorithms that are often compared with each other are in different
# columns; those in one column differ in the marker and the line.
_FIXED = (
    "fedavg      fedprox   scaffold feddyn     fedgbo   ghbm       fedadam fedcm",
    "centralised mimemom   fedmax   mfl        fedlga   mimelite   fednova mimexlite",
    "mimelitemom fedavgm   fedat    fedcompass fedasync fedbuff    mime    fedyogi",
    "-           localghbm fedhbm   fedadagrad fedadc   fedrmsprop adabest -",
    "-           apfl      ditto    pfedme     fedrep   fedbn      ifca    perfedavg",
)
_SLOTS = 64  # styles that differ


class Style(NamedTuple):
    """How the curves of a method are drawn.

    Attributes:
      colour: such as "#1e88ff".
      marker: a marker of matplotlib, such as "o".
      line: a line style of matplotlib, such as "-".
    """

    colour: str
    marker: str
    line: Any


def _style(slot: int) -> Style:
    column, row = slot % len(COLOURS), slot // len(COLOURS)
    marker = MARKERS[(column + 3 * row) % len(MARKERS)]
    return Style(COLOURS[column], marker, LINES[(column + row) % len(LINES)])


FIXED_STYLES = {
    name: _style(slot)
    for slot, name in enumerate(name for line in _FIXED for name in line.split())
    if name != "-"
}


def method_styles(labels: Iterable[str]) -> dict[str, Style]:
    """The styles of the methods of a figure, which do not depend on their order.

    An algorithm of the package has one style in all figures, whatever the case of its label and
    whatever options follow its name. Two to four variants of an algorithm, such as `fedavg` and
    `fedavg weighting=uniform`, share its colour beside other algorithms, and differ in the marker
    and the line; so do the methods of several results folders, as in `longer: fedavg`. If all
    methods of the figure are variants of one algorithm, or if there are more of them, each prefers
    the style that follows from its text, as any other label does. It takes another colour, marker
    or line if other methods of the figure have these, as long as there are some. Up to 64 methods
    have different styles.

    Args:
      labels: of the methods.
    """
    labels = list(dict.fromkeys(labels))
    texts = _texts(labels)
    variants: dict[str, list[str]] = {}  # by algorithm
    for label in sorted(labels, key=lambda label: (_has_options(label), texts[label])):
        if (name := algorithm_of(label)) in FIXED_STYLES:
            variants.setdefault(name, []).append(label)
    first = {
        own[0]: FIXED_STYLES[name]
        for name, own in variants.items()
        if len(own) == 1 or _share(own, labels) or not _has_options(own[0])
    }
    styles = dict(first)
    taken = _Taken(styles.values())
    for own in variants.values():
        for number, label in enumerate(own[1:] if _share(own, labels) else [], 1):
            styles[label] = taken.variant(styles[own[0]], number)
            taken.add(styles[label])
    for label in sorted(set(labels) - set(styles), key=texts.__getitem__):  # whatever their order
        preferred = zlib.crc32(texts[label].encode("utf-8", "surrogatepass"))
        candidates = [_style((preferred + step) % _SLOTS) for step in range(_SLOTS)]
        styles[label] = min(candidates, key=lambda style: taken.cost(style, candidates[0]))
        taken.add(styles[label])
    return {label: styles[label] for label in labels}


def _texts(labels: list[str]) -> dict[str, str]:
    """The labels without the name of a results folder, unless several folders have the method."""
    methods = [label.rpartition(SEPARATOR)[2] for label in labels]
    uses = Counter(methods)
    return {
        label: method if uses[method] == 1 else label
        for label, method in zip(labels, methods, strict=True)
    }


def _has_options(label: str) -> bool:
    """Whether something follows or precedes the name of an algorithm in a label."""
    return label.lower().replace("-", "") not in DISPLAY_NAMES


def _share(variants: list[str], labels: list[str]) -> bool:
    """Whether variants of an algorithm share its colour."""
    return 1 < len(variants) <= len(LINES) and len(variants) < len(labels)


class _Taken:
    """How often styles and their parts are used."""

    def __init__(self, styles: Iterable[Style]):
        self.styles: Counter[Style] = Counter()
        self.parts: list[Counter[Any]] = [Counter() for _ in Style._fields]
        for style in styles:
            self.add(style)

    def add(self, style: Style) -> None:
        self.styles[style] += 1
        for counter, part in zip(self.parts, style, strict=True):
            counter[part] += 1

    def variant(self, style: Style, number: int) -> Style:
        """A style of the same colour: the next marker and line, or free ones after them."""
        marker, line = MARKERS.index(style.marker) + number, LINES.index(style.line) + number
        candidates = [
            style._replace(marker=MARKERS[m % len(MARKERS)], line=LINES[line % len(LINES)])
            for m in range(marker, marker + len(MARKERS))
        ]
        return min(candidates, key=self.styles.__getitem__)

    def cost(self, style: Style, preferred: Style) -> tuple[int, ...]:
        """Uses of the style and its colour; if that is not preferred; uses of marker and line."""
        colour, marker, line = (c[part] for c, part in zip(self.parts, style, strict=True))
        return self.styles[style], colour, style.colour != preferred.colour, marker, line
