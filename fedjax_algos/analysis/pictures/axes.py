"""Parts that all figures share: styles, reproducible files, and axes that show columns."""

import contextlib
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedjax_algos.analysis.labels import label_text
from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import si_prefix
from fedjax_algos.core.options import check_choice, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PictureStyle = Literal["screen", "paper"]
COLUMN_WIDTH, TEXT_WIDTH = 3.25, 6.75  # inches of one and two columns of a paper
BLUE = "#2e73eb"  # of pictures with one colour
_DOTS_PER_INCH = 200
# None removes the date, so that files have the same bytes every time
_METADATA: dict[str, Any] = {".pdf": {"CreationDate": None}, ".png": {}, ".svg": {"Date": None}}
_FONTS: Any = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "fedjax_algos"}
_TICKS = {"width": 0.5, "size": 2.5}
_PAPER: dict[str, Any] = {
    "font.family": ["STIXGeneral", "DejaVu Sans"],  # the second has more characters
    "mathtext.fontset": "stix",
    "hatch.linewidth": 0.6,
    "axes.linewidth": 0.5,
    "grid.linewidth": 0.5,
    **{f"{axis}tick.major.{name}": v for axis in "xy" for name, v in _TICKS.items()},
}


class Look(NamedTuple):
    """The settings of a style."""

    points: float  # of type
    small: float  # points of type in narrow panels
    narrow: float  # a panel below this width in inches is narrow
    lines: float  # factor of the widths of lines and the sizes of markers


_LOOKS = {"screen": Look(10, 8, 3.2, 1.0), "paper": Look(8, 7, 2.0, 0.7)}
PICTURE_STYLES = tuple(_LOOKS)


@contextlib.contextmanager
def picture_style(style: PictureStyle) -> Iterator[Look]:
    """Sets matplotlib's fonts and lines while a picture is made.

    Args:
      style: "screen"; or "paper" for a Times font as in LaTeX classes, small type and thin lines.
    """
    from matplotlib import rc_context  # slow to import

    check_choice("style", style, PICTURE_STYLES)
    look = _LOOKS[style]
    settings: Any = {**(_PAPER if style == "paper" else {}), "font.size": look.points}
    with rc_context(settings):
        yield look


def new_figure(size: tuple[float, float]) -> "Figure":
    """Returns an empty figure of a size in inches, which makes room for its texts."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def finish_axes(axes: "Axes", style: PictureStyle, title: str = "") -> None:
    """Removes the upper and right lines of the frame; draws the title if the style is "screen"."""
    from matplotlib import rcParams

    if style == "screen":
        axes.set_title(title, fontsize=_LOOKS[style].points)
    axes.tick_params(labelfontfamily=rcParams["font.family"])
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: "Figure", path: str | Path, style: PictureStyle = "screen") -> None:
    """Writes a figure to a file, with the same bytes each time.

    Args:
      figure: a figure of matplotlib.
      path: the file: .png, .pdf (with TrueType fonts) or .svg (texts are texts).
      style: the style in which the figure was drawn.

    Raises:
      ValueError: for another format, or a figure that is too small for its texts.
    """
    from matplotlib import rc_context

    suffix = Path(path).suffix.lower()
    check_choice("suffix", suffix, sorted(_METADATA))
    with picture_style(style), rc_context(_FONTS), warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            figure.savefig(path, dpi=_DOTS_PER_INCH, metadata=_METADATA[suffix])
        except UserWarning as error:
            width, height = figure.get_size_inches()
            text = f"size={width:g}x{height:g} has no room for the axes beside the texts; give a"
            raise ValueError(f"{text} larger size, or shorter or fewer labels") from error


def counted(number: int, noun: str) -> str:
    """Writes a number with its noun, such as `1 client` or `2 clients`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


AXES = {  # columns for the x axis: their names and units, "B" and "FLOP" have prefixes
    "round": ("communication round", ""),
    "upload_bytes": ("upload of all clients", "B"),
    "download_bytes": ("download of all clients", "B"),
    "flops": ("computation of all clients", "FLOP"),
    "simulated_seconds": ("simulated seconds", ""),
    "wall_seconds": ("wall time in seconds", ""),
    "epsilon": ("epsilon", ""),
}
Limits = tuple[float | None, float | None]
NO_LIMITS: Limits = (None, None)


class Axis(NamedTuple):
    """A column on an axis."""

    name: str
    label: str
    unit: float  # values are divided by it
    limits: Limits  # in the unit of the column, such as bytes
    logarithmic: bool


def axes_of(columns: Collection[str]) -> dict[str, tuple[str, str]]:
    """Returns the entries of `AXES` for columns; on the virtual clock a round is a server step."""
    axes = {name: axis for name, axis in AXES.items() if name in columns}
    return axes | ({"round": ("server step", "")} if "simulated_seconds" in axes else {})


def column_of(
    axes: Mapping[str, tuple[str, str]],
    name: str,
    values: Iterable[np.ndarray],
    limits: Limits,
    label: str | None,
    logarithmic: bool,
) -> Axis:
    """Returns a column's axis; its unit suits the largest value of all curves in the limits."""
    text, unit = axes.get(name, (name.replace("_", " "), ""))
    largest = max((float(np.nanmax(v, initial=0)) for v in values), default=0.0)
    largest = largest if limits[1] is None else min(largest, limits[1])
    factor, prefix = si_prefix(largest) if unit else (1.0, "")
    label = (f"{text}, {prefix}{unit}" if unit else text) if label is None else label
    return Axis(name, label_text(label), factor, limits, logarithmic)


def check_limits(name: str, limits: Limits, logarithmic: bool) -> None:
    """Raises ValueError for limits that are not an interval of the axis."""
    is_pair = isinstance(limits, tuple | list) and len(limits) == 2
    ends = [limit for limit in limits if limit is not None] if is_pair else []
    fits = is_pair and all(is_number(end, float) for end in ends) and ends == sorted({*ends})
    fits = fits and (not logarithmic or min(ends, default=1) > 0)
    kind = "finite numbers" + " above 0" * logarithmic
    require(fits, f"{name}={limits!r} is not an interval of its axis; give {kind}, lower first")
