"""Pickles of plain values, read by a machine of its own that runs nothing.

A pickle is a program, and Python's own reader calls what it names. Here dictionaries, lists,
tuples, texts, numbers, None and NumPy's scalars are read; every other opcode or name is refused.

A `pickle.Unpickler` that refuses names would not do. It says nothing of the place of an error, and
short pickles exhaust it: an index of its memo takes any amount of memory, and the hash of a key
that holds one tuple many times takes any amount of time.
"""

import pickletools
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

# Python's pickles have about 2,000 items on the stack, because they are written in parts.
_MAX_STACK = 2**20
_MULTIARRAY = r"numpy\.(_core|core)\.multiarray"
_NAMES = {"dtype": r"numpy dtype", "scalar": rf"{_MULTIARRAY} scalar", "encode": r"_codecs encode"}


class PickledDict(dict):
    """A dictionary of a pickle.

    Attributes:
      position: the byte of the pickle where the dictionary begins.
    """

    __slots__ = ("position",)
    position: int


class _Name(str):
    """One of the names that belong to NumPy's scalars: "dtype", "scalar" or "encode"."""


class _Type:
    """A NumPy type of a pickle, before and after its byte order is set."""

    def __init__(self, code: Any):
        code = _text(code)
        if not re.fullmatch("[fiu][1248]", code) or code == "f1":
            raise ValueError(f"has the NumPy type {code!r}, which is no type of a number")
        self.dtype = np.dtype(code)


def read_plain_pickle(content: bytes) -> Any:
    """The value of a pickle of plain values; dictionaries are `PickledDict`s.

    The memory that it needs is at most about 64 times the size of the pickle.

    Args:
      content: the pickle, in any protocol.

    Raises:
      ValueError: for anything else, with the byte and the opcode.
    """
    machine, steps, position = _Machine(content), _BY_BYTE, 0
    try:
        while (code := content[machine.at]) != _STOP:
            position = machine.at
            machine.at += 1
            steps[code](machine)
    except KeyError:
        raise ValueError(
            f"byte {position}: {_opcode(content[position])} is refused; only plain values are read"
        ) from None
    except (ValueError, TypeError, AttributeError, IndexError, struct.error) as error:
        if machine.at >= len(content):
            raise ValueError(f"byte {len(content)}: the pickle ends without STOP") from None
        lacks = isinstance(error, IndexError | struct.error)
        reason = "lacks what it needs" if lacks else str(error)
        raise ValueError(f"byte {position}: {_opcode(content[position])} {reason}") from None
    try:
        return machine.result()
    except ValueError as error:
        raise ValueError(f"byte {machine.at}: the pickle {error}") from None


def _opcode(code: int) -> str:
    names = {opcode.code: opcode.name for opcode in pickletools.opcodes}
    known = names.get(chr(code))
    return f"the opcode {known}" if known else f"{chr(code)!r}, which is no opcode,"


