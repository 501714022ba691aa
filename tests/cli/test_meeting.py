"""Processes of a command wait for each other, and say which ones have not come."""

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedjax_algos.cli import meeting
from fedjax_algos.cli.meeting import meet
from fedjax_algos.cli.processes import Place, joined


@pytest.fixture
def address():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return f"localhost:{probe.getsockname()[1]}"


def meetings(address, *places, seconds=0.5):
    """What comes of each (process, processes) that start at the same time: "" or the error."""

    def start(place):
        try:
            meet(*place, address, seconds)
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(places)) as pool:
        return [*pool.map(start, places)]


def test_all_come(address):
    assert meetings(address, (2, 3), (0, 3), (1, 3), seconds=30) == ["", "", ""]


def test_those_that_come_are_told_who_does_not(address):
    late = f"did not come to {address} within 0.5 s"
    fix = "start each of --process 0 to 3 once, with the same --processes"
    assert meetings(address, (0, 4), (2, 4)) == [
        f"process {number} of 4: processes 1, 3 {late}; {fix}" for number in (0, 2)
    ]
    (told,) = meetings(address, (1, 4))
    assert told.startswith(f"process 1 of 4: process 0 {late} (")
    (told,) = meetings(address, (0, 2), seconds=0.1)
    assert told.startswith("process 0 of 2: process 1 did not come")


def test_others_are_told_at_once(address):
    told = meetings(address, (0, 2), (1, 3), seconds=30)
    assert told[0].startswith("process 0 of 2: process 1 has --processes 3, not 2; start each of")
    assert told[1].startswith("process 1 of 3: process 1 has --processes 3, not 2; start each of")
    told = meetings(address, (0, 3), (1, 3), (1, 3), seconds=30)
    assert all("two processes have --process 1; start each of" in each for each in told)


def test_an_unknown_host_is_told_soon(monkeypatch):
    """Also by process 0, at whose port nobody would come."""
    monkeypatch.setattr(meeting, "_PATIENCE", 0.1)
    for host in ("no-such-host.invalid", "x" * 70, "two words"):
        told = meetings(f"{host}:4000", (0, 2), (1, 2), seconds=30)
        assert all(f"the host {host} is not known" in each for each in told)


def test_strangers_do_not_count(address):
    place = "localhost", int(address.rpartition(":")[2])
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(meetings, address, (0, 2), seconds=30)
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\n", b"", b"-7 2\n", b"2 2\n", b"0 2\n"):
            while True:
                with contextlib.suppress(ConnectionRefusedError):  # until process 0 is there
                    with socket.create_connection(place) as one:
                        one.sendall(words)
                    break
        assert meetings(address, (1, 2), seconds=30) == first.result() == [""]


def test_a_port_in_use(address):
    def answer():
        with contextlib.suppress(TimeoutError):
            while True:
                other.accept()[0].close()  # as jax's own does

    with socket.create_server(("localhost", int(address.rpartition(":")[2]))) as other:
        (told,) = meetings(address, (0, 2), seconds=1)
        assert "process 0 cannot use port" in told
        assert "(Address already in use); give --coordinator" in told
        other.settimeout(1)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(answer)
            (told,) = meetings(address, (1, 2))
    assert "another program, or another command, has port" in told


def test_who_drips_or_says_nothing_holds_nobody(address, monkeypatch):
    monkeypatch.setattr(meeting, "_LINE", 0.2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(meetings, address, (0, 2), seconds=30)
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                one = socket.create_connection(("localhost", int(address.rpartition(":")[2])))
                break
        one.sendall(b"1")
        assert meetings(address, (1, 2), seconds=30) == first.result() == [""]
        one.close()


def test_a_command_does_not_start_jax_before_all_have_come(address, monkeypatch):
    monkeypatch.setattr("fedjax_algos.cli.processes.START", 0.1)
    monkeypatch.setattr("jax.distributed.initialize", None)
    message = "processes 1, 2 did not come"
    with pytest.raises(ValueError, match=message), joined(Place(0, 3, address)):
        pass
