"""What all pictures share: two styles, and files with the same bytes every time.

matplotlib is imported late, because it is slow to import.
"""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedjax_algos.core.options import check_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PictureStyle = Literal["screen", "paper"]
COLUMN_WIDTH, TEXT_WIDTH = 3.25, 6.75  # inches that fit into one and two columns
DOTS_PER_INCH = 200
BLUE = "#2e73eb"  # of pictures with one colour
# no dates; an entry that is None is left out
_METADATA: dict[str, dict[str, Any]] = {
    ".pdf": {"CreationDate": None},
    ".png": {},
    ".svg": {"Date": None},
}
_FONTS: Any = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "fedjax_algos"}
_PAPER: dict[str, Any] = {
    "font.family": ["STIXGeneral", "DejaVu Sans"],  # the second has more characters
    "mathtext.fontset": "stix",
    "hatch.linewidth": 0.6,
    **dict.fromkeys(
        ("axes.linewidth", "grid.linewidth", "xtick.major.width", "ytick.major.width"), 0.5
    ),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
}


class Look(NamedTuple):
    """What a style sets.

    Attributes:
      points: of type.
      small: points of type in narrow panels.
      narrow: inches of a panel, below which it is one.
      lines: factor of the widths of lines and the sizes of markers.
      settings: of matplotlib, by name.
    """

    points: float
    small: float
    narrow: float
    lines: float
    settings: dict[str, Any]

    def points_in(self, width: float) -> float:
        """Points of type in a panel.

        Args:
          width: of the panel, in inches.
        """
        return self.points if width >= self.narrow else self.small


_LOOKS = {"screen": Look(10, 8, 3.2, 1.0, {}), "paper": Look(8, 7, 2.0, 0.7, _PAPER)}
PICTURE_STYLES = tuple(_LOOKS)


@contextlib.contextmanager
def picture_style(style: PictureStyle) -> Iterator[Look]:
    """Sets matplotlib's fonts and lines while a picture is made.

    Args:
      style: "screen"; or "paper" for a Times font as LaTeX classes have it, small type, thin lines.

    Raises:
      ValueError: for another style.
    """
    from matplotlib import rc_context

    check_choice("style", style, PICTURE_STYLES)
    look = _LOOKS[style]
    settings: Any = {**look.settings, "font.size": look.points}
    with rc_context(settings):
        yield look


def check_suffix(path: Path) -> None:
    """Raises ValueError for a file whose suffix names no format.

    Args:
      path: of a picture.
    """
    check_choice("suffix", path.suffix.lower(), sorted(_METADATA))


def save_figure(figure: "Figure", path: str | Path, style: PictureStyle = "screen") -> None:
    """Writes a figure as PNG, as PDF with TrueType fonts, or as SVG whose texts are texts.

    Args:
      figure: of matplotlib.
      path: the file; its suffix says the format.
      style: in which the figure was drawn.

    Raises:
      ValueError: for another format, or if the figure is too small for its texts.
    """
    from matplotlib import rc_context

    path = Path(path)
    check_suffix(path)
    with picture_style(style), rc_context(_FONTS), warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            figure.savefig(path, dpi=DOTS_PER_INCH, metadata=_METADATA[path.suffix.lower()])
        except UserWarning as error:
            width, height = figure.get_size_inches()
            raise ValueError(
                f"size={width:g}x{height:g} has no room for the axes beside the texts; give a "
                "larger size, or shorter or fewer labels"
            ) from error
