"""System models: how long dispatches take and which of them are lost, under any planner.

Also systems of given times, in Python or a CSV file.
"""

import copy
import csv as csv_files
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import read_file, reading
from fedjax_algos.base.reprs import printable
from fedjax_algos.core.options import NonNegative, Positive, options
from fedjax_algos.core.registry import Registry

_FIX = "give a CSV file with the columns client and seconds_per_step"
_COLUMNS = ("client", "dispatch", "seconds_per_step", "lost_after", "seconds_away")
_UNAVAILABLE = _COLUMNS[3:]


class SystemModel(Protocol):
    """Speeds and unavailability of clients.

    Results depend on the seed, client and dispatch number alone, so all methods run on one system.
    """

    def seconds(self, client: int, number: int, num_steps: int) -> float:
        """Returns the seconds that a dispatch takes, including communication.

        Args:
          client, number: its id, and the number of this dispatch of the client, from 0.
          num_steps: local steps of the dispatch.
        """

    def unavailability(self, client: int, number: int) -> tuple[float, float] | None:
        """Returns when the client leaves a dispatch, which is then lost, and for how long.

        Args:
          client, number: as for `seconds`.

        Returns:
          None if it stays, or (share of the dispatch's time until it leaves, seconds away). The
          server learns of the loss when the client leaves.
        """


@runtime_checkable
class SystemModelWithSessions(SystemModel, Protocol):
    """A system model whose clients come and go at given times, the same in all compared methods."""

    def unavailability_at(
        self, client: int, now: float, seconds: float
    ) -> tuple[float, float] | None:
        """Returns when the client leaves, and for how long; replaces `unavailability`.

        Args:
          client: the client's id.
          now, seconds: when the dispatch starts, and how long it takes.

        Returns:
          As `SystemModel.unavailability`; a share of 0 for a client that is away at `now`.
        """


@runtime_checkable
class SystemModelWithSpeeds(SystemModel, Protocol):
    """A system model that knows the clients' mean speeds, which define the tiers."""

    def expected_seconds_per_step(self, client: int) -> float:
        """Returns the client's t_i at the start, without communication.

        Args:
          client: the client's id.
        """


class SystemModelFactory(Protocol):
    """Makes the system model of a seed; factories of system models return one."""

    def __call__(
        self, seed: int, *, download_bytes: float = 0, upload_bytes: float = 0
    ) -> SystemModelWithSpeeds:
        """Makes the system model of a seed.

        Args:
          seed: the seed of all draws, at least 0.
          download_bytes, upload_bytes: bytes that a client receives and sends in a dispatch.
        """


system_models = Registry[SystemModelFactory]("system model", Callable)


def system_of(spec: str, batch_size: int) -> SystemModelFactory:
    """Returns the system model that a spec names, with the run's batch size if it needs one.

    Args:
      spec: such as "simulated:speeds=exponential".
      batch_size: the batch size for a system model with this option, unless the spec has it.

    Raises:
      ValueError: for an unknown name or option, or a value out of range.
    """
    name, values = system_models.parse(spec)
    if "batch_size" in options(system_models[name]):
        values = {"batch_size": batch_size} | values
    return system_models[name](**values)


def check_unavailability(client: int, number: int, unavailability: tuple[Any, Any]) -> None:
    """Raises ValueError for a share or seconds away out of range."""
    found = f"dispatch {number} of client {client} has unavailability={unavailability}"
    fix = "give a share of its time from 0 to 1 and seconds away of at least 0, not both of them 0"
    is_pair = isinstance(unavailability, tuple) and len(unavailability) == 2
    share, away = unavailability if is_pair else (0, 0)
    # not both 0, because the client would leave and return without end at the same time
    require(0 <= share <= 1 and away >= 0 and (share or away), f"{found}; {fix}")


def transfer_seconds(download: float, upload: float, bytes_per_second: float | None) -> float:
    """Returns the seconds that a dispatch's bytes take; 0 without `bytes_per_second`."""
    require_at_least_0(download_bytes=download, upload_bytes=upload)
    return 0.0 if bytes_per_second is None else (download + upload) / bytes_per_second


