"""A system model of measured times in a CSV file of the user's own."""

import csv as csv_files
import io
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from fedjax_algos.asynchrony.fixed_system import FixedSystem
from fedjax_algos.asynchrony.system_model import (
    SystemModelFactory,
    same_for_all_seeds,
    system_models,
)
from fedjax_algos.core.files import read_file
from fedjax_algos.core.limits import MAX_INT32
from fedjax_algos.core.options import NonNegative, Positive
from fedjax_algos.core.texts import printable

_COLUMNS = ("client", "dispatch", "seconds_per_step", "lost_after", "seconds_away")
_UNAVAILABLE = {"lost_after", "seconds_away"}


@system_models.register
def csv(
    *,
    file: str,
    communication_seconds: NonNegative = 0.0,
    bytes_per_second: Positive | None = None,
) -> SystemModelFactory:
    """Your own times in a CSV file, for example measured ones: a line for each client.

    The first line names the columns `client` (0, 1, ...) and `seconds_per_step`. With the column
    `dispatch` (0, 1, ... for each client) each dispatch has a line of its own, and one after the
    last line of its client is an error: nothing is repeated. With the columns `lost_after` and
    `seconds_away`, too, a dispatch that has values there is lost after this share of its time, from
    0 to 1, and the client is back after these seconds, `inf` for never. The system is the same for
    all seeds. Lines of clients that the run does not have are not used.

    Args:
      file: the path of the file.
      communication_seconds: seconds that each dispatch takes for download and upload together.
      bytes_per_second: adds (download_bytes + upload_bytes) / bytes_per_second seconds to each
        dispatch; None adds nothing.

    Returns:
      A function that makes the system model. It raises `ValueError` for negative numbers of bytes.

    Raises:
      ValueError: for a file that cannot be read, with the line and the value of what is wrong.
    """
    return same_for_all_seeds(_read(file), communication_seconds, bytes_per_second)


def _read(path: str) -> Callable[..., FixedSystem]:
    """The system of a file, but for its communication."""
    try:
        text = read_file(path).decode("utf-8-sig")
        header, *lines = csv_files.reader(io.StringIO(text, newline=""), strict=True)
    except (OSError, ValueError, csv_files.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"{printable(path)} cannot be read ({reason}); give a CSV file with the columns "
            "client and seconds_per_step"
        ) from None
    name, columns = printable(path), [each.strip() for each in header]
    _check_columns(name, columns)
    times: dict[int, list[float]] = {}
    unavailable: dict[tuple[int, int], tuple[float, float]] = {}
    for number, cells in enumerate(lines, start=2):
        if not cells:
            continue
        place = f"{name}, line {number}"
        if len(cells) != len(columns):
            raise ValueError(
                f"{place}: there are {len(cells)} cells for {len(columns)} columns; give one each"
            )
        row = dict(zip(columns, map(str.strip, cells), strict=True))
        client = _whole(place, "client", row["client"])
        own = times.setdefault(client, [])
        if "dispatch" not in row and own:
            raise ValueError(
                f"{place}: client {client} has a line before; give each client one line, or number "
                "its dispatches in a column dispatch"
            )
        if "dispatch" in row and _whole(place, "dispatch", row["dispatch"]) != len(own):
            raise ValueError(
                f"{place}: dispatch={row['dispatch']} of client {client} follows {len(own)} lines "
                f"of this client; give its dispatches in order, here {len(own)}"
            )
        own.append(_above_0(place, row["seconds_per_step"]))
        lost = [row[each] for each in sorted(_UNAVAILABLE & row.keys())]
        if any(lost):
            unavailable[client, len(own) - 1] = _unavailability(place, *lost)
    missing = next((i for i in range(len(times)) if i not in times), None)
    if missing is not None or not times:
        raise ValueError(f"{name} has no line of client {missing or 0}; number clients from 0")
    ordered = [times[client] for client in range(len(times))]
    own_times: list[Any] = ordered if "dispatch" in columns else [each[0] for each in ordered]
    return partial(FixedSystem, own_times, unavailable)


def _check_columns(name, columns):
    needed = {"client", "seconds_per_step"}
    if _UNAVAILABLE & set(columns):
        needed |= _UNAVAILABLE | {"dispatch"}
    missing, others = needed - set(columns), [each for each in columns if each not in _COLUMNS]
    if missing or others or len(set(columns)) < len(columns):
        raise ValueError(
            f"{name}, line 1: the columns are {printable(','.join(columns), 200)}; give "
            f"{','.join(each for each in _COLUMNS if each in needed | set(columns))}"
        )


def _whole(place, column, text):
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and int(text) <= MAX_INT32):
        raise ValueError(
            f"{place}: {column}={printable(repr(text), 80)} is no whole number; give 0, 1, 2, ..."
        )
    return int(text)


def _number(text):
    try:
        return float(text)
    except ValueError:
        return math.nan


def _above_0(place, text):
    value = _number(text)
    if not 0 < value < math.inf:
        shown = printable(repr(text), 80)
        raise ValueError(
            f"{place}: seconds_per_step={shown} is out of range; give a number above 0"
        )
    return value


def _unavailability(place, lost_after, seconds_away):
    share, away = _number(lost_after), _number(seconds_away)
    if not (0 <= share <= 1 and away >= 0 and (share or away)):
        raise ValueError(
            f"{place}: lost_after={printable(repr(lost_after), 80)} and "
            f"seconds_away={printable(repr(seconds_away), 80)}; give a share of the dispatch's "
            "time from 0 to 1 and seconds of at least 0, not both of them 0, or leave both empty"
        )
    return share, away
