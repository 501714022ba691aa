"""Ctrl-C and SIGTERM: the compiled call that runs is finished before the run ends."""

import contextlib
import os
import signal
from collections.abc import Iterator

_requested: list[int] = []  # numbers of the signals that have arrived in `finish_calls`


class Interrupted(Exception):
    """A run has ended at an evaluation because of a signal.

    Args:
      signal_number: of SIGINT or SIGTERM.
    """

    def __init__(self, signal_number: int):
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


@contextlib.contextmanager
def finish_calls() -> Iterator[None]:
    """Lets the first SIGINT or SIGTERM within a `with` block end a run at its next evaluation.

    The run then raises `Interrupted`, after it has saved a checkpoint if it saves any. Without the
    block, a KeyboardInterrupt may end the process while devices still compute. A second signal ends
    the process at once, with exit code 128 + its number; what was saved before stays whole.

    It works in the main thread only, as signal handlers do.
    """

    def request(number: int, frame: object) -> None:
        if _requested:
            os._exit(128 + number)
        _requested.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, request) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _requested.clear()


def interruption() -> int | None:
    """The number of the signal that asks the run to end, if one has arrived."""
    return _requested[0] if _requested else None
