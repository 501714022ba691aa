"""The errors that a user is told, and the functions that raise them."""

import importlib
from typing import Any

from fedjax_algos.base.reprs import printable


class FileError(ValueError):
    """A file that is missing, damaged or of another kind; the message is one line with the fix."""


class TooLargeError(ValueError):
    """What a file holds does not fit into memory; the message has the fix."""


class DamagedError(ValueError):
    """A file is not as it was written; the message names it."""


def require(fact: object, reason: str) -> None:
    """Raises ValueError with the reason, to which `reading` adds the file, unless a fact holds."""
    if not fact:
        raise ValueError(printable(reason))


def needed(package: str, owner: str, more: str = "") -> Any:
    """An optional package; ValueError, which says how to install it, if it is not there."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.replace("_", "-")
        fix = f"{owner} needs the package {name}; run: pip install {name}{more}"
        raise ValueError(fix) from error