def require_at_least_0(**values: Any) -> None:
    """Raises ValueError unless each of these values is finite and at least 0."""
    for name, value in values.items():
        require(0 <= value < math.inf, f"{name}={value} is out of range; give at least 0")


class FixedSystem:
    """A system of given times, numbers of any type; `fractions.Fraction`s make timelines exact.

    Args:
      seconds_per_step: a number for each client, or a sequence of one number for each dispatch.
      unavailable: `{(client, number of the dispatch): (share, seconds away)}`: lost after this
        share of its time, from 0 to 1; the client is back after these seconds, or `math.inf`.
      communication_seconds: seconds that each dispatch takes for download and upload together.

    Raises:
      ValueError: for no clients, times out of range, or an invalid entry of `unavailable`.
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
        for client, times in enumerate(self._times or [()]):
            given = times if isinstance(times, tuple) else (times,)
            if not (given and all(0 < time < math.inf for time in given)):
                found = f"client {client} has seconds_per_step={printable(times, 60)}"
                raise ValueError(f"{found}; give a number above 0, or one for each dispatch")
        fix = f"give dispatches of at least 0 and clients of 0 to {len(self._times) - 1}"
        for (client, number), unavailability in self._unavailable.items():
            entry = f"unavailable has an entry for dispatch {number} of client {client}"
            require(0 <= client < len(self._times) and number >= 0, f"{entry}; {fix}")
            check_unavailability(client, number, unavailability)
        require_at_least_0(communication_seconds=communication_seconds)

    def seconds(self, client: int, number: int, num_steps: int) -> Any:
        """See `SystemModel.seconds`; ValueError for a client or dispatch without a time.

        Args:
          client, number, num_steps: as there.
        """
        return num_steps * self._time(client, number) + self.communication_seconds

    def unavailability(self, client: int, number: int) -> tuple[Any, Any] | None:
        """See `SystemModel.unavailability`.

        Args:
          client, number: as there.
        """
        return self._unavailable.get((client, number))

    def expected_seconds_per_step(self, client: int) -> Any:
        """Returns the client's mean time; ValueError for a client without a time.

        Args:
          client: the client's id.
        """
        first, times = self._time(client, 0), self._times[client]
        return sum(times) / len(times) if isinstance(times, tuple) else first

    def _time(self, client, number):
        times = self._times[client] if client < len(self._times) else ()
        if not isinstance(times, tuple):
            return times
        found = f"dispatch {number} of client {client} has no time in seconds_per_step"
        require(number < len(times), f"{found}; give more times, or a single one for each client")
        return times[number]


def traced(
    seconds_per_step: np.ndarray,
    unavailable: Mapping[tuple[int, int], tuple[float, float]] | None = None,
    *,
    communication_seconds: float = 0.0,
    bytes_per_second: float | None = None,
) -> SystemModelFactory:
    """Makes a system of given times, such as measured ones, the same for all seeds.

    Args:
      seconds_per_step: float[num_clients], the same for all dispatches, or float[num_clients,
        dispatches]. A dispatch after the end of the trace is an error: nothing is repeated.
      unavailable: which dispatches are lost; see `FixedSystem`.
      communication_seconds: seconds that each dispatch takes for download and upload together.
      bytes_per_second: adds (download_bytes + upload_bytes) / bytes_per_second seconds, if given.

    Returns:
      A function that makes the system model. It raises `ValueError` for negative numbers of bytes.

    Raises:
      ValueError: for another shape, times out of range, or an invalid entry of `unavailable`.
    """
    times = np.asarray(seconds_per_step, float)
    fix = "give a time for each client, or for each client and dispatch"
    require(times.ndim in (1, 2) and times.size, f"seconds_per_step has shape {times.shape}; {fix}")
    message = f"bytes_per_second={bytes_per_second} is out of range; give a number above 0"
    require(bytes_per_second is None or bytes_per_second > 0, message)
    system = FixedSystem(times.tolist(), unavailable, communication_seconds=communication_seconds)
    return _for_all_seeds(system, bytes_per_second)


@system_models.register
def csv(
    *, file: str, communication_seconds: NonNegative = 0.0, bytes_per_second: Positive | None = None
) -> SystemModelFactory:
    """Reads times, such as measured ones, from a CSV file with a line for each client.

    The first line names the columns `client` (0, 1, ...) and `seconds_per_step`. With `dispatch`
    (0, 1, ... for each client) each dispatch has a line of its own, and one after the last line of
    its client is an error: nothing is repeated. With the columns `lost_after` and `seconds_away`, a
    dispatch that has values there is lost after this share of its time, from 0 to 1, and the client
    is back after these seconds, `inf` for never. The system is the same for all seeds. Lines of
    clients that the run does not have are not used.

    Args:
      file: the path of the file.
      communication_seconds, bytes_per_second: as in `traced`.

    Returns:
      A function that makes the system model. It raises `ValueError` for negative numbers of bytes.

    Raises:
      ValueError: for a file that cannot be read, with what is wrong in it.
    """
    with reading(file, "a CSV file of times", _FIX, csv_files.Error):
        times, unavailable = _read(file)
        system = FixedSystem(times, unavailable, communication_seconds=communication_seconds)
    return _for_all_seeds(system, bytes_per_second)


def _for_all_seeds(system: FixedSystem, bytes_per_second: float | None) -> SystemModelFactory:
    """Returns a factory of the same system for all seeds; dispatches also take the bytes' time."""

    def make(seed: int, *, download_bytes: float = 0, upload_bytes: float = 0) -> FixedSystem:
        made, transfer = copy.copy(system), (download_bytes, upload_bytes, bytes_per_second)
        made.communication_seconds += transfer_seconds(*transfer)
        return made

    return make


