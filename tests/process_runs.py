"""Sets of processes, forked from one that has imported everything and started nothing.

`python process_runs.py FOLDER SET...` starts these sets in turn, and prints the exit codes of each.
Each process has a folder for what it prints. The sets "numbers P" write the numbers of all kinds of
runs, which do not depend on the number of processes P that have four devices together; "some P"
write those of a few.
"""

import contextlib
import csv
import functools
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import jax
import matplotlib.pyplot  # noqa: F401
import numpy as np
from engine_helpers import in_files
from helpers import Case, one_round, small_network
from jax.sharding import PartitionSpec

import fedjax_algos as fa
from fedjax_algos import asynchrony
from fedjax_algos.cli import main, processes
from fedjax_algos.participation import Cohorts
from fedjax_algos.runs.studies.results_folder import ResultsFolder
from fedjax_algos.runs.studies.sweeps import sweep

DEVICES = 4
ROUNDS = {"cohort_size": 3, "eval_every": 1, "seed": 3}
TEST = {"x": np.ones((5, 3), np.float32), "y": np.ones(5, np.float32)}
SMALL = "--model linear --clients 8 --cohort 4 --local-steps 2 --eval-every 1"
IN_ROUNDS = f"{SMALL} --seeds 2 --rounds 2 --devices {DEVICES}"
COMPARE = f"compare fedavg {IN_ROUNDS} --checkpoint-every 0 --out"
TUNE = f"tune scaffold {IN_ROUNDS} --grid client_learning_rate=0.1,0.3 --out"
RUN = f"run scaffold {SMALL} --rounds 4 --checkpoint-every 0 --out {{}}"
LOCAL = fa.Local(3, 0.1, 2)
toy = functools.cache(small_network)  # not before a process is forked


class Numbers(dict):
    """The numbers of runs, by name."""

    def add(self, name, rows, params=()):
        """Adds those of rows, but for the wall time, and of params."""
        texts = "wall_seconds", "method", "sha256"
        values = [float(v) for row in rows for n, v in row.items() if n not in texts and v != ""]
        self[name] = np.concatenate([np.ravel(leaf) for leaf in (values, *jax.tree.leaves(params))])


