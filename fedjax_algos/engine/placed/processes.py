"""Runs functions on process 0 for all processes, and shares values between processes.

All processes run the same program. Only process 0 writes files, and reads the files that decide
what the program does; it sends their values to the others. All processes must call each function
that returns another process's values.
"""

import contextlib
import functools
import pickle
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

P = ParamSpec("P")
T = TypeVar("T")
_alone: list[bool] = []  # not empty while process 0 works for all


class FirstProcessError(ValueError):
    """Raised in the other processes for an error that process 0 has raised."""


def num_processes() -> int:
    """Returns how many processes compute together, and does not start JAX if there is only one."""
    return jax.process_count() if jax.distributed.is_initialized() and not _alone else 1


def is_first() -> bool:
    """Returns whether this process is process 0, which reads and writes for all."""
    return num_processes() == 1 or jax.process_index() == 0


def from_first(function: Callable[P, T]) -> Callable[P, T]:
    """Runs `function` on process 0 and returns its value, or raises its error, on all."""

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
        if not fits:
            raise raised or FirstProcessError(f"process 0: {value}")
        return value

    return shared


def only_first(function: Callable[P, None]) -> Callable[P, None]:
    """Runs `function` on process 0 only, for example to write a file."""

    @functools.wraps(function)
    def guarded(*args: P.args, **keywords: P.kwargs) -> None:
        if is_first():
            with _by_itself():
                function(*args, **keywords)

    return guarded


@contextlib.contextmanager
def _by_itself():
    """Makes functions of this module act as in a single process, while process 0 works for all."""
    _alone.append(True)
    try:
        yield
    finally:
        _alone.pop()


def largest(number: int) -> int:
    """Returns the largest `number` of all processes."""
    if num_processes() == 1:
        return number
    return int(multihost_utils.process_allgather(np.int32(number)).max())


def gathered(tree: Any) -> Any:
    """Returns a tree with whole arrays in place of arrays divided over processes."""

    def whole(leaf):
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        if leaf.is_fully_replicated:
            return leaf.addressable_data(0)
        return multihost_utils.process_allgather(leaf, tiled=True)

    return tree if num_processes() == 1 else jax.tree.map(whole, tree)


def fetch(tree: Any) -> Any:
    """Returns a tree of NumPy arrays, also from arrays divided over several processes."""
    return jax.device_get(gathered(tree))


def _send(content):
    """Sends the bytes of process 0 to all, padded to few sizes: each size compiles a program."""
    halves = np.array(divmod(len(content), 2**32), np.uint32)  # JAX has no uint64
    high, low = multihost_utils.broadcast_one_to_all(halves).tolist()
    size = high * 2**32 + low
    filled = np.zeros(1 << max(size - 1, 1023).bit_length(), np.uint8)
    filled[: len(content)] = np.frombuffer(content, np.uint8)  # empty in the other processes
    return multihost_utils.broadcast_one_to_all(filled).tobytes()[:size]