def _read(path: str) -> tuple[list[Any], dict[tuple[int, int], tuple[float, float]]]:
    """Reads the arguments of `FixedSystem`: seconds per step, and unavailability."""
    text = io.StringIO(read_file(path).decode("utf-8-sig"), newline="")
    header, *lines = [*csv_files.reader(text, strict=True)] or [[]]
    columns = [each.strip() for each in header]
    needed = {"client", "seconds_per_step"}
    if set(_UNAVAILABLE) & set(columns):
        needed |= {*_UNAVAILABLE, "dispatch"}
    known = needed <= set(columns) <= set(_COLUMNS) and len(set(columns)) == len(columns)
    expected = ",".join(each for each in _COLUMNS if each in needed | set(columns))
    require(known, f"line 1: the columns are {','.join(columns)[:200]}; give {expected}")
    times: dict[int, list[Any]] = {}
    unavailable: dict[tuple[int, int], tuple[float, float]] = {}
    for number, cells in enumerate(lines, start=2):
        if not cells:
            continue
        found = f"line {number} has {len(cells)} cells for {len(columns)} columns"
        require(len(cells) == len(columns), found)
        row = dict(zip(columns, map(str.strip, cells), strict=True))
        texts = [row.get(name, "0") for name in _COLUMNS[:2]]
        are_whole = all(text.isascii() and text.isdecimal() and len(text) < 10 for text in texts)
        require(are_whole, f"line {number}: {texts} are not whole numbers; give 0, 1, 2, ...")
        client, dispatch = map(int, texts)
        earlier = times.setdefault(client, [])
        found = f"line {number} has dispatch {dispatch}, not {len(earlier)}, of client {client}"
        fix = "give one line for each client, or number its dispatches in a column dispatch"
        require(dispatch == len(earlier), f"{found}; {fix}")
        if any(row.get(column) for column in _UNAVAILABLE):
            lost_after, seconds_away = (_number(number, row[column]) for column in _UNAVAILABLE)
            unavailable[client, dispatch] = lost_after, seconds_away
        earlier.append(_number(number, row["seconds_per_step"]))
    ordered = [times.get(client, []) for client in range(len(times))]
    if "dispatch" not in columns:
        ordered = [each[0] if each else each for each in ordered]
    return ordered, unavailable


def _number(line, text):
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"line {line}: {text[:80]!r} is not a number; give one") from None