class _Machine:
    """The stack and the memo of a pickle while it is read."""

    def __init__(self, content: bytes):
        self.content, self.at = content, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []

    def result(self) -> Any:
        if len(self.stack) != 1 or self.marks:
            raise ValueError(f"ends with {len(self.stack)} values")
        if self.at + 1 != len(self.content):
            raise ValueError("ends before the file does")
        _check_plain(self.stack)
        return self.stack[0]

    # arguments of opcodes

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.content, self.at)
        self.at += struct.calcsize(form)
        return value

    def counted(self, form: str) -> bytes:
        size = self.number(form)
        if not 0 <= size <= len(self.content) - self.at:
            raise ValueError(f"has {size} bytes, but {len(self.content) - self.at} are left")
        self.at += size
        return self.content[self.at - size : self.at]

    def line(self) -> str:
        end = self.content.find(b"\n", self.at)
        if end < 0:
            raise ValueError("has no end of line")
        text, self.at = self.content[self.at : end], end + 1
        return text.decode("raw-unicode-escape")

    # the stack

    def push(self, value: Any) -> None:
        if len(self.stack) + len(self.marks) >= _MAX_STACK:
            raise ValueError(f"has more than {_MAX_STACK} values before it")
        self.stack.append(value)

    def mark(self) -> None:
        self.push(None)
        self.marks.append(len(self.stack))

    def since_mark(self) -> list[Any]:
        first = self.marks.pop()
        items = self.stack[first:]
        del self.stack[first - 1 :]
        return items

    def pop(self, count: int) -> list[Any]:
        least = self.marks[-1] if self.marks else 0
        if len(self.stack) - count < least:
            raise IndexError
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def top(self, kind: type) -> Any:
        value = self.stack[-1]
        if not isinstance(value, kind):
            raise ValueError(f"needs a {kind.__name__.removeprefix('Pickled').lower()} before it")
        return value

    def dictionary(self, items: list[Any]) -> None:
        made = PickledDict()
        made.position = self.at - 1
        self.push(made)
        self.set(items)

    def set(self, items: list[Any]) -> None:
        target = self.top(PickledDict)
        if len(items) % 2:
            raise ValueError("has a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if isinstance(key, tuple):
                raise ValueError("has a tuple as a key")
            if key in target:
                raise ValueError(f"has the key {key!r} twice")
            target[key] = value
        _check_plain(items)

    def extend(self, items: list[Any]) -> None:
        _check_plain(items)
        self.top(list).extend(items)

    def put(self, index: int) -> None:
        if index > len(self.memo) + 1:  # Python's own count from 0 or 1
            raise ValueError(f"has the number {index}, but {len(self.memo)} come before it")
        self.memo += [None] * (index + 1 - len(self.memo))
        self.memo[index] = self.stack[-1]

    # NumPy's scalars

    def name(self, module: str, name: str) -> None:
        for known, pattern in _NAMES.items():
            if re.fullmatch(pattern, f"{module} {name}"):
                self.push(_Name(known))
                return
        raise ValueError(f"names {module}.{name}, which is refused; only plain values are read")

    def call(self) -> None:
        name, arguments = self.pop(2)
        if not (isinstance(name, _Name) and isinstance(arguments, tuple)):
            raise ValueError("calls something else than a number of NumPy")
        if name == "dtype":
            self.push(_Type(arguments[0]))
            return
        first, second = arguments
        if name == "encode":
            self.push(_text(first).encode("latin1"))
        elif not (isinstance(first, _Type) and isinstance(second, bytes)):
            raise ValueError("makes no number of NumPy")
        elif len(second) != first.dtype.itemsize:
            raise ValueError(f"has {len(second)} bytes for a number of {first.dtype.itemsize}")
        else:
            self.push(np.frombuffer(second, first.dtype)[0].item())

    def build(self) -> None:
        (state,) = self.pop(1)
        kind = self.top(_Type)
        if not (isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|", "=")):
            raise ValueError("has no byte order")
        kind.dtype = kind.dtype.newbyteorder(state[1])


def _check_plain(items: list[Any]) -> None:
    if any(isinstance(item, _Name | _Type | bytes) for item in items):
        raise ValueError("holds bytes, or a type of NumPy; only plain values are read")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("needs a text before it")
    return value


def _integer(text: str) -> Any:
    special = {"00": False, "01": True}  # as protocol 0 writes them
    return special[text] if text in special else int(text.removesuffix("L"))


def _quoted(text: str) -> str:
    if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0] or "\\" in text:
        raise ValueError("has a text without quotes, or with escapes")
    return text[1:-1]


def _long(content: bytes) -> int:
    return int.from_bytes(content, "little", signed=True)


_STEPS: dict[str, Callable[[_Machine], Any]] = {
    "\x80": lambda m: m.number("<B"),  # PROTO
    "\x95": lambda m: m.number("<Q"),  # FRAME
    "N": lambda m: m.push(None),
    "\x88": lambda m: m.push(True),
    "\x89": lambda m: m.push(False),
    "I": lambda m: m.push(_integer(m.line())),
    "L": lambda m: m.push(_integer(m.line())),
    "F": lambda m: m.push(float(m.line())),
    "S": lambda m: m.push(_quoted(m.line())),
    "V": lambda m: m.push(m.line()),
    "K": lambda m: m.push(m.number("<B")),
    "M": lambda m: m.push(m.number("<H")),
    "J": lambda m: m.push(m.number("<i")),
    "G": lambda m: m.push(m.number(">d")),
    "\x8a": lambda m: m.push(_long(m.counted("<B"))),  # LONG1
    "X": lambda m: m.push(m.counted("<I").decode()),
    "\x8c": lambda m: m.push(m.counted("<B").decode()),
    "\x8d": lambda m: m.push(m.counted("<Q").decode()),
    "U": lambda m: m.push(m.counted("<B").decode("latin1")),
    "T": lambda m: m.push(m.counted("<i").decode("latin1")),
    "C": lambda m: m.push(m.counted("<B")),
    "B": lambda m: m.push(m.counted("<I")),
    "(": lambda m: m.mark(),
    "}": lambda m: m.dictionary([]),
    "d": lambda m: m.dictionary(m.since_mark()),
    "s": lambda m: m.set(m.pop(2)),
    "u": lambda m: m.set(m.since_mark()),
    "]": lambda m: m.push([]),
    "l": lambda m: m.push(m.since_mark()),
    "a": lambda m: m.extend(m.pop(1)),
    "e": lambda m: m.extend(m.since_mark()),
    ")": lambda m: m.push(()),
    "t": lambda m: m.push(tuple(m.since_mark())),
    "\x85": lambda m: m.push(tuple(m.pop(1))),
    "\x86": lambda m: m.push(tuple(m.pop(2))),
    "\x87": lambda m: m.push(tuple(m.pop(3))),
    "p": lambda m: m.put(int(m.line())),
    "q": lambda m: m.put(m.number("<B")),
    "r": lambda m: m.put(m.number("<I")),
    "\x94": lambda m: m.put(len(m.memo)),
    "g": lambda m: m.push(m.memo[int(m.line())]),
    "h": lambda m: m.push(m.memo[m.number("<B")]),
    "j": lambda m: m.push(m.memo[m.number("<I")]),
    "c": lambda m: m.name(m.line(), m.line()),
    "\x93": lambda m: m.name(*map(_text, m.pop(2))),
    "R": lambda m: m.call(),
    "b": lambda m: m.build(),
}
_BY_BYTE = {ord(code): step for code, step in _STEPS.items()}
_STOP = ord(".")
