"""Kills runs at random moments, resumes them until they end, and compares all that they wrote.

Four commands: rounds with client rows on the host (SCAFFOLD), the virtual clock (FedCompass, two
seeds; each start takes one or two devices), a sweep, and rounds in two processes, of which one is
killed and the other one has to end within a minute. (If it was killed before jax connected them,
the other one waits for it, and jax says so.) Each is run once to its end; then it is killed with
SIGKILL at random moments, between the start of the process and the time that the whole run took,
and resumed, until it has been killed so often, at least once after its first checkpoint, and has
ended. The last models and the rows of metrics, without the wall time, must be those of the
uninterrupted run in all digits, and every row must be there once.

COMMAND   python experiments/kill_and_resume.py --kills 20
EXPECTED  four lines that end in "0 of ... rows and 0 of ... arrays differ"
TIME      about half an hour on two CPU cores; with --kills 1 --only rounds one minute
"""

import argparse
import csv
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedjax_algos.cli.processes import START

SMALL = ["--clients", "20", "--batch-size", "8", "--eval-every", "2", "--checkpoint-every", "0"]
COMMANDS = {
    "rounds": "run scaffold --client-state host --rounds 80 --cohort 5 --seeds 2",
    "virtual clock": "run fedcompass --seconds 400 --evaluations 25 --seeds 2,4",
    "sweep": "sweep fedprox --grid mu=0.1,0.5 --rounds 100 --cohort 5 --seeds 2 --devices 2",
    "processes": "run scaffold --rounds 60 --cohort 4 --seeds 2 --devices 2 --processes 2",
}
DEVICES = {"virtual clock": "12"}  # numbers of them, of which each start takes one
SECONDS = 60  # within which a process ends after another one was killed


def start(arguments, folder):
    """The processes of a command, each with a file of what it says."""
    command = [sys.executable, "-m", "fedjax_algos", *arguments, "--out", str(folder), "--resume"]
    if "--processes" not in arguments:
        return [started(command)]
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        command += ["--coordinator", f"localhost:{probe.getsockname()[1]}"]
    return [started([*command, "--process", number]) for number in "01"]


def started(command):
    said = tempfile.TemporaryFile("w+")  # noqa: SIM115
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
    process.said = said
    return process


def check_ended(processes):
    """Fails with what a process said that has not ended well."""
    for process in processes:
        if process.wait():
            process.said.seek(0)
            sys.exit(process.said.read())


def kill_one(processes, rng):
    """Kills one of the processes; the others have to end by themselves.

    If jax had not connected it yet, they wait for it, and jax says so.
    """
    rng.choice(processes).kill()
    for process in processes:
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.wait(START)
            process.said.seek(0)
            assert "RegisterTask" in process.said.read()


def written(folder):
    """(the rows of metrics without wall time, the last models), by run."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        del row["wall_seconds"]
    models = {}
    for path in sorted(folder.glob("runs/*/*/model.npz")):
        with np.load(path) as arrays:
            models[str(path.relative_to(folder))] = dict(arrays)
    return rows, models


def differences(one, other):
    """The numbers of rows and of arrays that are not equal in all bits."""
    rows = sum(left != right for left, right in zip(one[0], other[0], strict=True))
    assert one[1].keys() == other[1].keys()
    arrays = sum(
        model[name].tobytes() != other[1][run][name].tobytes()
        for run, model in one[1].items()
        for name in model
    )
    return rows, arrays


def kill_and_resume(arguments, scratch, kills, rng, devices):
    """A line that says what was done, and whether all was equal."""
    began = time.perf_counter()
    check_ended(start(arguments, scratch / "whole"))
    seconds = time.perf_counter() - began
    killed = useful = 0
    while True:
        some = ["--devices", rng.choice(devices)] if devices else []
        processes = start([*arguments, *some], scratch / "killed")
        try:
            processes[0].wait(rng.uniform(0, seconds) if killed < kills or not useful else None)
        except subprocess.TimeoutExpired:
            kill_one(processes, rng)
            killed += 1
            useful += any((scratch / "killed").glob("runs/**/checkpoints/*"))
            continue
        check_ended(processes)
        if killed >= kills and useful:
            break
        number = len(list(scratch.glob("ended-*")))
        (scratch / "killed").rename(scratch / f"ended-{number}")  # and once more
    ended = [scratch / "killed", *scratch.glob("ended-*")]
    whole = written(scratch / "whole")
    found = [differences(whole, written(folder)) for folder in ended]
    rows, arrays = (sum(numbers) for numbers in zip(*found, strict=True))
    compared = len(ended) * len(whole[0]), len(ended) * sum(map(len, whole[1].values()))
    line = f"{killed} kills ({useful} with a checkpoint), {len(ended)} runs: "
    line += f"{rows} of {compared[0]} rows and "
    return f"{line}{arrays} of {compared[1]} arrays differ", rows + arrays == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=COMMANDS, help="one of the four commands")
    options = parser.parse_args()
    equal = True
    chosen = [options.only] if options.only else list(COMMANDS)
    for name, command in ((name, COMMANDS[name]) for name in chosen):
        with tempfile.TemporaryDirectory() as scratch:
            rng = random.Random(options.seed)
            arguments = [*command.split(), *SMALL, "--compilation-cache", f"{scratch}/compiled"]
            if name == "virtual clock":
                arguments = [a for a in arguments if a not in ("--eval-every", "2")]
            line, same = kill_and_resume(
                arguments, Path(scratch), options.kills, rng, DEVICES.get(name)
            )
            print(f"{name}: {line}", flush=True)
            equal &= same
    sys.exit(not equal)


if __name__ == "__main__":
    main()
