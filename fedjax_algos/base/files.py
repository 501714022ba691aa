"""Reads regular files up to a size limit, and writes files atomically.

Files that the package reads again have checksums: a JSON file in itself, the files of a folder in
a file beside them.
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import secrets
import stat
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from fedjax_algos.base.errors import DamagedError, FileError, TooLargeError, require
from fedjax_algos.base.limits import host_memory, readable_bytes
from fedjax_algos.base.reprs import printable

PathLike: TypeAlias = str | os.PathLike[str]
MAX_TOML_BYTES = 2**18
SUMS = "SHA256SUMS"
_SUM = "sha256"
_MAX_DOTS = 256  # in a line of TOML; tomllib's time grows with the square of the dots in a key
_MEMORY_OF_TEXT = 64  # bytes of memory that a byte of JSON may need: "{}," is an empty dictionary
CHUNK = 2**20  # bytes read at once


@contextlib.contextmanager
def reading(source: PathLike, kind: str, fix: str, *errors: type[Exception]) -> Iterator[None]:
    """Turns errors, also from libraries, into a `FileError` "SOURCE: not KIND: reason; fix".

    A reason that already names a fix, after a semicolon, keeps that fix.
    """
    errors += (OSError, EOFError, ValueError, MemoryError, RecursionError)
    try:
        yield
    except FileError:  # about a part of the file
        raise
    except errors as error:
        cause: BaseException = error
        while not isinstance(cause, ValueError) and cause.__cause__:  # a library's type
            cause = cause.__cause__
        first_line = next(iter(str(cause).splitlines()), "") or type(cause).__name__
        if isinstance(cause, UnicodeDecodeError):
            first_line, fix = f"byte {cause.start} is not UTF-8", f"save it in UTF-8, or {fix}"
        has_fix = type(cause) is ValueError and "; " in first_line  # not from a library
        text = f"not {kind}: {first_line}" + f"; {fix}" * (not has_fix)
        if isinstance(error, FileNotFoundError) and error.errno:  # not from a library
            text = "there is no such file; check the path"
        elif isinstance(error, TooLargeError):
            text = str(error)
        elif strerror := getattr(error, "strerror", None):
            text = f"cannot be read: {strerror}; {fix}"
        raise FileError(printable(f"{os.fspath(source)}: {text}")) from error


def open_regular(path: PathLike) -> io.BufferedReader:
    """Opens a file for reading; raises OSError for a pipe, a socket or a device."""
    require_regular(path)
    return open(path, "rb")


def require_regular(path: PathLike) -> None:
    """Raises OSError for a path that does not exist or may never end; folders are allowed."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", path)


def require_regular_below(folder: PathLike) -> None:
    """Applies `require_regular` to a folder, if it exists, and to everything in it."""
    for path in (Path(folder), *Path(folder).rglob("*")) if Path(folder).exists() else ():
        require_regular(path)


def read_file(path: PathLike, limit: int | None = None) -> bytes:
    """Reads a regular file of at most `limit` bytes; the default is `max_text_bytes`."""
    with open_regular(path) as file:
        return read_bounded(file, max_text_bytes() if limit is None else limit)


def read_bounded(file: io.BufferedIOBase, limit: int) -> bytes:
    """Reads the rest of an open or decompressed file; ValueError for more than `limit` bytes."""
    parts, size = [], 0
    while part := file.read(CHUNK):
        size += len(part)
        require(size <= limit, f"it has more than {readable_bytes(limit)}, which are too many")
        parts.append(part)
    return b"".join(parts)


def max_text_bytes() -> int:
    """Returns the largest size of a text such as JSON whose parsed content fits into memory."""
    return host_memory() // _MEMORY_OF_TEXT


def check_array_bytes(what: str, size: int, fix: str) -> None:
    """Raises TooLargeError for more than half of the memory, since a device may need the rest."""
    if size > (limit := host_memory() // 2):
        need, cap = readable_bytes(size), readable_bytes(limit)
        raise TooLargeError(f"{what} would need {need}, more than half of the memory, {cap}; {fix}")


def parse_json(content: bytes) -> Any:
    """Parses a JSON text in UTF-8; ValueError for another text or a repeated key."""
    return _shallow(partial(json.loads, object_pairs_hook=once), content.decode("utf-8-sig"))


def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Builds a dictionary from the pairs of a JSON object; ValueError for a repeated key."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        require(key not in result, f"it has the key {key!r} twice")
        result[key] = value
    return result


def parse_toml(content: bytes) -> dict[str, Any]:
    """Parses a TOML text of at most `MAX_TOML_BYTES`; ValueError for another text."""
    text = content.decode()
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > _MAX_DOTS:
            raise ValueError(f"line {number} has more than {_MAX_DOTS} dots; divide it")
    return _shallow(tomllib.loads, text)


def _shallow(parse, text):
    """Calls `parse`; ValueError for a text that is nested too deeply."""
    try:
        return parse(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yields a path to write to and renames it to `path` at the end, unless an error is raised."""
    # another machine that shares the folder may have a process of the same number
    beside = path.with_name(f".{os.getpid()}-{secrets.token_hex(4)}-{path.name}")
    with writing(path):
        try:
            yield beside
            beside.replace(path)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError in a `with` block, such as a full disk, into a ValueError."""
    try:
        yield
    except OSError as error:
        reason, fix = error.strerror or str(error), "name another place"
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason = "it, or a folder above it, is a file"
        elif error.errno == errno.ENOSPC:
            fix = "what was written before is kept: make room, or name another folder"
        raise ValueError(f"{str(path)!r} cannot be written ({reason}); {fix}") from error


def write_text(path: Path, text: str) -> None:
    """Writes a text file, or raises ValueError."""
    with written(path) as beside:
        beside.write_text(text)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON values by name, and their SHA-256 under the name `sha256`."""
    write_text(path, json.dumps(content | {_SUM: _digest(content)}, indent=2) + "\n")


def checked_json(content: Any) -> dict[str, Any]:
    """Returns the values that `write_json` wrote without their checksum, or raises DamagedError."""
    values = dict(content) if isinstance(content, dict) else {}
    if values.pop(_SUM, None) != _digest(values):
        raise DamagedError("its checksum is wrong: it was edited or damaged")
    return values


def _digest(values):
    """Hashes parsed values, so that spaces between them do not matter."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a regular file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, _SUM).hexdigest()


def write_sums(folder: Path, names: Sequence[str]) -> None:
    """Writes the SHA-256 of the existing files in the format of `sha256sum --check`."""
    write_text(folder / SUMS, "".join(_sums(folder, names).values()))


def check_sums(folder: Path, names: Sequence[str], fix: str) -> None:
    """Raises DamagedError for the first file that changed since `write_sums`."""
    sums, reason = folder / SUMS, f"is not as it was written: the checksums are in {SUMS}"
    try:
        recorded, now = sums.read_bytes().splitlines(keepends=True), _sums(folder, names)
        wrong: list[Any] = [folder / n for n, line in now.items() if line.encode() not in recorded]
        wrong += [sums] * (len(recorded) != len(now))
    except OSError as error:
        wrong, reason = [error.filename], f"cannot be read ({error.strerror})"
    if wrong:
        raise DamagedError(f"{str(wrong[0])!r} {reason}; {fix}")


def _sums(folder, names):
    """Returns the checksum lines of the existing files, by name."""
    there = [name for name in names if (folder / name).exists()]
    return {name: f"{file_digest(folder / name)}  {name}\n" for name in there}
