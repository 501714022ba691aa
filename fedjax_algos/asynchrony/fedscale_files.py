"""FedScale's files of devices: their speeds, and when they are active.

The formats are those of https://github.com/SymbioticLab/FedScale, in
benchmark/dataset/data/device_info/README.md: pickled dictionaries by the device's id. The same
dictionaries are also read as JSON, whose keys are texts.
"""

import functools
import json
import os
import re
import reprlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from fedjax_algos.asynchrony.systems.fixed import Sessions
from fedjax_algos.core.files import check_depth, max_text_bytes, open_regular, read_bounded
from fedjax_algos.core.plain_pickle import PickledDict, read_plain_pickle
from fedjax_algos.core.texts import printable
from fedjax_algos.data.read_errors import explain_read_errors

T = TypeVar("T")

_FIX = "give a file in FedScale's format"
_SPACE = re.compile(r"[ \t\n\r]*")


class Device(NamedTuple):
    """How fast a device is.

    Attributes:
      computation: milliseconds of the inference of one example.
      communication: kbit/s, of 1024 bits.
    """

    computation: float
    communication: float


def read_devices(path: str) -> tuple[Device, ...]:
    """Reads `{id: {"computation": ..., "communication": ...}}`, in the order of the file.

    Args:
      path: such as FedScale's `client_device_capacity`.

    Raises:
      ValueError: for a file that cannot be read, with the line and column (JSON) or the byte
        (pickle) of what is wrong.
    """
    return _read(path, _device)


def read_sessions(path: str) -> tuple[Sessions, ...]:
    """Reads `{id: {"active": [...], "inactive": [...], "finish_time": ...}}`, in the file's order.

    Args:
      path: such as FedScale's `client_behave_trace`; times are in seconds, other keys are ignored.

    Raises:
      ValueError: as in `read_devices`.
    """
    return _read(path, _sessions)


def _device(entry: dict) -> Device:
    return Device(*(_number(entry, name) for name in Device._fields))


def _sessions(entry: dict) -> Sessions:
    period = _number(entry, "finish_time")
    active, inactive = (_value(entry, name) for name in ("active", "inactive"))
    if not (isinstance(active, list) and isinstance(inactive, list)):
        raise ValueError("has no lists active and inactive")
    if len(active) != len(inactive) or not active:
        raise ValueError(
            f"has {len(active)} times active and {len(inactive)} times inactive; give as many of "
            "both, and at least one"
        )
    times = [time for pair in zip(active, inactive, strict=True) for time in pair]
    previous = 0
    for time in times:
        if not (_is_number(time) and previous <= time <= period):
            raise ValueError(
                f"has the time {_shown(time)} after {previous}; give times of active and "
                f"inactive in turn, ascending, from 0 to finish_time={period}"
            )
        previous = time
    return Sessions.of(active, inactive, period)


def _value(entry: dict, name: str) -> Any:
    if name not in entry:
        raise ValueError(f"has no {name}")
    return entry[name]


def _number(entry: dict, name: str) -> float:
    value = _value(entry, name)
    if not (_is_number(value) and value > 0):
        raise ValueError(f"has {name}={_shown(value)}; give a number above 0")
    return value


def _shown(value: Any) -> str:
    """A value of a file, also one that holds another many times, which `str` would repeat."""
    return printable(value if isinstance(value, str) else reprlib.repr(value), 50)


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # whole numbers may be too large for `math.isfinite`


def _read(path: str, convert: Callable[[dict], T]) -> tuple[T, ...]:
    with explain_read_errors(path, _FIX):
        status = os.stat(path)
        return _read_once(path, convert, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4)
def _read_once(path: str, convert: Callable[[dict], T], *version: int) -> tuple[T, ...]:
    """Reads a file once for all methods and seeds, as long as it is not changed."""
    with open_regular(path) as file:
        content = read_bounded(file, max_text_bytes())
    is_json = content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))
    converted: dict[int, T] = {}  # by object, because a pickle may name one many times
    result = []
    for where, key, entry in _of_json(content) if is_json else _of_pickle(content):
        try:
            if not isinstance(entry, dict):
                raise ValueError(f"is {_shown(entry)}, not a dictionary")
            if is_json or id(entry) not in converted:
                converted[id(entry)] = convert(entry)
        except ValueError as error:
            raise ValueError(f"{where()}: device {_shown(key)} {error}") from None
        result.append(converted[id(entry)])
    if not result:
        raise ValueError("it has no devices")
    return tuple(result)


Entries = Iterator[tuple[Callable[[], str], Any, Any]]


def _of_pickle(content: bytes) -> Entries:
    devices = read_plain_pickle(content)
    if not isinstance(devices, PickledDict):
        raise ValueError(f"byte 0: it is a {type(devices).__name__}, not a dictionary of devices")
    for key, entry in devices.items():
        at = entry.position if isinstance(entry, PickledDict) else devices.position
        yield functools.partial("byte {}".format, at), key, entry


def _of_json(content: bytes) -> Entries:
    """The entries of the outermost object, each with its place."""
    check_depth(content)
    text = content.decode("utf-8-sig")
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    seen = set()

    def place(at: int) -> str:
        return f"line {text.count(chr(10), 0, at) + 1} column {at - text.rfind(chr(10), 0, at)}"

    def expect(at: int, characters: str) -> int:
        at = _space(text, at)
        if text[at : at + 1] not in tuple(characters):
            expected = " or ".join(map(repr, characters))
            raise json.JSONDecodeError(f"Expecting {expected}", text, at)
        return at + 1

    def value(at: int) -> tuple[Any, int, int]:
        start = _space(text, at)
        try:
            found, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError:
            raise
        except ValueError as error:
            raise ValueError(f"{place(start)}: {error}") from None
        return found, start, end

    at = expect(0, "{")
    if text[_space(text, at) : _space(text, at) + 1] == "}":
        return
    while text[at - 1] != "}":
        key, start, at = value(at)
        if not isinstance(key, str) or key in seen:
            problem = f"the key {key!r} is there twice" if key in seen else "a key is no text"
            raise ValueError(f"{place(start)}: {problem}")
        seen.add(key)
        entry, _, at = value(expect(at, ":"))
        yield functools.partial(place, start), key, entry
        at = expect(at, ",}")
    if _space(text, at) != len(text):
        raise json.JSONDecodeError("Extra data", text, _space(text, at))


def _space(text: str, at: int) -> int:
    """The place of the next character that is no space."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("an object has a key twice")
    return result
