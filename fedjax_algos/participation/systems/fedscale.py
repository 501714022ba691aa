"""FedScale's devices as a system model: measured speeds, bandwidths and availability.

Lai et al., "FedScale: Benchmarking Model and System Performance of Federated Learning at Scale",
ICML 2022, https://arxiv.org/abs/2105.11367; its code is https://github.com/SymbioticLab/FedScale,
where benchmark/dataset/data/device_info/README.md describes the files.
"""

import bisect
import functools
import itertools
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import parse_json, read_file, reading
from fedjax_algos.base.reprs import printable
from fedjax_algos.core.options import Count, is_number
from fedjax_algos.participation.systems import system_model
from fedjax_algos.participation.systems.system_model import require_at_least_0

T = TypeVar("T")

_SESSIONS, _DEVICES = 17, 18  # tags of NumPy's streams, after the planners' tag
_TOLERANCE = 1e-6  # seconds before a session that count as its start, because times are rounded
_TRAINING = 3.0  # FedScale's augmentation factor: a training step in inferences
_FIX = "give FedScale's dictionary as JSON; docs/asynchronous.md makes it of a pickle"
_shown = functools.partial(printable, longest=50)


class Device(NamedTuple):
    """The speed of a device: ms for the inference of one example, and kbit/s of 1024 bits."""

    computation: float
    communication: float


class Sessions(NamedTuple):
    """The times of each period when a client is available, both ends included."""

    starts: tuple[Any, ...]  # ascending, from 0 to below the period; sessions that touch are one
    ends: tuple[Any, ...]  # at most the period
    period: Any  # in the same unit; sessions repeat after it

    @classmethod
    def of(cls, starts: Sequence[Any], ends: Sequence[Any], period: Any) -> "Sessions":
        """Joins sessions that touch, given in ascending order; none starts when the period ends."""
        firsts, lasts = list[Any](), list[Any]()
        for start, end in zip(starts, ends, strict=True):
            if lasts and start == lasts[-1]:
                lasts[-1] = end
            elif start < period:
                firsts.append(start)
                lasts.append(end)
        return cls(tuple(firsts), tuple(lasts), period)

    def unavailability(self, now: Any, seconds: Any) -> tuple[Any, Any] | None:
        """See `SystemModelWithSessions.unavailability_at`."""
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


@dataclass(eq=False, repr=False)
class FedScaleSystem:
    """The system model of `fedscale` for one seed."""

    devices: tuple[Device, ...]
    sessions: tuple[Sessions, ...] | None  # None if clients are always available
    device_numbers: np.ndarray  # int[devices]: client i has entry i, modulo their number
    session_numbers: np.ndarray  # int[sessions], likewise
    batch_size: int
    kbits: float  # of 1024 bits, that a dispatch sends in both directions

    def seconds(self, client: int, number: int, num_steps: int) -> float:
        """See `SystemModel.seconds`; `number` has no effect."""
        device = self._device(client)
        milliseconds = _TRAINING * self.batch_size * num_steps * device.computation
        return milliseconds / 1000 + self.kbits / device.communication

    def unavailability(self, client: int, number: int) -> None:
        """Returns None, because clients leave depending on the time; see `unavailability_at`."""

    def unavailability_at(self, client: int, now: Any, seconds: Any) -> tuple[Any, Any] | None:
        """See `SystemModelWithSessions.unavailability_at`."""
        if self.sessions is None:
            return None
        number = self.session_numbers[client % len(self.sessions)]
        return self.sessions[number].unavailability(now, seconds)

    def expected_seconds_per_step(self, client: int) -> float:
        """See `SystemModelWithSpeeds.expected_seconds_per_step`."""
        return _TRAINING * self.batch_size * self._device(client).computation / 1000

    def _device(self, client: int) -> Device:
        return self.devices[self.device_numbers[client % len(self.devices)]]


