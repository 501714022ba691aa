"""Sets of processes, forked from one that has imported everything and started nothing.

`python process_runs.py FOLDER SET...` starts these sets in turn, and prints the exit codes of each.
Each process has a folder for what it prints. The sets "numbers P" write the numbers of runs, which
do not depend on the number of processes P that have four devices together.
"""

import contextlib
import csv
import json
import os
import signal
import socket
import sys
from pathlib import Path

import jax
import matplotlib.pyplot  # noqa: F401
import numpy as np
from helpers import Case, small_network
from jax.sharding import PartitionSpec

import fedjax_algos as fa
from fedjax_algos import asynchrony
from fedjax_algos.cli import main, processes
from fedjax_algos.data.stored.stored_data import source_of
from fedjax_algos.participation import Cohorts
from fedjax_algos.runs.batched.sweeps import sweep
from fedjax_algos.runs.saving.results_folder import ResultsFolder

DEVICES = 4
ROUNDS = {"cohort_size": 3, "eval_every": 1, "seed": 3}
TEST = {"x": np.ones((5, 3), np.float32), "y": np.ones(5, np.float32)}
SMALL = f"--model linear --clients 8 --local-steps 2 --devices {DEVICES} --seeds 2"
IN_ROUNDS = f"{SMALL} --cohort 4 --rounds 2 --eval-every 1"
GRID = "--grid client_learning_rate=0.1,0.3"
COMMANDS = {
    "compare": f"compare fedavg {IN_ROUNDS} --checkpoint-every 0",
    "tune": f"tune scaffold {IN_ROUNDS} {GRID}",
    "tune on the clock": f"tune fedcompass {SMALL} {GRID} --seconds 9 --evaluations 3",
}
RUN = "run scaffold --model linear --clients 8 --cohort 4 --local-steps 2 --eval-every 1"
RUN += " --rounds 4 --checkpoint-every 0 --out {}"


class Ended(Exception):
    """Stands for the end of a process."""


class Numbers(dict):
    """The numbers of runs, by name."""

    def add(self, name, rows, params=()):
        """Adds those of rows, but for the wall time, and of params."""
        texts = "wall_seconds", "method"
        values = [float(v) for row in rows for n, v in row.items() if n not in texts and v != ""]
        leaves = map(np.ravel, jax.tree.leaves(jax.device_get(params)))
        self[name] = np.concatenate([np.array(values, float), *leaves])


