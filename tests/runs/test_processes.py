"""Several processes have the numbers of one with as many devices, and what a loss leaves."""

import csv
import os
import re
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import ROOT
from process_runs import numbers_of

from fedjax_algos.cli.processes import place_of

SMALL = "run scaffold --model linear --clients 8 --cohort 4 --local-steps 2 --eval-every 1"
ONE_DEVICE = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", ""), "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}
EXACT = re.compile("sweep|clock|tune")  # whose sums are not divided over devices


def port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


def start(number, words_of, folder):
    """Starts so many processes; their outputs are files in a folder."""
    processes = []
    for index in range(number):
        with (folder / f"{index}.out").open("w") as out, (folder / f"{index}.err").open("w") as err:
            words = [sys.executable, *words_of(str(index))]
            processes.append(
                subprocess.Popen(words, stdout=out, stderr=err, env=os.environ | ONE_DEVICE)
            )
    return processes


def ended(processes, folder, seconds=600):
    """Their exit codes; all are ended if one does not end."""
    try:
        return [process.wait(timeout=seconds) for process in processes]
    except subprocess.TimeoutExpired:
        texts = [path.read_text()[-2000:] for path in sorted(folder.glob("*.err"))]
        pytest.fail("\n".join(["a process has not ended", *texts]))
    finally:
        for process in processes:
            process.kill()


def command(given, number, address, folder):
    """The processes of a command."""
    shared = f"{given} --coordinator localhost:{address} --processes {number} --process".split()
    return start(number, lambda index: ["-m", "fedjax_algos", *shared, index], folder)


@pytest.fixture(scope="module")
def of_one(tmp_path_factory):
    return numbers_of(tmp_path_factory.mktemp("one"), ["fedavg", "scaffold", "fedcompass"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "names"), [(2, ["fedavg", "scaffold", "fedcompass"]), (4, ["scaffold"])]
)
def test_the_numbers_of_one_process(number, names, of_one, tmp_path):
    script, address = str(ROOT / "tests" / "process_runs.py"), port()

    def words(index):
        return [script, address, str(number), index, str(tmp_path), *names]

    codes = ended(start(number, words, tmp_path), tmp_path)
    texts = [(tmp_path / f"{index}.err").read_text()[-2000:] for index in range(number)]
    assert codes == [0] * number, "\n".join(texts)
    files = [np.load(tmp_path / f"numbers-{index}.npz") for index in range(number)]
    expected = {name: value for name, value in of_one.items() if name.split()[0] in names}
    if number == 4:
        del expected["scaffold two devices"]
    for numbers in map(dict, files):
        assert numbers.keys() == expected.keys()
        for name, value in expected.items():
            close = 0 if EXACT.search(name) else 1e-6
            np.testing.assert_allclose(numbers[name], value, rtol=close, atol=close, err_msg=name)
            np.testing.assert_array_equal(numbers[name], files[0][name], err_msg=name)
        for name in numbers:  # a run that was cut in two
            if name.endswith("resumed"):
                whole = numbers[name.removesuffix(" resumed")]
                np.testing.assert_array_equal(numbers[name], whole, err_msg=name)


@pytest.mark.slow
def test_a_process_that_is_killed_and_others_that_do_not_fit(tmp_path):
    """The other one ends and says how the run goes on; also on another number of devices."""
    out = tmp_path / "out"
    given = f"{SMALL} --rounds 300 --checkpoint-every 0 --devices 2 --out {out}"
    processes = command(given, 2, port(), tmp_path)
    try:
        while not list(out.glob("runs/*/*/checkpoints/*.checkpoint")):
            assert [process.poll() for process in processes] == [None, None]
            time.sleep(0.05)
        processes[1].kill()
        assert processes[0].wait(timeout=60) not in (0, None)
    finally:
        ended(processes, tmp_path, seconds=60)
    said = (tmp_path / "0.err").read_text()
    line = "process 0 of 2: ended, because it or another one was lost; go on with: fedjax-algos run"
    assert line in said, said
    assert "--resume" in said.partition(line)[2]

    others = [f"{given} --resume", f"{given} --resume --seeds 2"]
    address = port()

    def differing(index):
        own = f"{others[int(index)]} --coordinator localhost:{address} --processes 2 --process"
        return ["-m", "fedjax_algos", *own.split(), index]

    assert ended(start(2, differing, tmp_path), tmp_path) == [2, 2]
    assert "seeds='2', not None" in (tmp_path / "1.err").read_text()

    alone = [sys.executable, "-m", "fedjax_algos", *given.split(), "--resume"]
    alone[alone.index("--devices") + 1] = "1"
    done = subprocess.run(alone, capture_output=True, text=True, check=True, timeout=600)
    assert "is of 2 device(s), and the run goes on with 1" in done.stderr
    with (out / "metrics.csv").open(newline="") as file:
        rounds = [int(row["round"]) for row in csv.DictReader(file)]
    assert rounds == list(range(301))


@pytest.mark.slow
def test_a_process_that_does_not_come(tmp_path):
    code = "from fedjax_algos.cli import main, processes; processes.START = 2; main()"
    words = f"{SMALL} --out {tmp_path}/out --coordinator localhost:{port()} --processes 3 --process"
    processes = start(1, lambda index: ["-c", code, *words.split(), index], tmp_path)
    assert ended(processes, tmp_path) != [0]
    time.sleep(0.5)  # for the line, which is printed when the process has ended
    said = (tmp_path / "0.err").read_text()
    assert "process 0 of 3 has ended: at least one of the 3 did not come to localhost" in said
    assert not (tmp_path / "out").exists()


SLURM = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}


@pytest.mark.parametrize(
    ("environment", "options", "expected"),
    [
        ({}, {}, None),
        ({}, {"processes": 1}, None),
        ({}, {"coordinator": "a:1", "processes": 2, "process": 1}, (1, 2, "a:1")),
        (SLURM, {}, (3, 4, None)),
        (SLURM, {"coordinator": "a:1"}, (3, 4, "a:1")),
        (SLURM, {"processes": 1}, None),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, {}, None),
        ({"SLURM_PROCID": "0"}, {}, None),  # of a batch script
        (MPI, {}, (0, 2, None)),
        (SLURM, {"processes": 2, "process": 0}, "have no address; give --coordinator HOST:PORT"),
        ({}, {"coordinator": "a:1"}, "are for several processes; give --processes P"),
        ({}, {"coordinator": "a:1", "processes": 2}, "need --process I in each, one of 0 to 1"),
        ({}, {"coordinator": "a:1", "processes": 2, "process": 2}, "give one of 0 to 1"),
        ({}, {"coordinator": "a", "processes": 2, "process": 0}, "coordinator='a' is no HOST:PORT"),
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
