"""Ctrl-C and SIGTERM while the command line is imported or exits, and the printing of tracebacks.

The root of the package imports this module before all others. It does something in the command's
own process only. While a command runs, `cli/` has other handlers.
"""

import os
import signal
import sys
import traceback
from pathlib import Path
from types import TracebackType

_moment = ["before the command began; give the same command again"]


def has_ended() -> None:
    """Says that a command has ended, which a signal cannot interrupt any more."""
    _moment[0] = "after the command had ended"


def print_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Prints a traceback; control characters, which could write over others, are escaped."""
    text = "".join(traceback.format_exception(kind, error, trace))
    shown = (c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
    sys.stderr.write("".join(shown))


def _end(number, frame):
    line = f"interrupted ({signal.Signals(number).name}) {_moment[0]}\n"
    os.write(2, line.encode())
    os._exit(128 + number)


# whether this process is `fedjax-algos ...` or `python -m fedjax_algos ...`
_program, _started = sys.argv[0], sys.orig_argv
_by_name = _program == "-m" and _started[_started.index("-m") + 1 :][:1] == ["fedjax_algos"]
if _by_name or Path(_program).stem == "fedjax-algos":
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, _end)
    sys.excepthook = print_error
