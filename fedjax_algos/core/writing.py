"""Files that are written whole or not at all, and errors of the system that name the path."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; the file is renamed to `path` at the end of the block.

    If it cannot be written, as on a full disk, what was at `path` before stays: a ValueError.
    """
    beside = path.with_name(f".{os.getpid()}-{path.name}")
    with writing(path):
        try:
            yield beside
            beside.replace(path)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of a `with` block, such as that of a full disk, into a ValueError."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> ValueError:
    """The user's error for a path that cannot be written, with the reason."""
    reason = error.strerror or str(error)
    fix = "name another place"
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason = "it, or a folder above it, is a file"
    elif error.errno == errno.ENOSPC:
        fix = "what was written before is kept: make room, or name another folder"
    return ValueError(f"{str(path)!r} cannot be written ({reason}); {fix}")


def write_text(path: Path, text: str) -> None:
    """Writes a text file, or raises ValueError."""
    with written(path) as beside:
        beside.write_text(text)
