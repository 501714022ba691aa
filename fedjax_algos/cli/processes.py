"""Several processes of one command: how they find each other, and what is said of one that is lost.

All of them compute, process 0 writes and prints, and each prints its own errors. `meeting.py` says
who is missing.
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, NoReturn

import click
import jax

from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import MAX_INT32
from fedjax_algos.cli.meeting import meet
from fedjax_algos.core.options import Count, Range
from fedjax_algos.engine.placed.processes import from_first, is_first, largest, num_processes

START = 300  # seconds until all processes have to be there
_MAX_PORT = 65535
_LOST = 30  # after which a process that does not answer is lost
_END = 10  # between the ends of the first and of the last process
# numbers of processes, and of this one, that a scheduler sets
_SCHEDULERS = (
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
)
# prints the last line of its input at the end of this, which comes also with that of the process
_LAST_LINE = 'while read -r line; do last=$line; done; [ -z "$last" ] || printf "%s\\n" "$last" >&2'
_STATUS = re.compile("(ABORTED|CANCELLED|DEADLINE_EXCEEDED|INTERNAL|UNAVAILABLE|UNKNOWN): ")
_watcher: list[subprocess.Popen] = []  # that prints; empty in a process that is alone


class Place(NamedTuple):
    """This process among those of a command."""

    process: int
    processes: int
    coordinator: str | None  # None: jax asks the scheduler

    def __str__(self) -> str:
        return f"process {self.process} of {self.processes}"


def place_of(
    *,
    coordinator: str | None = None,
    processes: Count | None = None,
    process: Annotated[int, Range(0, MAX_INT32)] | None = None,
) -> Place | None:
    """The place that options or a scheduler give; None for a process that is alone."""
    known = [[os.environ.get(name) for name in names] for names in _SCHEDULERS]
    size, rank = next((pair for pair in known if None not in pair), (None, None))
    number = processes or int(size or 1)
    if number == 1:
        alone = coordinator is None and (process is None or processes == 1 + process)
        require(alone, "--coordinator and --process are for several processes; give --processes P")
        return None
    if process is None and size == str(number):
        process = int(rank or 0)
    last = f"one of 0 to {number - 1}"
    given = f"processes={number} need --process I in each"
    require(process is not None, f"{given}, {last}, or srun or mpirun that starts so many")
    assert process is not None
    require(process < number, f"process={process} is out of range; give {last}")
    fix = "give --coordinator HOST:PORT, where process 0 is and a port that is free there"
    require(coordinator or size == str(number), f"processes={number} have no address; {fix}")
    host, _, port = (coordinator or "host:1").rpartition(":")
    is_port = port.isdecimal() and 1 <= int(port) <= _MAX_PORT
    require(host and is_port, f"coordinator={coordinator!r} is no HOST:PORT; {fix}")
    return Place(process, number, coordinator)


@contextlib.contextmanager
def joined(place: Place | None) -> Iterator[None]:
    """Starts jax's runtime for the processes of a command; all but process 0 are silent then."""
    if place is None:
        yield
        return
    seconds = START
    if place.coordinator is not None:
        meet(place.process, place.processes, place.coordinator, START)
        seconds = _LOST  # now all are there
    command = ["/bin/sh", "-c", _LAST_LINE]
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    _watcher[:] = [subprocess.Popen(command, **streams, start_new_session=True)]
    where = place.coordinator or "the address of the scheduler"
    least = f"at least one of the {place.processes} did not come to {where} within {seconds} s"
    leave_word(f"{place} has ended: {least}; look for the first one that has failed")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    try:
        jax.distributed.initialize(
            *(place.coordinator, place.processes, place.process),
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=_LOST,
            shutdown_timeout_seconds=_END,
        )
    except (RuntimeError, ValueError) as error:
        leave_word("")
        fix = "give --coordinator HOST:PORT; a file of your own must not use jax when it is read"
        raise ValueError(f"{place} cannot start ({error}); {fix}") from None
    say_if_lost("give the same command again")
    output = os.dup(1) if is_first() else os.open(os.devnull, os.O_WRONLY)
    os.dup2(2, 1)  # where libraries print
    sys.stdout = os.fdopen(output, "w", 1, sys.stdout.encoding, sys.stdout.errors)
    silent: Any = contextlib.redirect_stderr(sys.stdout)
    try:
        with contextlib.nullcontext() if is_first() else silent:
            yield
    except BaseException as error:
        if not is_loss(error):
            leave_word("")
        raise
    leave_word("")


def say_if_lost(way_on: str) -> None:
    """What is printed if a process is lost, from now on."""
    leave_word(f"{name()}ended, because it or another one was lost; {way_on}")


def leave_word(line: str) -> None:
    """The line that is printed if this process ends without another one; none if it is empty."""
    for watcher in _watcher:
        assert watcher.stdin is not None
        with contextlib.suppress(OSError):
            watcher.stdin.write(f"{line}\n".encode())
            watcher.stdin.flush()


def check_same_command(given: dict[str, Any]) -> None:
    """Raises ValueError in all processes if one was given other arguments than process 0."""
    texts = {name: repr(value) for name, value in given.items() if name != "process"}
    first = from_first(lambda: texts)()
    others = [name for name in texts | first if texts.get(name) != first.get(name)]
    told = "; ".join(f"{name}={texts.get(name)}, not {first.get(name)}" for name in others)
    fix = "give all the same arguments, or --processes 1 if each is a command of its own"
    require(not largest(bool(others)), f"the processes have other arguments: {told or '-'}; {fix}")


def name() -> str:
    """This process in its errors; nothing if it is alone."""
    number = num_processes()
    return "" if number == 1 else f"process {jax.process_index()} of {number}: "


def is_loss(error: BaseException) -> bool:
    """Whether an error of several processes is one of jax's runtime: another one may be lost."""
    # a call of a compiled function raises a ValueError with a status in place of jax's own error
    status = isinstance(error, ValueError) and _STATUS.match(str(error))
    return bool(name() and (status or isinstance(error, jax.errors.JaxRuntimeError)))


def end_after_loss(error: BaseException) -> NoReturn:
    """Ends this process at once; at a usual end jax would wait for those that are lost."""
    first_line = next(iter(str(error).splitlines()), "")
    click.echo(f"error: {name()}{first_line}", err=True)
    sys.stdout.flush()
    os._exit(1)
