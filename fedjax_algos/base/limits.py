"""Bounds on sizes: what fits into 32-bit integers, and what fits into the memory of the machine.

What is compared with the memory is a lower bound of what is needed: a run that fits is not refused.
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
    """Bytes of physical memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not known on this platform
        return sys.maxsize


@functools.cache
def device_memory() -> int:
    """Bytes that the default device can allocate; one of the CPU shares the machine's."""
    return accelerator_memory() or host_memory()


def accelerator_memory() -> int | None:
    """Bytes that the default accelerator can allocate; None of a CPU, and where it is not known."""
    import jax

    if jax.default_backend() == "cpu":
        return None
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def check_memory(what: str, num_bytes: int, fix: str, *, limit: int | None = None) -> None:
    """Raises ValueError for `what`, such as "rounds=5", that needs more than there is."""
    limit = host_memory() if limit is None else limit
    if num_bytes > limit:
        raise ValueError(
            f"{what} would need at least {readable_bytes(num_bytes)}, but there are "
            f"{readable_bytes(limit)} of memory; {fix}"
        )


def check_device_memory(what: str, num_bytes: int, fix: str, *, devices: int = 1) -> None:
    """`check_memory` for what each of some devices has to hold; those of a CPU share its memory."""
    import jax

    shared = devices if jax.default_backend() == "cpu" else 1
    check_memory(what, num_bytes * shared, fix, limit=device_memory())


def check_int32(what: str, value: Any, fix: str) -> None:
    """Raises ValueError for a number of `what`, such as "the local steps", above 32 bits."""
    if value > MAX_INT32:
        shown = f"{value:.0f}" if value < 1e18 else f"{value:.3g}"
        raise ValueError(
            f"{what} would be {shown}, but they are counted in 32-bit integers, at most "
            f"{MAX_INT32}; {fix}"
        )


def readable_bytes(number: float) -> str:
    """A number of bytes with its unit, such as `1.5 GB`."""
    size = float(min(number, sys.float_info.max))  # a damaged header may say more
    factor, prefix = si_prefix(size)
    return f"{size / factor:.3g} {prefix}B" if prefix else f"{size:.3g} bytes"
