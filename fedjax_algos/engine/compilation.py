"""Measures and caches compilation, and rounds sizes so that similar shapes share a program."""

import contextlib
import dataclasses
import hashlib
import os
import platform
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

_PHASES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace_seconds",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower_seconds",
    "/jax/core/compile/backend_compile_duration": "backend_seconds",
}
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


@dataclasses.dataclass
class Compilation:
    """Programs compiled in a block of `measure_compilation`, and seconds of wall time.

    Attributes:
      programs: number of programs compiled by the backend, or read from a folder.
      from_cache: number of programs among them that were read.
      trace_seconds: from Python to jaxprs, including the traces of `count_flops`.
      lower_seconds: from jaxprs to the backend's input.
      backend_seconds: from there to programs, or to read them.
      shared_seconds: seconds among these that phases or threads share, so they are there twice.
      is_compiling: whether the backend compiles or reads a program now.
    """

    is_compiling = False  # not a field, so it is not recorded

    programs: int = 0
    from_cache: int = 0
    trace_seconds: float = 0.0
    lower_seconds: float = 0.0
    backend_seconds: float = 0.0
    shared_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The time in any of the three phases."""
        counted = self.trace_seconds + self.lower_seconds + self.backend_seconds
        return counted - self.shared_seconds

    def __str__(self) -> str:
        read = f", {self.from_cache} of them from the cache" if self.from_cache else ""
        plural = "s" * (self.programs != 1)
        return f"{self.seconds:.1f} s to compile {self.programs} program{plural}{read}"


@contextlib.contextmanager
def measure_compilation() -> Iterator[Compilation]:
    """Measures the compilation of this process in a `with` block.

    Returns:
      A `Compilation` that is updated while the block runs. If JAX compiles during a trace
      (`jax.ensure_compile_time_eval`), those seconds count in both phases.
    """
    measured, lock = Compilation(), threading.Lock()
    counted: list[tuple[float, float]] = []  # times that do not overlap

    def add_duration(event: str, duration_secs: float, **details: Any) -> None:
        if not (phase := _PHASES.get(event)):
            return
        with lock:
            end = time.perf_counter()
            start = first = end - duration_secs
            while counted and counted[-1][1] > start:
                began, ended = counted.pop()
                measured.shared_seconds += ended - max(began, start)
                first = min(first, began)
            counted.append((first, end))
            setattr(measured, phase, getattr(measured, phase) + duration_secs)
            measured.programs += phase == "backend_seconds"
            measured.is_compiling = phase == "lower_seconds"

    def count_hit(event: str, **details: Any) -> None:
        measured.from_cache += event == _CACHE_HIT

    jax.monitoring.register_event_duration_secs_listener(add_duration)
    jax.monitoring.register_event_listener(count_hit)
    try:
        yield measured
    finally:
        jax.monitoring.unregister_event_duration_listener(add_duration)
        jax.monitoring.unregister_event_listener(count_hit)


def keep_in_user_cache() -> None:
    """Saves compiled programs in the user's cache, up to 256 MiB, if only the user can write there.

    It does nothing if no such folder can be made.
    """
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        folder = user_cache()
        if not (_of_user_alone(folder.parent) and _of_user_alone(folder)):
            return
        for program in folder.glob("*-cache"):  # a kill may leave one without its time of use
            beside = program.with_name(program.name.removesuffix("cache") + "atime")
            if not beside.exists():
                beside.write_bytes(bytes(8))
        keep_compiled(folder, 2**28)
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def _of_user_alone(folder: Path) -> bool:
    """Makes a folder if it does not exist; returns whether only its user may write there."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    found, user = folder.stat(), getattr(os, "getuid", None)  # Windows has no numbers of users
    return user is None or (found.st_uid == user() and not found.st_mode & 0o022)


def user_cache() -> Path:
    """Returns the folder in the user's cache for programs of this kind of processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        processor = platform.node()
    name = hashlib.sha256((platform.machine() + processor).encode()).hexdigest()[:12]
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    home = given if given.is_absolute() else Path.home() / ".cache"
    return home / "fedjax_algos" / name


def keep_compiled(folder: str | Path | None, max_bytes: int = -1) -> None:
    """Saves compiled programs in a folder from now on, and reuses the programs there.

    This is JAX's persistent compilation cache, here also for small programs. A program is
    identified by its computation, the version of JAX, the device and the compiler's flags, so
    results stay the same. A damaged program is compiled each time. The process executes stored
    programs: share a folder only with people whom you trust.

    Args:
      folder: created for this user alone if it does not exist. None keeps programs no longer.
      max_bytes: size of the folder. Above it, the programs with the oldest use go first. By
        default nothing is removed.

    Raises:
      ValueError: if the folder cannot be created or written to.
    """
    try:
        if folder is not None:
            if not str(folder):
                raise FileNotFoundError(None, "it has no name")
            Path(folder).mkdir(0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            folder = str(Path(folder).resolve())
    except OSError as error:
        found = f"compilation_cache={str(folder)!r} cannot be written to ({error.strerror})"
        raise ValueError(f"{found}; name a folder, new or of an earlier run") from None
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_compilation_cache_max_size", max_bytes)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    reset_cache()  # otherwise JAX keeps using its first folder


def round_up_size(number: int) -> int:
    """Rounds up to one of 1, 2, 3, 4, 6, 8, 12, 16, ..., so that similar shapes share a program."""
    unit = 2 ** max((number - 1).bit_length() - 2, 0)
    return -(-number // unit) * unit