def write_numbers(number, index, address, folder):
    """Of all kinds of runs."""
    jax.config.update("jax_num_cpu_devices", DEVICES // number)
    if number > 1:
        jax.distributed.initialize(f"localhost:{address}", number, index)
    toy, numbers = small_network(), Numbers()
    run_in_rounds(numbers, toy, folder)
    run_a_sweep(numbers, toy, folder)
    run_on_the_clock(numbers, toy, folder)
    for name in COMMANDS:
        run_command(numbers, name, folder)
    np.savez(folder / str(index) / "numbers.npz", **numbers)


def algorithm_of(toy, name):
    return Case(name, {}).build(toy.problem, fa.Local(3, 0.1, 2))


def run_in_rounds(numbers, toy, folder):
    """With examples and rows of clients in all places, cut in two by a checkpoint, by hand."""
    places = {"devices": {}, "sharded": {"examples": "sharded"}}
    kept = {"host": "host", "disk": fa.RowsOnDisk(folder / "rows")}
    places |= {place: {"client_state": value} for place, value in kept.items()}
    if jax.process_count() < DEVICES:  # whose devices can be divided or paired
        places["two devices"] = {"devices": 2}
        halves = {"hidden/w": PartitionSpec(None, "model"), "out": PartitionSpec("model")}
        places["two for a client"] = {"devices_per_client": 2, "model_sharding": halves}

    def run(kind, data=toy.data, rounds=4, **options):
        state, history = fa.simulate(own, data, rounds=rounds, test=TEST, **ROUNDS, **options)
        numbers.add(f"rounds, {kind}", history, state.server.params)

    for place, options in places.items():
        own = fa.make_engine(algorithm_of(toy, "scaffold"), **{"devices": DEVICES} | options)
        run(place)
        if place in ("devices", "host", "disk", "two for a client"):
            saved = {"checkpoints": fa.Checkpoints(folder / place, every=0)}
            run(f"{place} begun", rounds=2, **saved)
            run(f"{place} resumed", **saved)
        if place == "devices":
            counts, examples = toy.data.counts(), jax.device_get(toy.data.examples)
            rows = np.split(np.asarray(toy.data.indices), np.cumsum(counts)[:-1])
            run("stored", fa.data.StoredData(source_of(examples, fa.Partition.of(rows), [*"abcd"])))
            run_by_hand(numbers, own, toy.data)


def run_by_hand(numbers, own, data):
    counts = data.counts()
    population = fa.Population(len(counts), 3, int(counts.sum()))
    state, placed = own.init(3, population), own.put_data(data)
    cohorts = Cohorts(counts, own.algorithm.local, cohort_size=3, seed=3)
    for _ in range(2):
        one = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
        state, _ = own.round(state, placed, one)
    numbers.add("by hand", [], state.server.params)
    state = own.init(3, population, clients=fa.client_states(own, state))
    numbers.add("given rows", [], fa.client_states(own, state))


def run_a_sweep(numbers, toy, folder):
    """Six runs, of which one or more devices compute two."""
    rates = {"client_learning_rate": [0.05, 0.1, 0.2]}
    options = {"cohort_size": 3, "eval_every": 1, "test": TEST, "devices": DEVICES, "grid": rates}
    how = "scaffold", toy.problem, algorithm_of(toy, "scaffold").local, toy.data
    result = sweep(*how, seeds=[0, 7], rounds=3, checkpoints=folder / "sweep", **options)
    numbers.add("sweep", result.rows)


def run_on_the_clock(numbers, toy, folder):
    """Whole, and cut in two by a checkpoint, with fewer devices then, if processes have several."""
    algorithm = algorithm_of(toy, "fedcompass")
    how = toy.data, asynchrony.compass(min_steps=2, max_steps=8), asynchrony.simulated()
    options = {"evaluations": 3, "test": TEST, "seconds": 4.0, "seed": 1}
    saved = {"checkpoints": fa.Checkpoints(folder / "clock", every=0)}
    fewer = 2 if jax.process_count() < DEVICES else DEVICES
    first, other = (fa.make_executor(algorithm, devices=number) for number in (DEVICES, fewer))
    rows = []

    def end(row):
        rows.append(row)
        if len(rows) == 3:
            raise Ended

    results = {"clock": fa.simulate_async(first, *how, **options)}
    with contextlib.suppress(Ended):
        fa.simulate_async(first, *how, **options, **saved, on_evaluation=end)
    results["clock resumed"] = fa.simulate_async(other, *how, **options, **saved)
    for name, result in results.items():
        numbers.add(name, result.rows, result.state.server.params)


def run_command(numbers, name, folder):
    out = folder / name.replace(" ", "-")
    main([*COMMANDS[name].split(), "--out", str(out)])
    if name == "compare":
        with (out / "metrics.csv").open(newline="") as file:
            numbers.add(name, list(csv.DictReader(file)))
    else:
        values = json.loads((out / "scores.json").read_text())
        del values["sha256"]
        numbers.add(name, [values])


def killed(number, index, address, folder):
    """A run of which process 1 is killed, after its first checkpoint."""
    count, add_row = [0], ResultsFolder.add_row

    def counted(*arguments):
        count[0] += 1
        if count[0] == 3 and index:
            os.kill(os.getpid(), signal.SIGKILL)
        add_row(*arguments)

    ResultsFolder.add_row = counted
    command(RUN, number, index, address, folder)


def differing(number, index, address, folder):
    """Process 1 is given other seeds."""
    seeds = " --seeds 2" * index
    command(f"{RUN} --resume{seeds}", number, index, address, folder)


def missing(number, index, address, folder):
    """The only one of three tasks of Slurm that starts."""
    jobs = {"JOB_ID": address, "PROCID": index, "LOCALID": index, "NTASKS": 3}
    jobs |= {"STEP_NODELIST": "localhost", "STEP_NUM_TASKS": 3}
    os.environ |= {f"SLURM_{name}": str(value) for name, value in jobs.items()}
    processes.START = 2
    main(RUN.format(folder).split())


def command(line, number, index, address, folder):
    place = f"--devices 2 --coordinator localhost:{address} --processes {number} --process {index}"
    main(f"{line.format(folder.parent / 'out')} {place}".split())


def forked(function, number, folder):
    """The exit codes of processes that call a function with their place and the folder."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = probe.getsockname()[1]
    started = []
    for index in range(number):
        if process := os.fork():
            started.append(process)
            continue
        own = folder / str(index)
        own.mkdir(parents=True)
        for stream, name in (1, "out"), (2, "err"):
            os.dup2(os.open(own / name, os.O_WRONLY | os.O_CREAT), stream)
        function(number, index, address, folder)
        sys.exit()
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]


SETS = {f"numbers {number}": (write_numbers, number) for number in (1, 2, 4)}
SETS |= {"killed": (killed, 2), "differing": (differing, 2), "missing": (missing, 1)}

if __name__ == "__main__":
    where, *kinds = sys.argv[1:]
    for kind in kinds:
        print(kind, *forked(*SETS[kind], Path(where, kind)), sep=",", flush=True)
