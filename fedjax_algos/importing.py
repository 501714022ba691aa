"""Ctrl-C and SIGTERM while the command line is imported, which takes seconds, and while it exits.

The root of the package imports this module before all others. It does something in the command's
own process only. While a command runs, `cli/` has other handlers.
"""

import os
import signal
import sys
from pathlib import Path

_moment = ["before the command began; give the same command again"]


def has_ended() -> None:
    """Says that a command has ended, which a signal cannot interrupt any more."""
    _moment[0] = "after the command had ended"


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
