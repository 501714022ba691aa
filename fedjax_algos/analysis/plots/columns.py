"""The columns of rows as axes: names, units and limits."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedjax_algos.core.options import is_number
from fedjax_algos.core.texts import printable

AXES = {  # columns for the x axis, and their names
    "round": "communication round",
    "upload_bytes": "upload of all clients",
    "download_bytes": "download of all clients",
    "flops": "computation of all clients",
    "simulated_seconds": "simulated seconds",
    "wall_seconds": "seconds",
}
_UNITS = {"upload_bytes": "B", "download_bytes": "B", "flops": "FLOP"}
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
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


def column_of(
    name: str,
    values: Iterable[np.ndarray],
    limits: Limits,
    *,
    label: str | None,
    logarithmic: bool,
) -> Column:
    """A column, in the unit that suits its largest value within the limits.

    Args:
      name: of the column.
      values: of all curves; NaN is left out.
      limits: None for the default.
      label: replaces the name and the unit.
      logarithmic: whether the axis is.
    """
    largest = max((float(np.nanmax(v, initial=0)) for v in values), default=0.0)
    largest = largest if limits[1] is None else min(largest, limits[1])
    powers = range(1, len(_PREFIXES)) if name in _UNITS else ()
    power = sum(largest >= 1000.0**power for power in powers)
    if label is None:
        unit = f", {_PREFIXES[power]}{_UNITS[name]}" if name in _UNITS else ""
        label = AXES.get(name, name.replace("_", " ")) + unit
    label = printable(label, longest=_MAX_CHARACTERS)
    return Column(name, label, 1000.0**power, limits, logarithmic)


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
