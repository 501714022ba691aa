"""Errors that are shown to the user, and functions that raise them."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from fedjax_algos.base.reprs import printable


class FileError(ValueError):
    """Raised for a missing or damaged file, or one of another kind; the message says what to do."""


class TooLargeError(ValueError):
    """Raised for a file that does not fit into memory; the message says what to do."""


class DamagedError(ValueError):
    """Raised for a file that changed after it was written; the message names it."""


def require(condition: object, message: str) -> None:
    """Raises ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(printable(message))


@contextlib.contextmanager
def prefix_errors(prefix: str, kind: type[Exception] = ValueError) -> Iterator[None]:
    """Adds a prefix to the message of an error of this kind that is raised in the block."""
    try:
        yield
    except kind as error:
        raise kind(f"{prefix}{error}") from None


def needed(package: str, owner: str, more: str = "") -> Any:
    """Imports an optional package, or raises ValueError that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.replace("_", "-")
        message = f"{owner} needs the package {name}; run: pip install {name}{more}"
        raise ValueError(message) from error