@system_model.system_models.register
def fedscale(
    *,
    devices: str,
    behaviour: str | None = None,
    batch_size: Count,
    order: Literal["random", "file"] = "random",
) -> system_model.SystemModelFactory:
    """FedScale's devices: a dispatch of Q steps takes `3 B Q c / 1000 + (download + upload) / b` s.

    c is the device's `computation` in ms per example, B the batch size, 3 FedScale's factor of
    training over inference, and b its `communication` in kbit/s; sizes are in kbit of 1024 bits.
    This is FedScale's `get_completion_time`, with the method's bytes instead of the pickled model's
    size. The files are FedScale's dictionaries `client_device_capacity` and `client_behave_trace`
    as JSON; docs/asynchronous.md has the line that writes a pickle as JSON.

    A client is available from `active[k]` to `inactive[k]` in each period of `finish_time`
    seconds; the clock starts at 0. A dispatch that is not finished when a session ends is lost at
    that time. A dispatch that begins between sessions is lost at once. The client is back when the
    next session starts. FedScale only asks whether a client is active when a round starts and when
    it would be done. It therefore accepts updates of clients that were away in between, and sends
    no model to a client that is away (here that counts as a download).

    Args:
      devices: the file of the devices' speeds.
      behaviour: the file of their sessions; None if all clients are always available.
      batch_size: B; on the command line the run's batch size, unless it is given here.
      order: "random": independent permutations of the devices and sessions by the seed; client i
        has entry i, modulo the number of entries, so none is repeated until all are used. "file":
        the order of the file, for all seeds; FedScale's client i has entry (i + 1) of the file.

    Returns:
      A function that makes the system model of a seed; ValueError for a negative seed or bytes.

    Raises:
      ValueError: for a file that cannot be read; the message says what is wrong in it.
    """
    speeds = _read(devices, _device)
    sessions = None if behaviour is None else _read(behaviour, _sessions)

    def numbers(seed: int, stream: int, count: int) -> np.ndarray:
        rng = np.random.default_rng([seed, stream])
        return np.arange(count) if order == "file" else rng.permutation(count)

    def make(seed: int, *, download_bytes: float = 0, upload_bytes: float = 0) -> FedScaleSystem:
        require_at_least_0(seed=seed, download_bytes=download_bytes, upload_bytes=upload_bytes)
        orders = numbers(seed, _DEVICES, len(speeds)), numbers(seed, _SESSIONS, len(sessions or ()))
        kbits = (download_bytes + upload_bytes) * 8 / 1024
        return FedScaleSystem(speeds, sessions, *orders, batch_size, kbits)

    return make


def _device(entry: dict) -> Device:
    """Parses `{"computation": ..., "communication": ...}`."""
    return Device(*(_number(entry, name) for name in Device._fields))


def _sessions(entry: Any) -> Sessions:
    """Parses `{"active": [...], "inactive": [...], "finish_time": ...}`, in seconds."""
    period = _number(entry, "finish_time")
    active, inactive = entry.get("active"), entry.get("inactive")
    lists = isinstance(active, list) and isinstance(inactive, list)
    found = f"has active={_shown(active)} and inactive={_shown(inactive)}"
    require(lists and len(active) == len(inactive) > 0, f"{found}; give lists of equal length")
    times = [0, *itertools.chain(*zip(active, inactive, strict=True)), period]
    for before, time in itertools.pairwise(times):
        if not (is_number(time, float) and before <= time):  # a text for each is slow
            found = f"has the time {_shown(time)} after {_shown(before)}"
            raise ValueError(f"{found}; they ascend in turn from 0 to finish_time={period}")
    return Sessions.of(active, inactive, period)


def _number(entry: Any, name: str) -> float:
    value = entry.get(name)
    above = is_number(value, float) and 0 < value <= sys.float_info.max
    require(above, f"has {name}={_shown(value)}; give a number above 0")
    return value


def _read(path: str, convert: Callable[[dict], T]) -> tuple[T, ...]:
    with reading(path, "a file of devices", _FIX):
        status = os.stat(path)
        return _read_once(path, convert, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4)
def _read_once(path: str, convert: Callable[[dict], T], *version: int) -> tuple[T, ...]:
    """Reads a file once for all methods and seeds, unless it changes."""
    devices = parse_json(read_file(path))
    known = isinstance(devices, dict) and all(isinstance(each, dict) for each in devices.values())
    require(known and devices, "it is not a dictionary of devices, which are dictionaries")
    result = []
    for key, entry in devices.items():
        try:
            result.append(convert(entry))
        except ValueError as error:
            raise ValueError(f"device {_shown(key)} {error}") from None
    return tuple(result)
