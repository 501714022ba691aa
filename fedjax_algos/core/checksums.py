"""Checksums: of a JSON file in the file itself, and of the files of a folder beside them."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedjax_algos.core.files import open_regular
from fedjax_algos.core.writing import write_text

_KEY = "sha256"
SUMS = "SHA256SUMS"


class DamagedError(ValueError):
    """A file is not as it was written; the message names it."""


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes values of JSON by name, and their SHA-256 under the name `sha256`."""
    write_text(path, json.dumps(content | {_KEY: _digest(content)}, indent=2) + "\n")


def checked_json(content: Any) -> dict[str, Any]:
    """The values of a file of `write_json`, without their checksum, or DamagedError."""
    if not isinstance(content, dict) or _KEY not in content:
        raise DamagedError("it has no checksum")
    values = {name: value for name, value in content.items() if name != _KEY}
    if content[_KEY] != _digest(values):
        raise DamagedError("its checksum is wrong: it was edited or damaged")
    return values


def _digest(values):
    """It is that of the parsed values, so that spaces between them do not matter."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """The SHA-256 of a regular file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, _KEY).hexdigest()


def write_sums(folder: Path, names: Sequence[str]) -> None:
    """Writes the SHA-256 of the files that exist, as `sha256sum --check` reads them."""
    write_text(folder / SUMS, "".join(_sums(folder, names).values()))


def check_sums(folder: Path, names: Sequence[str]) -> None:
    """Raises DamagedError for the first file that is not as when `write_sums` was called."""
    try:
        recorded = (folder / SUMS).read_bytes().splitlines(keepends=True)
        found = _sums(folder, names)
    except OSError as error:
        raise DamagedError(f"{error.filename!r} cannot be read ({error.strerror})") from None
    wrong = [name for name, line in found.items() if line.encode() not in recorded]
    if wrong or len(recorded) != len(found):
        text = f"is not as it was written: its checksum is not that in {SUMS}"
        name, text = (wrong[0], text) if wrong else (SUMS, "is not of the files beside it")
        raise DamagedError(f"{str(folder / name)!r} {text}")


def _sums(folder, names):
    """The lines of the files that exist."""
    there = [name for name in names if (folder / name).exists()]
    return {name: f"{file_digest(folder / name)}  {name}\n" for name in there}
