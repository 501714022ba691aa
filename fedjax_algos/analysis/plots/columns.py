"""The columns of rows as axes: names, units and limits."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from fedjax_algos.core.options import is_number
from fedjax_algos.core.texts import printable, si_prefix


class Axis(NamedTuple):
    """A column as the x axis names it.

    Attributes:
      label: without the unit.
      unit: of bytes and operations, which have prefixes; else "".
    """

    label: str
    unit: str = ""


AXES = {  # columns for the x axis
    "round": Axis("communication round"),
    "upload_bytes": Axis("upload of all clients", "B"),
    "download_bytes": Axis("download of all clients", "B"),
    "flops": Axis("computation of all clients", "FLOP"),
    "simulated_seconds": Axis("simulated seconds"),
    "wall_seconds": Axis("wall time in seconds"),
}
WHOLE = {"round"}  # columns of whole numbers, which an axis does not divide
_MAX_CHARACTERS = 80  # of a text
Limits = tuple[float | None, float | None]
NO_LIMITS: Limits = (None, None)


class Column(NamedTuple):
    """A column as an axis shows it."""

    name: str
    label: str
    unit: float  # by which values are divided
    limits: Limits  # in the unit of the column, such as bytes
    logarithmic: bool


def axes_of(columns: Collection[str]) -> dict[str, Axis]:
    """The columns for the x axis, by name; on the virtual clock a round is a server step.

    Args:
      columns: those of the rows.
    """
    axes = {name: axis for name, axis in AXES.items() if name in columns}
    if "simulated_seconds" in axes:
        axes |= {"round": Axis("server step")}
    return axes


def column_of(
    name: str,
    values: Iterable[np.ndarray],
    limits: Limits,
    *,
    axes: Mapping[str, Axis],
    label: str | None,
    logarithmic: bool,
) -> Column:
    """A column, in the unit that suits its largest value within the limits.

    Args:
      name: of the column.
      values: of all curves; NaN is left out.
      limits: None for the default.
      axes: of `axes_of`.
      label: replaces the name and the unit.
      logarithmic: whether the axis is.
    """
    largest = max((float(np.nanmax(v, initial=0)) for v in values), default=0.0)
    largest = largest if limits[1] is None else min(largest, limits[1])
    axis = axes.get(name, Axis(name.replace("_", " ")))
    factor, prefix = si_prefix(largest) if axis.unit else (1.0, "")
    if label is None:
        label = axis.label + (f", {prefix}{axis.unit}" if axis.unit else "")
    label = printable(label, longest=_MAX_CHARACTERS)
    return Column(name, label, factor, limits, logarithmic)


def check_limits(name: str, limits: Limits, logarithmic: bool) -> None:
    """Raises ValueError for limits that are no interval.

    Args:
      name: of the option.
      limits: the lower and the upper one; None for the default.
      logarithmic: whether they have to be above 0.
    """
    if not isinstance(limits, tuple | list) or len(limits) != 2:
        raise ValueError(f"{name}={limits!r} is no interval; give the lower and the upper limit")
    given = [limit for limit in limits if limit is not None]
    if not all(is_number(limit, float) for limit in given):
        raise ValueError(f"{name}={limits!r} is no interval; give finite numbers")
    if len(given) == 2 and given[0] >= given[1]:
        raise ValueError(f"{name}={limits!r} is no interval; give the lower limit first")
    if logarithmic and min(given, default=1) <= 0:
        raise ValueError(f"{name}={limits!r} does not fit a logarithmic axis; give limits above 0")
