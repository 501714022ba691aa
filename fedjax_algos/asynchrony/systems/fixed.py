"""Systems of given times, in Python or in a CSV file; sessions, the given times of availability."""

import bisect
import copy
import csv as csv_files
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.asynchrony.systems.system_model import (
    SystemModelFactory,
    SystemModelWithSpeeds,
    check_unavailability,
    require_at_least_0,
    system_models,
    transfer_seconds,
)
from fedjax_algos.core.files import read_file
from fedjax_algos.core.limits import MAX_INT32
from fedjax_algos.core.options import NonNegative, Positive
from fedjax_algos.core.reprs import describe, printable

_COLUMNS = ("client", "dispatch", "seconds_per_step", "lost_after", "seconds_away")
_UNAVAILABLE = _COLUMNS[3:]
_TOLERANCE = 1e-6  # seconds before a session that count as its start, because times are rounded


class FixedSystem:
    """Given times in numbers of any type; with `fractions.Fraction`s a timeline is exact.

    Args:
      seconds_per_step: a number for each client, or a sequence of one number for each dispatch.
      unavailable: `{(client, number of the dispatch): (share, seconds away)}`: the dispatch is lost
        after this share of its time, from 0 to 1, and the client is back after these seconds,
        `math.inf` for never.
      communication_seconds: seconds that each dispatch takes for download and upload together.

    Raises:
      ValueError: for no clients, times that are not positive and finite, or an invalid entry of
        `unavailable`.
    """

    def __init__(
        self,
        seconds_per_step: Sequence[Any],
        unavailable: Mapping[tuple[int, int], tuple[Any, Any]] | None = None,
        *,
        communication_seconds: Any = 0,
    ):
        self._times = [tuple(t) if isinstance(t, Iterable) else t for t in seconds_per_step]
        self._unavailable = dict(unavailable or {})
        self.communication_seconds = communication_seconds
        if not self._times:
            raise ValueError("seconds_per_step is empty; give a time for each client")
        for client, times in enumerate(self._times):
            if isinstance(times, tuple) and not times:
                raise ValueError(f"client {client} has no times; give one for each dispatch")
            for time in times if isinstance(times, tuple) else (times,):
                if not 0 < time < math.inf:
                    raise ValueError(
                        f"seconds_per_step={time} of client {client} is out of range; give a "
                        "number above 0"
                    )
        for (client, number), unavailability in self._unavailable.items():
            if not (0 <= client < len(self._times) and number >= 0):
                raise ValueError(
                    f"unavailable has an entry for dispatch {number} of client {client}; give "
                    f"dispatches of at least 0 and clients of 0 to {len(self._times) - 1}"
                )
            check_unavailability(client, number, unavailability)
        require_at_least_0(communication_seconds=communication_seconds)

    def __repr__(self) -> str:
        return describe(self, clients=len(self._times), unavailable=len(self._unavailable))

    def seconds(self, client: int, number: int, num_steps: int) -> Any:
        """Seconds that a dispatch takes, including communication.

        Args:
          client: the client's id.
          number: number of this dispatch of the client, from 0.
          num_steps: local steps of the dispatch.

        Raises:
          ValueError: for a client or dispatch without a time.
        """
        return num_steps * self._time(client, number) + self.communication_seconds

    def unavailability(self, client: int, number: int) -> tuple[Any, Any] | None:
        """None, or (share of the dispatch's time after which it is lost, seconds away).

        Args:
          client: the client's id.
          number: number of this dispatch of the client, from 0.
        """
        return self._unavailable.get((client, number))

    def expected_seconds_per_step(self, client: int) -> Any:
        """The client's time, or the mean of its times.

        Args:
          client: the client's id.

        Raises:
          ValueError: for a client without a time.
        """
        self._time(client, 0)
        times = self._times[client]
        return sum(times) / len(times) if isinstance(times, tuple) else times

    def _time(self, client: int, number: int) -> Any:
        if client >= len(self._times):
            raise ValueError(
                f"client {client} has no time in seconds_per_step, which has {len(self._times)}; "
                "give one for each client"
            )
        times = self._times[client]
        if not isinstance(times, tuple):
            return times
        if number >= len(times):
            raise ValueError(
                f"dispatch {number} of client {client} is after the end of its trace of "
                f"{len(times)} dispatches; give a longer one, or a single time for each client"
            )
        return times[number]


