"""Processes that compute together: what process 0 does for all of them, and what all agree on.

All processes run the same program. Process 0 alone reads what the program decides by, and writes.
Every function here that returns another process's values has to be called by all of them.
"""

import contextlib
import functools
import pickle
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

_PACKET = 1024  # bytes that are sent at first; most values need no more
_SIZE = 8  # bytes of a value's size, before it
P = ParamSpec("P")
T = TypeVar("T")
_alone: list[bool] = []  # not empty within what process 0 does for all


class FirstProcessError(ValueError):
    """An error of process 0, in the others: process 0 has raised it, too."""


def num_processes() -> int:
    """The number of processes that compute together; jax is not started to count one."""
    return jax.process_count() if jax.distributed.is_initialized() and not _alone else 1


def is_first() -> bool:
    """Whether this process is process 0, which reads and writes for all."""
    return num_processes() == 1 or jax.process_index() == 0


def from_first(function: Callable[P, T]) -> Callable[P, T]:
    """A function that process 0 calls, with its value in all processes; FirstProcessError: its."""

    @functools.wraps(function)
    def shared(*args: P.args, **keywords: P.kwargs) -> T:
        if num_processes() == 1:
            return function(*args, **keywords)
        content, raised = b"", None
        if is_first():
            try:
                with _by_itself():
                    content = pickle.dumps((True, function(*args, **keywords)))
            except Exception as error:
                raised, content = error, pickle.dumps((False, str(error)))
        fits, value = pickle.loads(_send(content))
        if raised is not None:
            raise raised
        if not fits:
            raise FirstProcessError(f"process 0: {value}")
        return value

    return shared


def only_first(function: Callable[P, None]) -> Callable[P, None]:
    """A function that process 0 alone calls, such as one that writes."""

    @functools.wraps(function)
    def guarded(*args: P.args, **keywords: P.kwargs) -> None:
        if is_first():
            with _by_itself():
                function(*args, **keywords)

    return guarded


@contextlib.contextmanager
def _by_itself():
    """What process 0 does for all it does alone, also if that calls functions of this module."""
    _alone.append(True)
    try:
        yield
    finally:
        _alone.pop()


def largest(number: int) -> int:
    """The largest of the numbers that the processes give."""
    if num_processes() == 1:
        return number
    return int(multihost_utils.process_allgather(np.int32(number)).max())


def gathered(tree: Any) -> Any:
    """A tree with whole arrays that this process has, in place of those of several processes."""

    def whole(leaf):
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        if leaf.is_fully_replicated:
            return leaf.addressable_data(0)
        return multihost_utils.process_allgather(leaf, tiled=True)

    return tree if num_processes() == 1 else jax.tree.map(whole, tree)


def fetch(tree: Any) -> Any:
    """A tree in NumPy arrays, also of arrays that are divided over several processes."""
    return jax.device_get(gathered(tree))


def _send(content):
    """The bytes of process 0, which are sent in few sizes, because each is a program."""
    framed = len(content).to_bytes(_SIZE, "little") + content
    first = _packet(framed[:_PACKET], _PACKET)
    size = int.from_bytes(first[:_SIZE], "little")
    rest = size + _SIZE - _PACKET
    if rest > 0:
        first += _packet(framed[_PACKET:], 1 << (rest - 1).bit_length())
    return first[_SIZE : _SIZE + size]


def _packet(content, size):
    filled = np.zeros(size, np.uint8)
    if is_first():
        filled[: len(content)] = np.frombuffer(content, np.uint8)
    return multihost_utils.broadcast_one_to_all(filled).tobytes()
