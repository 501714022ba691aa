"""Where the processes of a command wait for each other, so that errors name those that are missing.

They meet at the port of process 0 that jax's runtime uses next; its own time-out names no process.
"""

import contextlib
import os
import socket
import time

from fedjax_algos.core.files import require

_BYTES = 4096  # of a line, at most
_PATIENCE = 10.0  # seconds for a line, and for an answer after the time of process 0
_PAUSE = 0.1  # seconds between two attempts to reach process 0


def meet(process: int, processes: int, coordinator: str, seconds: float) -> None:
    """Returns in all processes once all have come; else ValueError in those that have.

    Args:
      process, processes: the number of this process, from 0, and how many there have to be.
      coordinator: HOST:PORT of process 0.
      seconds: how long a process waits for the others.
    """
    host, _, port = coordinator.rpartition(":")
    until, late = time.monotonic() + seconds, f"did not come to {coordinator} within {seconds:g} s"
    if process == 0:
        wrong = _gather(processes, int(port), until, late)
    else:
        address, line = (host.strip("[]"), int(port)), f"{process} {processes}"
        wrong = _report(line, address, until, seconds + _PATIENCE, late)
    fix = f"start each of --process 0 to {processes - 1} once, with the same --processes"
    require(not wrong, f"process {process} of {processes}: {wrong}; {fix}")


def _gather(processes, port, until, late):
    """What is wrong with those that come to process 0, which tells them; "" if nothing is."""
    came: dict[int, socket.socket] = {}
    wrong = ""
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(_listen(port))
        while len(came) < processes - 1 and not wrong:
            server.settimeout(max(until - time.monotonic(), 1e-3))
            try:
                one = opened.enter_context(server.accept()[0])
            except TimeoutError:
                missing = [str(n) for n in range(1, processes) if n not in came]
                wrong = f"process{'es' * (len(missing) > 1)} {', '.join(missing)} {late}"
                break
            with contextlib.suppress(OSError, ValueError):  # a stranger
                number, given = map(int, _line(one, _PATIENCE).split())
                if number in came:  # which may have been started again
                    _tell(came[number], f"another process {number} has come")
                came[number] = one
                if given != processes:
                    wrong = f"process {number} has --processes {given}, not {processes}"
        for one in came.values():
            _tell(one, wrong)
    return wrong


def _report(line, address, until, longest, late):
    """What process 0 says is wrong, or that it has not come; "" if nothing is."""
    error: object = "no answer"
    while time.monotonic() < until:
        try:
            with socket.create_connection(address, timeout=_PATIENCE) as one:
                _tell(one, line)
                if answer := _line(one, longest):
                    return answer.strip()
        except OSError as refused:
            error = refused.strerror or refused
        time.sleep(_PAUSE)
    return f"process 0 {late} ({error})"


def _listen(port):
    """A socket at all addresses of this host, as jax's runtime opens one next."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        fix = "give --coordinator HOST:PORT, where process 0 is and a port that is free there"
        reason = os.strerror(error.errno or 0)  # without the address that Python adds
        raise ValueError(f"process 0 cannot use port {port} ({reason}); {fix}") from None


def _line(one, seconds):
    one.settimeout(seconds)
    return one.makefile("rb").readline(_BYTES).decode(errors="replace")


def _tell(one, text):
    with contextlib.suppress(OSError):
        one.sendall(f"{text}\n".encode())
