"""What JAX compiles: how long it takes, and a folder that keeps it for later processes."""

import contextlib
import dataclasses
import tempfile
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
    """What was compiled while `measure_compilation` ran, in seconds of wall time."""

    programs: int = 0  # made by the backend, or read from a folder
    from_cache: int = 0  # those that were read
    trace_seconds: float = 0.0  # Python to jaxprs, those of `count_flops` and the like included
    lower_seconds: float = 0.0  # jaxprs to what the backend takes
    backend_seconds: float = 0.0  # that to programs, or reading them

    @property
    def seconds(self) -> float:
        """All three phases."""
        return self.trace_seconds + self.lower_seconds + self.backend_seconds

    def __str__(self) -> str:
        read = f", {self.from_cache} of them from the cache" if self.from_cache else ""
        plural = "s" * (self.programs != 1)
        return f"{self.seconds:.1f} s to compile {self.programs} program{plural}{read}"


@contextlib.contextmanager
def measure_compilation() -> Iterator[Compilation]:
    """Measures what this process compiles in a `with` block.

    Returns:
      A `Compilation` that grows while the block runs. Where JAX compiles in the midst of a trace
      (`jax.ensure_compile_time_eval`), those seconds count in both.
    """
    measured = Compilation()

    def add(event: str, duration_secs: float, **about: Any) -> None:
        if phase := _PHASES.get(event):
            setattr(measured, phase, getattr(measured, phase) + duration_secs)
            measured.programs += phase == "backend_seconds"

    def count(event: str, **about: Any) -> None:
        measured.from_cache += event == _CACHE_HIT

    jax.monitoring.register_event_duration_secs_listener(add)
    jax.monitoring.register_event_listener(count)
    try:
        yield measured
    finally:
        jax.monitoring.unregister_event_duration_listener(add)
        jax.monitoring.unregister_event_listener(count)


def keep_compiled(folder: str | Path) -> None:
    """Keeps what this process compiles from now on in a folder, and reads from it what it can.

    This is JAX's own cache, here also of programs that are small and quick to compile. A program is
    found by what it computes, JAX's version, the device and the compiler's flags, so numbers stay
    the same to the last digit. Nothing is ever removed. What is read is run: share a folder only
    with those whom you trust.

    Args:
      folder: is made where there is none.

    Raises:
      ValueError: for a folder that cannot be written to.
    """
    try:
        if not str(folder):
            raise FileNotFoundError(None, "it has no name")
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"compilation_cache={str(folder)!r} is no folder to write to ({error.strerror}); "
            "name a folder, new or of an earlier run"
        ) from None
    jax.config.update("jax_compilation_cache_dir", str(Path(folder).resolve()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    reset_cache()  # else JAX stays with the folder that it first used