def writing(*kinds):
    """What writes the numbers of these kinds of runs, with their place among the processes."""

    def write_numbers(number, index, address, folder):
        jax.config.update("jax_num_cpu_devices", DEVICES // number)
        if number > 1:
            jax.distributed.initialize(f"localhost:{address}", number, index)
        numbers = Numbers()
        for kind in kinds:
            kind(numbers, folder)
        np.savez(folder / str(index) / "numbers.npz", **numbers)

    return write_numbers


def run_rounds(numbers, kind, folder=None, data=None, **options):
    """A run, and with a folder the same one cut in two by a checkpoint; the engine."""
    algorithm = Case("scaffold", {}).build(toy().problem, LOCAL)
    own, data = fa.make_engine(algorithm, **{"devices": DEVICES} | options), data or toy().data
    for part, rounds in [("", 4)] + [(" begun", 2), (" resumed", 4)] * bool(folder):
        saved = {"checkpoints": fa.Checkpoints(folder / kind, every=0)} if part else {}
        state, rows = fa.simulate(own, data, rounds=rounds, test=TEST, **ROUNDS, **saved)
        numbers.add(f"rounds, {kind}{part}", rows, state.server.params)
    return own


def run_on_devices(numbers, folder):
    run_by_hand(numbers, run_rounds(numbers, "devices", folder), toy().data)


def run_elsewhere(numbers, folder):
    """With examples and rows of clients in all places."""
    run_rounds(numbers, "sharded", examples="sharded")
    run_rounds(numbers, "host", folder, client_state="host")
    run_rounds(numbers, "disk", folder, client_state=fa.RowsOnDisk(folder / "rows"))
    run_rounds(numbers, "stored", data=in_files(toy().data))
    if jax.process_count() < DEVICES:  # whose devices can be divided or paired
        run_rounds(numbers, "two devices", devices=2)
        halves = {"hidden/w": PartitionSpec(None, "model"), "out": PartitionSpec("model")}
        pairs = {"devices_per_client": 2, "model_sharding": halves}
        run_rounds(numbers, "two for a client", folder, **pairs)


def run_by_hand(numbers, own, data):
    counts = data.counts()
    population = fa.Population(len(counts), 3, int(counts.sum()))
    state, placed = own.init(3, population), own.put_data(data)
    cohorts = Cohorts(counts, LOCAL, cohort_size=3, seed=3)
    for _ in range(2):
        state, _ = own.round(state, placed, one_round(cohorts.dispatches(1), 0))
    numbers.add("by hand", [], state.server.params)
    again = own.init(3, population, clients=fa.client_states(own, state))
    numbers.add("given rows", [], fa.client_states(own, again))


def run_a_sweep(numbers, folder):
    """Six runs, of which one or more devices compute two."""
    rates = {"client_learning_rate": [0.05, 0.1, 0.2]}
    options = {"cohort_size": 3, "eval_every": 1, "test": TEST, "devices": DEVICES, "grid": rates}
    how = "scaffold", toy().problem, LOCAL, toy().data
    result = sweep(*how, seeds=[0, 7], rounds=3, checkpoints=folder / "sweep", **options)
    numbers.add("sweep", result.rows)


def run_on_the_clock(numbers, folder):
    """Whole, and cut in two by a checkpoint, with fewer devices then, if processes have several."""
    algorithm = Case("fedcompass", {}).build(toy().problem, LOCAL)
    how = toy().data, asynchrony.compass(min_steps=2, max_steps=8), asynchrony.simulated()
    options = {"evaluations": 3, "test": TEST, "seconds": 4.0, "seed": 1}
    saved = {"checkpoints": fa.Checkpoints(folder / "clock", every=0)}
    fewer = 2 if jax.process_count() < DEVICES else DEVICES
    first, other = (fa.make_executor(algorithm, devices=number) for number in (DEVICES, fewer))
    rows = []

    def end(row):
        rows.append(row)
        if len(rows) == 3:
            raise EOFError  # stands for the end of the process

    with contextlib.suppress(EOFError):
        fa.simulate_async(first, *how, **options, **saved, on_evaluation=end)
    for name, executor, more in (("clock", first, {}), ("clock resumed", other, saved)):
        result = fa.simulate_async(executor, *how, **options, **more)
        numbers.add(name, result.rows, result.state.server.params)


def run_commands(numbers, folder):
    main([*COMPARE.split(), str(folder / "compared")])
    with (folder / "compared" / "metrics.csv").open(newline="") as file:
        numbers.add("compare", list(csv.DictReader(file)))
    main([*TUNE.split(), str(folder / "tuned")])
    numbers.add("tune", [json.loads((folder / "tuned" / "scores.json").read_text())])


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
    command(f"{RUN} --resume{' --seeds 2' * index}", number, index, address, folder)


def uneven(number, index, address, folder):
    """Process 1 is told of one more, and has fewer devices."""
    command(RUN, number + index, index, address, folder, devices=6)


def waiting(number, index, address, folder):
    """Waits for process 1, until Ctrl-C."""
    if not (child := os.fork()):
        time.sleep(5)
        os.kill(os.getppid(), signal.SIGINT)
        os._exit(0)
    command(RUN, number + 1, index, address, folder)
    os.waitpid(child, 0)


def missing(number, index, address, folder):
    """The only one of three tasks of Slurm that starts."""
    jobs = {"JOB_ID": address, "PROCID": index, "LOCALID": index, "NTASKS": 3}
    jobs |= {"STEP_NODELIST": "localhost", "STEP_NUM_TASKS": 3}
    os.environ |= {f"SLURM_{name}": str(value) for name, value in jobs.items()}
    processes.START = 2
    main(RUN.format(folder).split())


def command(line, number, index, address, folder, devices=2):
    place = f"--coordinator localhost:{address} --processes {number} --process {index}"
    main(f"{line.format(folder.parent / 'out')} --devices {devices} {place}".split())


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


SOME = run_on_devices, run_a_sweep
EVERY = *SOME, run_elsewhere, run_on_the_clock, run_commands
SETS = {f"some {number}": (writing(*SOME), number) for number in (1, 2)}
SETS |= {f"numbers {number}": (writing(*EVERY), number) for number in (1, 2, 4)}
SETS |= {"killed": (killed, 2), "differing": (differing, 2), "uneven": (uneven, 2)}
SETS |= {"waiting": (waiting, 1), "missing": (missing, 1)}

if __name__ == "__main__":
    where, *names = sys.argv[1:]
    for name in names:
        print(name, *forked(*SETS[name], Path(where, name)), sep=",", flush=True)
