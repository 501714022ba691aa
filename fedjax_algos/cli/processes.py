"""Multi-process commands: jax's runtime connects the processes and ends them.

All processes compute, process 0 writes and prints, and each prints its errors.
"""

import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import click
import jax

from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import MAX_INT32
from fedjax_algos.core.options import Count, Range
from fedjax_algos.engine.placed.processes import from_first, is_first, largest, num_processes

START = 300  # seconds until all processes must have connected
_MAX_PORT = 65535
_LOST = 30  # seconds after which a process that does not answer is lost
_END = 10  # seconds between the ends of the first and the last process
# variables of schedulers: the number of processes, and the number of this process
_SLURM = "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"
_OPEN_MPI = "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"
_STATUS = re.compile("(ABORTED|CANCELLED|DEADLINE_EXCEEDED|INTERNAL|UNAVAILABLE|UNKNOWN): ")
_FIX = "give --coordinator HOST:PORT, where process 0 is and a port that is free there"


class Place(NamedTuple):
    """The place of this process among the processes of a command."""

    process: int
    processes: int
    coordinator: str | None  # None: jax asks the scheduler


def place_of(
    *,
    coordinator: str | None = None,
    processes: Count | None = None,
    process: Annotated[int, Range(0, MAX_INT32)] | None = None,
) -> Place | None:
    """Returns the place that options or a scheduler give; None for a single process."""
    pairs = [[os.environ.get(name) for name in names] for names in (_SLURM, _OPEN_MPI)]
    size, rank = next((pair for pair in pairs if None not in pair), (None, None))
    number = processes or int(size or 1)
    if number == 1:
        alone = coordinator is None and (process is None or processes == 1 + process)
        require(alone, "--coordinator and --process need several processes; give --processes P")
        return None
    scheduled = size == str(number)
    if process is None and scheduled:
        process = int(rank or 0)
    if process is None or process >= number:
        fix = f"give --process I, one of 0 to {number - 1}, or let srun or mpirun start so many"
        state = "is missing" if process is None else f"{process} is out of range"
        raise ValueError(f"process {state} beside processes={number}; {fix}")
    host, _, port = (coordinator or "").rpartition(":")
    is_address = host and port.isdecimal() and 1 <= int(port) <= _MAX_PORT
    text = f"coordinator={coordinator!r} is not the address of processes={number}; {_FIX}"
    require(is_address or (scheduled and coordinator is None), text)
    return Place(process, number, coordinator)


@contextlib.contextmanager
def joined(place: Place | None) -> Iterator[None]:
    """Starts jax's runtime for the processes of a command, and silences all but process 0."""
    if place is None:
        yield
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    # jax waits in C++, where a Python handler would not be called
    handlers = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        if place.coordinator is not None and place.process == 0:  # a port in use would crash jax
            socket.create_server(("", int(place.coordinator.rpartition(":")[2]))).close()
        jax.distributed.initialize(
            *(place.coordinator, place.processes, place.process),
            initialization_timeout=START,
            heartbeat_timeout_seconds=_LOST,
            shutdown_timeout_seconds=_END,
        )
    except (OSError, RuntimeError, ValueError) as error:
        fix = f"{_FIX}; your own file must not use jax when it is imported"
        raise ValueError(f"process {place.process} cannot start ({error}); {fix}") from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    devices, own = jax.device_count(), jax.local_device_count()
    text = f"this process has {own} of {devices} devices, and others have more or fewer; give all "
    require(devices == own * jax.process_count(), f"{text}the same arguments")
    output = os.dup(1) if is_first() else os.open(os.devnull, os.O_WRONLY)
    os.dup2(2, 1)  # libraries print there
    sys.stdout = os.fdopen(output, "w", 1, sys.stdout.encoding, sys.stdout.errors)
    silent: Any = contextlib.redirect_stderr(sys.stdout)
    with contextlib.nullcontext() if is_first() else silent:
        yield


def check_same_command(arguments: dict[str, Any]) -> None:
    """Raises ValueError in all processes if one has other arguments than process 0."""
    own = {name: repr(value) for name, value in arguments.items() if name != "process"}
    first = from_first(lambda: own)()
    names = [name for name in own | first if own.get(name) != first.get(name)]
    differ = "; ".join(f"{name}={own.get(name)}, not {first.get(name)}" for name in names) or "-"
    fix = "give all the same arguments, or --processes 1 if each is a separate command"
    require(not largest(bool(names)), f"the processes have other arguments: {differ}; {fix}")


def name() -> str:
    """Names this process in its errors; "" if it is alone."""
    number = num_processes()
    return "" if number == 1 else f"process {jax.process_index()} of {number}: "


def end_if_lost(error: BaseException, how_to_continue: str) -> None:
    """Ends this process at once if the error comes from jax's runtime.

    Another process may be lost then, and jax would wait for it in a normal exit.
    """
    # a compiled function raises a ValueError with a status in place of jax's error
    status = isinstance(error, ValueError) and _STATUS.match(str(error))
    if name() and (status or isinstance(error, jax.errors.JaxRuntimeError)):
        first_line = next(iter(str(error).splitlines()), "")
        click.echo(f"error: {name()}{first_line}; {how_to_continue}", err=True)
        sys.stdout.flush()
        os._exit(1)
