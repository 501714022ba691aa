"""Handles Ctrl-C and SIGTERM: a run ends at its next evaluation, everything else at once."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

_requested: list[int] = []  # numbers of the signals that have arrived in the blocks
_blocks: list[Callable[[int], None] | None] = []  # the `on_second_signal` of each open block
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """Raised when a signal has ended a run at an evaluation, or a command outside of runs.

    `signal_number` is SIGINT or SIGTERM. Like KeyboardInterrupt, it is not an `Exception`. `alone`
    says that other processes of the command go on.
    """

    def __init__(self, signal_number: int, *, alone: bool = False):
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number, self.alone = signal_number, alone


@contextlib.contextmanager
def finish_calls() -> Iterator[None]:
    """Ends a run at its next evaluation after the first SIGINT or SIGTERM in a `with` block.

    The run then saves a checkpoint, if it saves any, and raises `Interrupted`. If no run reaches
    another evaluation, the end of the block raises it. A second signal ends the process at once,
    with exit code 128 + its number; saved files stay intact. This works in the main thread only, as
    signal handlers do.
    """
    with _handled(lambda number: None):
        yield


@contextlib.contextmanager
def end_at_once(on_second_signal: Callable[[int], None]) -> Iterator[None]:
    """Raises `Interrupted` on the first signal, or records it inside `finish_calls`.

    A second signal calls `on_second_signal` with its number and ends the process at once.
    """

    def arrived(number: int) -> None:
        raise Interrupted(number, alone=True)

    with _handled(arrived, on_second_signal):
        yield


@contextlib.contextmanager
def _handled(first, on_second_signal=None):
    """Handles signals in a `with` block: calls `first` with the first one in any open block."""

    def handle(number, frame):
        if _requested:
            for tell in filter(None, _blocks):
                tell(number)
            os._exit(128 + number)
        _requested.append(number)
        first(number)

    previous, ended = {number: signal.getsignal(number) for number in _NUMBERS}, False
    _blocks.append(on_second_signal)
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
    """Returns the number of the signal that asks the run to end, if one has arrived."""
    return _requested[0] if _requested else None


def check_interruption(save: Callable[[], None] = lambda: None) -> None:
    """If a process has a signal, calls `save` and raises Interrupted in all processes."""
    from fedjax_algos.engine.placed.processes import largest

    if number := largest(interruption() or 0):
        save()
        raise Interrupted(number)
