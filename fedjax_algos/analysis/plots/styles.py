"""The colour, the marker and the line style of each method in a figure.

The colours were chosen by a numerical search: each pair differs for readers with normal vision and
for those who lack one kind of cones, and their greys are evenly spaced from black to light grey.
"""

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

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
SEPARATOR = ": "  # of a results folder and a method, in the labels of several folders


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

    An algorithm of the package has one style in all figures. Any other label, such as that of a
    variant or of an algorithm of the user's own, prefers the style that follows from its text; it
    takes another colour, marker or line if other methods of the figure have these, as long as there
    are some. Up to 64 methods have different styles.

    A results folder before the name, as in `longer: fedavg`, does not count. But if a figure has a
    method of several folders, each of them is like a variant of its own.

    Args:
      labels: of the methods.
    """
    labels = list(dict.fromkeys(labels))
    methods = [label.rpartition(SEPARATOR)[2] for label in labels]
    uses = Counter(methods)
    texts = {
        label: method if uses[method] == 1 else label
        for label, method in zip(labels, methods, strict=True)
    }
    styles = {label: FIXED_STYLES[text] for label, text in texts.items() if text in FIXED_STYLES}
    taken = _Taken(styles.values())
    for label in sorted(set(labels) - set(styles), key=texts.__getitem__):  # whatever their order
        preferred = zlib.crc32(texts[label].encode("utf-8", "surrogatepass"))
        candidates = [_style((preferred + step) % _SLOTS) for step in range(_SLOTS)]
        styles[label] = min(candidates, key=lambda style: taken.cost(style, candidates[0]))
        taken.add(styles[label])
    return {label: styles[label] for label in labels}


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

    def cost(self, style: Style, preferred: Style) -> tuple[int, ...]:
        """Uses of the style and its colour; if that is not preferred; uses of marker and line."""
        colour, marker, line = (c[part] for c, part in zip(self.parts, style, strict=True))
        return self.styles[style], colour, style.colour != preferred.colour, marker, line
