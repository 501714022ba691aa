"""Files from others: regular ones only, of sizes and depths that are bounded before they are read.

The errors have no name of a file; `explain_read_errors` of the readers adds it.
"""

import errno
import io
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedjax_algos.core.limits import host_memory, readable_bytes

MAX_DEPTH = 64  # of lists and objects within each other
MAX_TOML_BYTES = 2**18
_MAX_DOTS = 256  # of a line of TOML; tomllib's time grows with the square of the dots of a key
_MEMORY_OF_TEXT = 64  # bytes that a byte of JSON may need in memory: "{}," is an empty dictionary
_CHUNK = 2**20  # bytes that are read at once
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# A string, up to its end or that of the chunk, where half an escape may stand.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+("|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Opens a file for reading unless it is a pipe, a socket or a device, which may never end.

    Args:
      path: of the file.

    Raises:
      OSError: for these, and if the file cannot be opened.
    """
    return open(path, "rb", opener=_open_regular)


class TooLargeError(ValueError):
    """What a file holds does not fit into memory; the message has the fix."""


def require_regular(path: str | os.PathLike[str]) -> None:
    """Raises OSError for a pipe, a socket or a device, and for a path that does not exist.

    Args:
      path: of a file or folder.
    """
    kind = _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", path)


def _open_regular(path: str, flags: int) -> int:
    require_regular(path)
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe may have taken its place


def max_text_bytes() -> int:
    """Bytes of a text such as JSON that are read: what they become must fit into memory."""
    return host_memory() // _MEMORY_OF_TEXT


def check_array_bytes(what: str, size: int, fix: str) -> None:
    """Checks that arrays fit into half of the memory; the device may need the other half.

    Args:
      what: the arrays.
      size: their bytes.
      fix: what to do.

    Raises:
      TooLargeError: if they do not.
    """
    limit = host_memory() // 2
    if size > limit:
        raise TooLargeError(
            f"{what} would need {readable_bytes(size)}, more than half of the memory, "
            f"{readable_bytes(limit)}; {fix}"
        )


def read_bounded(file: io.BufferedIOBase, limit: int) -> bytes:
    """The content of an open file, which may be compressed.

    Args:
      file: is read to its end.
      limit: the largest number of bytes.

    Raises:
      ValueError: for more bytes.
    """
    parts, size = [], 0
    while part := file.read(_CHUNK):
        size += len(part)
        if size > limit:
            raise ValueError(f"it has more than {readable_bytes(limit)}, which are too many")
        parts.append(part)
    return b"".join(parts)


def parse_json(content: bytes) -> Any:
    """The value of a JSON text of bounded depth, in which no object has a key twice.

    Args:
      content: the text as UTF-8.

    Raises:
      ValueError: for a text that is no such JSON.
    """
    check_depth(content)
    return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_object)


def parse_toml(content: bytes) -> dict[str, Any]:
    """The tables of a TOML text.

    Args:
      content: the text as UTF-8, of at most `MAX_TOML_BYTES`.

    Raises:
      ValueError: for a text that is no TOML, is nested too deeply, or has too many dots in a line.
    """
    text = content.decode()
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > _MAX_DOTS:
            raise ValueError(f"line {number} has more than {_MAX_DOTS} dots; divide it")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_depth(content: bytes) -> None:
    """Checks how deep the lists and objects of a whole JSON text are.

    Args:
      content: the text as UTF-8.

    Raises:
      ValueError: if they are too deep.
    """
    depth = Depth()
    for start in range(0, len(content), _CHUNK):
        depth.feed(content[start : start + _CHUNK])


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"it has the key {key!r} twice")
        result[key] = value
    return result


class Depth:
    """Follows how deep the lists and objects of a JSON text are, from one chunk to the next.

    Parsers need the stack for each level; some end the process where it overflows.
    """

    def __init__(self) -> None:
        self.depth = 0
        self._open = b""  # the beginning of a string that goes on in the next chunk

    def feed(self, chunk: bytes) -> None:
        """Reads on.

        Args:
          chunk: the next bytes.

        Raises:
          ValueError: if they are too deep.
        """
        outside = _STRING.sub(rb'"\1', self._open + chunk)  # "" for a string, " if it has no end
        brackets = np.frombuffer(outside.translate(None, _NO_BRACKETS), np.uint8)
        is_open = outside.count(b'"') % 2
        self._open = b'"' * is_open + b"\\" * (is_open and outside.endswith(b"\\"))
        if not len(brackets):
            return
        opens = (brackets == ord("[")) | (brackets == ord("{"))
        depths = self.depth + np.cumsum(np.where(opens, 1, -1))
        self.depth = int(depths[-1])
        if depths.max() > MAX_DEPTH:
            raise ValueError(f"it has more than {MAX_DEPTH} lists or objects within each other")
