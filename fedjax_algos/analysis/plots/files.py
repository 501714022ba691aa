"""How a figure is written: the same bytes every time, and text that remains text."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_algos.core.options import check_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 200
# no dates; an entry that is None is left out
_METADATA: dict[str, dict[str, Any]] = {
    ".pdf": {"CreationDate": None},
    ".png": {},
    ".svg": {"Date": None},
}
_FONTS: Any = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "fedjax_algos"}


def check_suffix(path: Path) -> None:
    """Raises ValueError for a file whose suffix names no format.

    Args:
      path: of a picture.
    """
    check_choice("suffix", path.suffix.lower(), sorted(_METADATA))


def save(figure: "Figure", path: Path) -> None:
    """Writes a figure as PNG, as PDF with TrueType fonts, or as SVG whose texts are texts.

    Args:
      figure: of matplotlib.
      path: the file; its suffix says the format.

    Raises:
      ValueError: if the figure is too small for its texts.
    """
    from matplotlib import rc_context

    with rc_context(_FONTS), warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            figure.savefig(path, dpi=DOTS_PER_INCH, metadata=_METADATA[path.suffix.lower()])
        except UserWarning as error:
            width, height = figure.get_size_inches()
            raise ValueError(
                f"size={width:g}x{height:g} has no room for the axes beside the texts; give a "
                "larger size, or shorter or fewer labels"
            ) from error
