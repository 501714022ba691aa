"""Several processes have the numbers of one with as many devices, and what a loss leaves."""

import contextlib
import csv
import os
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from helpers import ROOT
from process_runs import RUN

from fedjax_algos.cli import main
from fedjax_algos.cli.processes import Place, joined, place_of

EXACT = re.compile("sweep|clock")  # whose sums are not divided over devices


def run_sets(folder, *names, seconds=1500):
    """The exit codes of sets of processes by name; all are ended if one does not end."""
    command = [sys.executable, str(ROOT / "tests" / "process_runs.py"), str(folder), *names]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/tests"}
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = subprocess.Popen(command, env=environment, start_new_session=True, **outputs)
    try:
        output, errors = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        pytest.fail(f"a process has not ended\n{errors_in(folder)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    lines = [line.split(",") for line in output.splitlines()]
    assert [name for name, *_ in lines] == [*names], errors
    return {name: [int(code) for code in codes] for name, *codes in lines}


def errors_in(folder):
    return "\n".join(path.read_text()[-2000:] for path in sorted(folder.rglob("err")))


NIGHTLY = pytest.param("numbers", (1, 2, 4), marks=pytest.mark.nightly)


@pytest.mark.all
@pytest.mark.parametrize(("kind", "numbers"), [("some", (1, 2)), NIGHTLY])
def test_the_numbers_of_one_process(kind, numbers, tmp_path):
    """Two processes with two devices each have all of them; four with one have no pairs."""
    sets = {f"{kind} {number}": number for number in numbers}
    ends = run_sets(tmp_path, *sets)
    assert ends == {name: [0] * number for name, number in sets.items()}, errors_in(tmp_path)
    files = {name: sorted((tmp_path / name).rglob("numbers.npz")) for name in sets}
    found = {name: [dict(np.load(path)) for path in paths] for name, paths in files.items()}
    (one,), *others = found.values()
    for (first, *rest), number in zip(others, numbers[1:], strict=True):
        assert first.keys() == {name for name in one if number < 4 or "two" not in name}
        for own in (first, *rest):
            assert own.keys() == first.keys()
            for name, value in own.items():
                close = 0 if EXACT.search(name) else 1e-6
                np.testing.assert_allclose(value, one[name], rtol=close, atol=close, err_msg=name)
                np.testing.assert_array_equal(value, first[name], err_msg=name)
                whole = own[name.removesuffix(" resumed")]  # a run that was cut in two
                np.testing.assert_array_equal(value, whole, err_msg=name)


@pytest.mark.nightly
def test_a_process_that_is_lost_is_missing_or_does_not_fit(tmp_path, capsys):
    """The others end and say how it goes on, here with another number of devices."""
    ends = run_sets(tmp_path, "killed", "differing", "uneven", "waiting", "missing")
    assert ends["killed"][0]
    assert ends["killed"][1] == -signal.SIGKILL
    assert ends["differing"] == [2, 2]
    assert ends["uneven"] == [2, 2]
    assert ends["waiting"] == [-signal.SIGINT]
    assert ends["missing"] == [-signal.SIGABRT]
    places = "killed/0", "differing/1", "uneven/1", "missing/0"
    killed, differing, uneven, missing = (
        (tmp_path / place / "err").read_text() for place in places
    )
    assert re.search("error: process 0 of 2: .*; go on with: fedjax-algos run .*--resume", killed)
    assert "Traceback" not in killed, killed
    assert "process 1 of 2: the processes have other arguments: seeds='2', not None;" in differing
    assert "this process has 2 of 5 devices, and others have more or fewer" in uneven
    assert "Terminating process because the JAX distributed service" in missing

    assert [*tmp_path.glob("out/runs/*/*/checkpoints/1.npz")]
    with pytest.warns(UserWarning, match="of 2 device.s., and the run goes on with 1"):
        main([*RUN.format(tmp_path / "out").split(), "--devices", "1", "--resume"])
    with (tmp_path / "out" / "metrics.csv").open(newline="") as file:
        assert [int(row["round"]) for row in csv.DictReader(file)] == [0, 1, 2, 3, 4]


def test_a_port_in_use():
    with socket.create_server(("", 0)) as other:
        place = Place(0, 2, f"localhost:{other.getsockname()[1]}")
        with pytest.raises(ValueError, match="give --coordinator"), joined(place):
            pass


SLURM = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}


@pytest.mark.parametrize(
    ("environment", "options", "expected"),
    [
        ({}, {}, None),
        ({}, {"coordinator": "a:1", "processes": 2, "process": 1}, (1, 2, "a:1")),
        (SLURM, {}, (3, 4, None)),
        (SLURM, {"coordinator": "a:1"}, (3, 4, "a:1")),
        (SLURM, {"processes": 1}, None),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, {}, None),
        ({"SLURM_PROCID": "0"}, {}, None),  # of a batch script
        (MPI, {}, (0, 2, None)),
        (SLURM, {"processes": 2, "process": 0}, "give --coordinator HOST:PORT"),
        ({}, {"coordinator": "a:1"}, "give --processes P"),
        ({}, {"coordinator": "a:1", "processes": 2}, "process is missing beside processes=2"),
        (
            {},
            {"coordinator": "a:1", "processes": 2, "process": 2},
            "process 2 is out of range beside processes=2; give --process I, one of 0 to 1",
        ),
        ({}, {"coordinator": "a", "processes": 2, "process": 0}, "coordinator='a'"),
        ({}, {"coordinator": "a:65536", "processes": 2, "process": 0}, "='a:65536'"),
    ],
)
def test_the_place_of_a_process(environment, options, expected, monkeypatch):
    for name in [*SLURM, *MPI]:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=re.escape(expected)):
            place_of(**options)
    else:
        assert place_of(**options) == expected
