"""Errors that are shown to the user, and functions that raise them."""

import importlib
from typing import Any

from fedjax_algos.base.reprs import printable


class FileError(ValueError):
    """A file is missing, damaged or of another kind; the message is one line with the fix."""


class TooLargeError(ValueError):
    """The content of a file does not fit into memory; the message has the fix."""


class DamagedError(ValueError):
    """A file has changed since it was written; the message names it."""


def require(condition: object, message: str) -> None:
    """Raises ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(printable(message))


def needed(package: str, owner: str, more: str = "") -> Any:
    """Imports an optional package, or raises ValueError that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.replace("_", "-")
        message = f"{owner} needs the package {name}; run: pip install {name}{more}"
        raise ValueError(message) from error
