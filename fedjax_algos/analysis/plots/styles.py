"""The colour, the marker and the line style of each method, the same in all figures.

The colours were chosen by a numerical search: each pair differs for readers with normal vision and
for those who lack one kind of cones, and their greys are evenly spaced from black to light grey.
"""

import zlib
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

    The name of an algorithm of the package has a fixed style. The colour of any other label, such
    as that of a variant or of an algorithm of the user's own, follows from its text, or is a free
    one if another method has it; its marker and line are free ones as long as there are some. Up to
    64 methods have different styles.

    Args:
      labels: of the methods.
    """
    labels = list(dict.fromkeys(labels))
    styles = {label: FIXED_STYLES[label] for label in labels if label in FIXED_STYLES}
    for label in sorted(set(labels) - set(styles)):  # whatever their order
        preferred = zlib.crc32(label.encode("utf-8", "surrogatepass"))
        candidates = [_style((preferred + step) % _SLOTS) for step in range(_SLOTS)]
        taken = list(styles.values())
        styles[label] = min(candidates, key=lambda style: _cost(style, candidates[0], taken))
    return {label: styles[label] for label in labels}


def _cost(style: Style, preferred: Style, taken: list[Style]) -> tuple[int, ...]:
    """Uses of the style and its colour; whether that is not preferred; uses of marker and line."""
    colour, marker, line = (sum(own == s[i] for s in taken) for i, own in enumerate(style))
    return taken.count(style), colour, style.colour != preferred.colour, marker, line
