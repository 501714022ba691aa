"""Where the processes of a command wait for each other, so that errors name those that are missing.

They meet at the port of process 0 that jax's runtime uses next; its own time-out names no process.
"""

import contextlib
import os
import socket
import time

from fedjax_algos.base.errors import require

_BYTES = 4096  # of a line, at most
_PATIENCE = 10.0  # seconds for a name, a greeting, and an answer after the time of process 0
_LINE = 2.0  # seconds for the line of another process
_STRANGERS = 2  # how often another program may answer in place of process 0
_PAUSE = 0.1  # seconds between two attempts to reach process 0
_GREETING = "fedjax-algos"  # of process 0


def meet(process: int, processes: int, coordinator: str, seconds: float) -> None:
    """Returns in all processes once all have come; else ValueError in those that have.

    Args:
      process, processes: the number of this process, from 0, and how many there have to be.
      coordinator: HOST:PORT of process 0.
      seconds: how long a process waits for the others.
    """
    host, _, port = coordinator.rpartition(":")
    until, late = time.monotonic() + seconds, f"did not come to {coordinator} within {seconds:g} s"
    address, line = (host.strip("[]"), int(port)), f"{process} {processes}"
    if wrong := _unknown(address[0]):
        pass
    elif process == 0:
        wrong = _gather(processes, int(port), until, late)
    else:
        wrong = _report(line, address, until, seconds + _PATIENCE, late)
    fix = f"start each of --process 0 to {processes - 1} once, with the same --processes"
    require(not wrong, f"process {process} of {processes}: {wrong}; {fix}")


def _unknown(host):
    """Says that a host's name has no address; "" if it has one."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.getaddrinfo(host, None)
            return ""
        except (OSError, UnicodeError) as error:
            if time.monotonic() > until:
                return f"the host {host} is not known ({getattr(error, 'strerror', error)})"
        time.sleep(_PAUSE)


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
            _tell(one, _GREETING)
            with contextlib.suppress(OSError, ValueError):  # a stranger
                number, given = map(int, _line(one, _LINE).split())
                if given != processes:
                    wrong = f"process {number} has --processes {given}, not {processes}"
                elif not 0 < number < processes:
                    continue
                elif number in came and _waits(came[number]):  # and has not been started again
                    wrong = f"two processes have --process {number}"
                    _tell(came[number], wrong)
                came[number] = one
        for one in came.values():
            _tell(one, wrong)
    return wrong


def _report(line, address, until, longest, late):
    """What process 0 says is wrong, or that it has not come; "" if nothing is."""
    error: object = "no answer"
    strangers = 0
    while time.monotonic() < until:
        try:
            with socket.create_connection(address, timeout=_PATIENCE) as one:
                _tell(one, line)
                if _greets(one):
                    if answer := _line(one, longest):
                        return answer.strip()
                elif (strangers := strangers + 1) == _STRANGERS:
                    return f"another program, or another command, has port {address[1]}"
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


def _greets(one):
    """True if process 0 answers; another program says something else, or nothing."""
    with contextlib.suppress(OSError):
        return _line(one, _PATIENCE).strip() == _GREETING
    return False


def _waits(one):
    """True if the other end of a connection is open."""
    try:
        one.settimeout(0)
        return bool(one.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _line(one, seconds):
    """Reads a line of at most `_BYTES`, which must be complete within so many seconds."""
    until, line = time.monotonic() + seconds, b""
    while not line.endswith(b"\n") and len(line) < _BYTES:
        one.settimeout(max(until - time.monotonic(), 1e-3))
        if not (part := one.recv(1)):
            break
        line += part
    return line.decode(errors="replace")


def _tell(one, text):
    with contextlib.suppress(OSError):
        one.sendall(f"{text}\n".encode())
