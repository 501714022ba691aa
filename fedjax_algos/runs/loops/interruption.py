"""Ctrl-C and SIGTERM: they end a run at its next evaluation, and everything else where it is."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

_requested: list[int] = []  # numbers of the signals that have arrived in the blocks
_blocks: list[Callable[[int], None] | None] = []  # the last words of each that has begun
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A run has ended at an evaluation because of a signal, or a command where it was.

    It has the `signal_number` of SIGINT or SIGTERM, and like KeyboardInterrupt is no `Exception`.
    `alone` tells that other processes of the command go on.
    """

    def __init__(self, signal_number: int, *, alone: bool = False):
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number, self.alone = signal_number, alone


@contextlib.contextmanager
def finish_calls() -> Iterator[None]:
    """Lets the first SIGINT or SIGTERM within a `with` block end a run at its next evaluation.

    The run then raises `Interrupted`, after it has saved a checkpoint if it saves any. If no run
    comes to an evaluation any more, the end of the block raises it. A second signal ends the
    process at once, with exit code 128 + its number; what was saved before stays whole. It works in
    the main thread only, as signal handlers do.
    """
    with _handled(lambda number: None):
        yield


@contextlib.contextmanager
def end_at_once(last_words: Callable[[int], None]) -> Iterator[None]:
    """Lets the first signal in a `with` block raise `Interrupted`, or be noted by `finish_calls`.

    `last_words` is called with the number of a second signal, which then ends the process at once.
    """

    def arrived(number: int) -> None:
        raise Interrupted(number, alone=True)

    with _handled(arrived, last_words):
        yield


@contextlib.contextmanager
def _handled(first, last_words=None):
    """Calls `first` with the first signal of all blocks that have begun."""

    def handle(number, frame):
        if _requested:
            for tell in filter(None, _blocks):
                tell(number)
            os._exit(128 + number)
        _requested.append(number)
        first(number)

    previous, ended = {number: signal.getsignal(number) for number in _NUMBERS}, False
    _blocks.append(last_words)
    try:
        for number in _NUMBERS:
            signal.signal(number, handle)
        yield
        ended = True
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _blocks.pop()
        noted = interruption()
        if not _blocks:
            _requested.clear()
        if ended and noted is not None:
            raise Interrupted(noted)


def interruption() -> int | None:
    """The number of the signal that asks the run to end, if one has arrived."""
    return _requested[0] if _requested else None


def agreed_interruption() -> int | None:
    """`interruption` of any of the processes, all of which have to ask."""
    from fedjax_algos.engine.placed.processes import largest

    return largest(interruption() or 0) or None


def check_interruption() -> None:
    """Raises Interrupted in all processes if one has a signal, where nothing has to be saved."""
    if number := agreed_interruption():
        raise Interrupted(number)
