"""Checks that numbers fit into 32-bit integers and that arrays fit into the machine's memory.

We compare a lower bound of the needed bytes with the memory, so a run that fits is never refused.
"""

import functools
import os
import sys
from typing import Any

from fedjax_algos.base.reprs import si_prefix

MAX_INT32 = 2**31 - 1
MAX_SEED = 2**32 - 1  # keys are made of uint32


@functools.cache
def host_memory() -> int:
    """Returns the bytes of physical memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not known on this platform
        return sys.maxsize


@functools.cache
def device_memory() -> int:
    """Returns the bytes that the default device can allocate; on a CPU, the machine's memory."""
    return accelerator_memory() or host_memory()


def accelerator_memory() -> int | None:
    """Returns the bytes that the default accelerator can allocate; None on a CPU or if unknown."""
    import jax

    if jax.default_backend() == "cpu":
        return None
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def check_memory(what: str, num_bytes: int, fix: str, *, limit: int | None = None) -> None:
    """Raises ValueError if `what`, such as "rounds=5", needs more memory than there is."""
    limit = host_memory() if limit is None else limit
    if num_bytes > limit:
        need, has = readable_bytes(num_bytes), readable_bytes(limit)
        raise ValueError(f"{what} would need at least {need}, but there are {has} of memory; {fix}")


def check_device_memory(what: str, num_bytes: int, fix: str, *, devices: int = 1) -> None:
    """Applies `check_memory` to the bytes on each device; CPU devices share the memory."""
    import jax

    shared = devices if jax.default_backend() == "cpu" else 1
    check_memory(what, num_bytes * shared, fix, limit=device_memory())


def check_int32(what: str, value: Any, fix: str) -> None:
    """Raises ValueError if the number of `what`, such as "the local steps", exceeds 32 bits."""
    if value > MAX_INT32:
        number = f"{value:.0f}" if value < 1e18 else f"{value:.3g}"
        raise ValueError(f"{what} would be {number}, above the 32-bit limit {MAX_INT32}; {fix}")


def readable_bytes(number: float) -> str:
    """Formats a number of bytes with its unit, such as `1.5 GB`."""
    size = float(min(number, sys.float_info.max))  # a damaged header may say more
    factor, prefix = si_prefix(size)
    return f"{size / factor:.3g} {prefix}B" if prefix else f"{size:.3g} bytes"