def traced(
    seconds_per_step: np.ndarray,
    unavailable: Mapping[tuple[int, int], tuple[float, float]] | None = None,
    *,
    communication_seconds: float = 0.0,
    bytes_per_second: float | None = None,
) -> SystemModelFactory:
    """Your own times, for example measured ones. The system is the same for all seeds.

    Args:
      seconds_per_step: float[num_clients], the same for all dispatches, or float[num_clients,
        dispatches]. A dispatch after the end of the trace is an error: nothing is repeated.
      unavailable: which dispatches are lost:
        `{(client, number of the dispatch): (share of the dispatch's time, seconds away)}`; see
        `FixedSystem`.
      communication_seconds: seconds that each dispatch takes for download and upload together.
      bytes_per_second: adds (download_bytes + upload_bytes) / bytes_per_second seconds to each
        dispatch; None adds nothing.

    Returns:
      A function that makes the system model. It raises `ValueError` for negative numbers of bytes.

    Raises:
      ValueError: for another shape, times that are not positive and finite, or an invalid entry of
        `unavailable`.
    """
    times = np.asarray(seconds_per_step, float)
    if times.ndim not in (1, 2) or not times.size:
        raise ValueError(
            f"seconds_per_step has shape {times.shape}; give a time for each client, or for each "
            "client and dispatch"
        )
    if bytes_per_second is not None and not bytes_per_second > 0:
        raise ValueError(
            f"bytes_per_second={bytes_per_second} is out of range; give a number above 0"
        )
    system = FixedSystem(times.tolist(), unavailable, communication_seconds=communication_seconds)
    return _for_all_seeds(system, bytes_per_second)


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
      ValueError: for a file that cannot be read, with what is wrong in it.
    """
    times, unavailable = _read(file)
    try:
        system = FixedSystem(times, unavailable, communication_seconds=communication_seconds)
    except ValueError as error:
        raise ValueError(f"{printable(file)}: {error}") from None
    return _for_all_seeds(system, bytes_per_second)


def _for_all_seeds(system: FixedSystem, bytes_per_second: float | None) -> SystemModelFactory:
    """A factory of the same system for all seeds, to whose dispatches it adds the bytes' time."""

    def make(
        seed: int, *, download_bytes: float = 0, upload_bytes: float = 0
    ) -> SystemModelWithSpeeds:
        made = copy.copy(system)
        made.communication_seconds += transfer_seconds(
            download_bytes, upload_bytes, bytes_per_second
        )
        return made

    return make


def _read(path: str) -> tuple[list[Any], dict[tuple[int, int], tuple[float, float]]]:
    """The arguments of `FixedSystem` in a file: seconds per step, and unavailability."""
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
        if any(row.get(column) for column in _UNAVAILABLE):
            lost_after, seconds_away = (
                _number(place, column, row[column]) for column in _UNAVAILABLE
            )
            unavailable[client, len(own)] = lost_after, seconds_away
        own.append(_number(place, "seconds_per_step", row["seconds_per_step"]))
    missing = next((i for i in range(len(times)) if i not in times), None)
    if missing is not None or not times:
        raise ValueError(f"{name} has no line of client {missing or 0}; number clients from 0")
    ordered = [times[client] for client in range(len(times))]
    return ordered if "dispatch" in columns else [each[0] for each in ordered], unavailable


def _check_columns(name, columns):
    needed = {"client", "seconds_per_step"}
    if set(_UNAVAILABLE) & set(columns):
        needed |= {*_UNAVAILABLE, "dispatch"}
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


def _number(place, column, text):
    try:
        return float(text)
    except ValueError:
        shown = printable(repr(text), 80)
        raise ValueError(f"{place}: {column}={shown} is no number; give one") from None


class Sessions(NamedTuple):
    """The times in which a client is available, both ends included, in each period."""

    starts: tuple[Any, ...]  # ascending, from 0 to below the period; sessions that touch are one
    ends: tuple[Any, ...]  # at most the period
    period: Any  # in the same unit; sessions repeat after it

    @classmethod
    def of(cls, starts: Sequence[Any], ends: Sequence[Any], period: Any) -> "Sessions":
        """Joins sessions that touch, and leaves out one that starts when the period ends.

        `starts` ascend from 0; no end is before its start, after the next start or after `period`.
        """
        firsts: list[Any] = []
        lasts: list[Any] = []
        for start, end in zip(starts, ends, strict=True):
            if lasts and start == lasts[-1]:
                lasts[-1] = end
            elif start < period:
                firsts.append(start)
                lasts.append(end)
        return cls(tuple(firsts), tuple(lasts), period)

    def unavailability(self, now: Any, seconds: Any) -> tuple[Any, Any] | None:
        """What happens to a dispatch; see `SystemModelWithSessions.unavailability_at`."""
        starts, ends, period = self
        if not starts:
            return 0, math.inf
        if starts[0] == 0 and ends[0] == period:
            return None
        time = now % period
        time = 0 if period - time <= _TOLERANCE else time
        index = bisect.bisect_right(starts, time + _TOLERANCE) - 1
        following = starts[index + 1] if index + 1 < len(starts) else period + starts[0]
        if index < 0 or time > ends[index]:
            return 0, following - time
        time, end = max(time, starts[index]), ends[index]
        if end == period and starts[0] == 0:  # it goes on in the next period
            end, following = period + ends[0], period + starts[1]
        if seconds <= end - time:
            return None
        return (end - time) / seconds, following - end
