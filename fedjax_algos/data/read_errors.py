"""One-line ValueErrors for missing and damaged files, which name the file and the fix."""

import contextlib
import os
from collections.abc import Iterator

from fedjax_algos.core.files import TooLargeError
from fedjax_algos.core.texts import printable
from fedjax_algos.data.dataset import PathLike


def unreadable(source: PathLike, error: Exception, fix: str) -> ValueError:
    """The error that says why a source cannot be read, and what to do.

    Args:
      source: the file or data set.
      error: what its parser raised.
      fix: how to get a good one.
    """
    if isinstance(error, TooLargeError):
        return ValueError(printable(f"{os.fspath(source)}: {error}"))
    reason = getattr(error, "strerror", None) or first_line(error)
    return ValueError(printable(f"{os.fspath(source)}: cannot be read ({reason}); {fix}"))


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type if it has none.

    Args:
      error: any exception.
    """
    return next(iter(str(error).splitlines()), "") or type(error).__name__


@contextlib.contextmanager
def explain_read_errors(
    source: PathLike, fix: str, *parser_errors: type[Exception]
) -> Iterator[None]:
    """A context that converts errors of a missing or damaged file to a ValueError of one line.

    Files whose size is bounded may still hold what exhausts the memory or the stack of a parser.

    Args:
      source: the file.
      fix: how to get a good one.
      *parser_errors: what the parser of the format raises, besides OSError, EOFError, ValueError,
        MemoryError and RecursionError.

    Raises:
      ValueError: from any of these errors.
    """
    exhausted = (MemoryError, RecursionError)
    expected: tuple[type[Exception], ...] = (
        OSError,
        EOFError,
        ValueError,
        *exhausted,
        *parser_errors,
    )
    try:
        yield
    except FileNotFoundError as error:
        missing = f"{os.fspath(source)}: there is no such file; check the path"
        raise ValueError(printable(missing)) from error
    except expected as error:
        raise unreadable(source, error, fix) from error
