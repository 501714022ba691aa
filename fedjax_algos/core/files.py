"""Files from others: regular ones only, of a bounded size, and one error that names the file.

What a library that reads a format raises, and what a reader finds wrong, becomes a `FileError` by
`reading`.
"""

import contextlib
import errno
import io
import json
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from fedjax_algos.core.limits import host_memory, readable_bytes
from fedjax_algos.core.reprs import printable

PathLike: TypeAlias = str | os.PathLike[str]
MAX_TOML_BYTES = 2**18
_MAX_DOTS = 256  # of a line of TOML; tomllib's time grows with the square of the dots of a key
_MEMORY_OF_TEXT = 64  # bytes that a byte of JSON may need in memory: "{}," is an empty dictionary
_CHUNK = 2**20  # bytes that are read at once


class FileError(ValueError):
    """A file that is missing, damaged or of another kind; the message is one line with the fix."""


class TooLargeError(ValueError):
    """What a file holds does not fit into memory; the message has the fix."""


@contextlib.contextmanager
def reading(source: PathLike, kind: str, fix: str, *errors: type[Exception]) -> Iterator[None]:
    """A context whose errors become a `FileError` "SOURCE: not KIND: reason; fix".

    Args:
      source: the file, or a part of it.
      kind: what it should be, such as "an IDX file".
      fix: how to get a good one.
      *errors: what the library that reads it raises, besides OSError, EOFError, ValueError,
        MemoryError and RecursionError.
    """
    expected: tuple[type[Exception], ...] = (
        OSError,
        EOFError,
        ValueError,
        MemoryError,
        RecursionError,
        *errors,
    )
    try:
        yield
    except FileError:  # of a part of the file
        raise
    except FileNotFoundError as error:
        missing = f"{os.fspath(source)}: there is no such file; check the path"
        raise FileError(printable(missing)) from error
    except expected as error:
        raise file_error(source, kind, fix, error) from error


def file_error(source: PathLike, kind: str, fix: str, error: Exception) -> FileError:
    """The error of `reading`."""
    strerror = getattr(error, "strerror", None)
    if isinstance(error, TooLargeError):
        text = str(error)
    elif strerror:
        text = f"cannot be read: {strerror}; {fix}"
    else:
        text = f"not {kind}: {first_line(error)}; {fix}"
    return FileError(printable(f"{os.fspath(source)}: {text}"))


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type if it has none."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def open_regular(path: PathLike) -> io.BufferedReader:
    """Opens a file for reading unless it is a pipe, a socket or a device: an OSError."""
    require_regular(path)
    return open(path, "rb")


def require_regular(path: PathLike) -> None:
    """Raises OSError for a path that does not exist or may never end; folders may be."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", path)


def read_file(path: PathLike, limit: int | None = None) -> bytes:
    """The content of a regular file of at most `limit` bytes, or of `max_text_bytes`."""
    with open_regular(path) as file:
        return read_bounded(file, max_text_bytes() if limit is None else limit)


def read_bounded(file: io.BufferedIOBase, limit: int) -> bytes:
    """The rest of an open file, also a compressed one; ValueError for more than `limit` bytes."""
    parts, size = [], 0
    while part := file.read(_CHUNK):
        size += len(part)
        if size > limit:
            raise ValueError(f"it has more than {readable_bytes(limit)}, which are too many")
        parts.append(part)
    return b"".join(parts)


def max_text_bytes() -> int:
    """Bytes of a text such as JSON that are read: what they become must fit into memory."""
    return host_memory() // _MEMORY_OF_TEXT


def check_array_bytes(what: str, size: int, fix: str) -> None:
    """Raises TooLargeError for arrays of more than half of the memory; a device may need the rest.

    Args:
      what: the arrays.
      size: their bytes.
      fix: what to do.
    """
    limit = host_memory() // 2
    if size > limit:
        raise TooLargeError(
            f"{what} would need {readable_bytes(size)}, more than half of the memory, "
            f"{readable_bytes(limit)}; {fix}"
        )


def parse_json(content: bytes) -> Any:
    """The value of a JSON text in UTF-8; ValueError for another text, and for a key twice."""
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"it has the key {key!r} twice")
        result[key] = value
    return result


def parse_toml(content: bytes) -> dict[str, Any]:
    """The tables of a TOML text of at most `MAX_TOML_BYTES`; ValueError for another text."""
    text = content.decode()
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > _MAX_DOTS:
            raise ValueError(f"line {number} has more than {_MAX_DOTS} dots; divide it")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
