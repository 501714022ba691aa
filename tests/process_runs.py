"""Runs of every kind, whose numbers do not depend on the processes that four devices are of.

`python process_runs.py PORT PROCESSES PROCESS FOLDER NAME...` is one of several processes. It
writes the numbers of runs of these algorithms; a test computes them in a single process.
"""

import csv
import json
import sys
from pathlib import Path

import jax
import numpy as np

DEVICES = 4
ROUNDS = {"cohort_size": 3, "eval_every": 1, "seed": 3}
TEST = {"x": np.ones((5, 3), np.float32), "y": np.ones(5, np.float32)}
SMALL = f"--model linear --clients 8 --local-steps 2 --devices {DEVICES} --seeds 2"
IN_ROUNDS = f"{SMALL} --cohort 4 --rounds 2 --eval-every 1"
GRID = "--grid client_learning_rate=0.1,0.3"
COMMANDS = {
    "fedavg": f"compare fedavg scaffold {IN_ROUNDS} --checkpoint-every 0",
    "scaffold": f"tune fedavg scaffold {IN_ROUNDS} {GRID}",
    "fedcompass": f"tune fedcompass {SMALL} {GRID} --seconds 9 --evaluations 3",
}


class Numbers(dict):
    """The numbers of runs, by name."""

    def add(self, name, rows, params=()):
        """Adds those of rows, but for the wall time, and of params."""
        texts = "wall_seconds", "method"
        values = [float(v) for row in rows for n, v in row.items() if n not in texts and v != ""]
        leaves = map(np.ravel, jax.tree.leaves(jax.device_get(params)))
        self[name] = np.concatenate([np.array(values, float), *leaves])


def numbers_of(folder, names):
    """The numbers of all runs of some algorithms; the folder is the same for all processes."""
    from helpers import small_network

    toy, numbers = small_network(), Numbers()
    for name in names:
        if name == "fedcompass":
            run_on_the_clock(numbers, toy, name, folder)
        else:
            run_in_rounds(numbers, toy, name, folder)
            run_a_sweep(numbers, toy, name, folder)
        run_command(numbers, name, folder)
    return numbers


def algorithm_of(toy, name):
    from helpers import Case

    import fedjax_algos as fa

    return Case(name, {}).build(toy.problem, fa.Local(3, 0.1, 2))


def run_in_rounds(numbers, toy, name, folder):
    """With examples and rows of clients in all places, cut in two by a checkpoint, by hand."""
    import fedjax_algos as fa
    from fedjax_algos.data.stored.stored_data import source_of
    from fedjax_algos.participation import Cohorts

    counts, examples = toy.data.counts(), jax.device_get(toy.data.examples)
    rows = np.split(np.asarray(toy.data.indices), np.cumsum(counts)[:-1])
    stored = fa.data.StoredData(source_of(examples, fa.Partition.of(rows), list("abcd")))
    places = {"devices": {}}
    if name == "scaffold":
        kept = {"host": "host", "disk": fa.RowsOnDisk(folder / "rows")}
        places |= {place: {"client_state": value} for place, value in kept.items()}
        places["sharded"] = {"examples": "sharded"}
        if jax.process_count() <= 2:
            places["two devices"] = {"devices": 2}

    def run(kind, data=toy.data, rounds=4, **options):
        state, history = fa.simulate(own, data, rounds=rounds, test=TEST, **ROUNDS, **options)
        numbers.add(f"{name} {kind}", history, state.server.params)

    for place, options in places.items():
        own = fa.make_engine(algorithm_of(toy, name), **{"devices": DEVICES} | options)
        run(place)
        if place in ("devices", "host", "disk"):
            saved = {"checkpoints": fa.Checkpoints(folder / f"{name}-{place}", every=0)}
            run(f"{place} begun", rounds=2, **saved)
            run(f"{place} resumed", **saved)
        if place == "devices":
            run("stored", stored)
    own = fa.make_engine(algorithm_of(toy, name), devices=DEVICES)
    population = fa.Population(len(counts), 3, int(counts.sum()))
    state, data = own.init(3, population), own.put_data(toy.data)
    cohorts = Cohorts(counts, own.algorithm.local, cohort_size=3, seed=3)
    for _ in range(2):
        one = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
        state, _ = own.round(state, data, one)
    numbers.add(f"{name} by hand", [], state.server.params)
    if name == "scaffold":
        state = own.init(3, population, clients=fa.client_states(own, state))
        numbers.add(f"{name} given rows", [], fa.client_states(own, state))


def run_a_sweep(numbers, toy, name, folder):
    """Six runs, of which one or more devices compute two."""
    from fedjax_algos.runs.batched.sweeps import sweep

    rates = {"client_learning_rate": [0.05, 0.1, 0.2]}
    options = {"cohort_size": 3, "eval_every": 1, "test": TEST, "devices": DEVICES, "grid": rates}
    how = name, toy.problem, algorithm_of(toy, name).local, toy.data
    result = sweep(*how, seeds=[0, 7], rounds=3, checkpoints=folder / f"sweep-{name}", **options)
    numbers.add(f"{name} sweep", result.rows)


def run_on_the_clock(numbers, toy, name, folder):
    import fedjax_algos as fa
    from fedjax_algos import asynchrony

    executor = fa.make_executor(algorithm_of(toy, name), devices=DEVICES)
    arguments = toy.data, asynchrony.compass(min_steps=2, max_steps=8), asynchrony.simulated()
    options = {"evaluations": 3, "test": TEST, "seconds": 4.0, "seed": 1}
    for checkpoints in (None, fa.Checkpoints(folder / "clock", every=0)):
        result = fa.simulate_async(executor, *arguments, **options, checkpoints=checkpoints)
        kind = "clock" if checkpoints is None else "clock saved"
        numbers.add(f"{name} {kind}", result.rows, result.state.server.params)


def run_command(numbers, name, folder):
    from fedjax_algos.cli import main

    main([*COMMANDS[name].split(), "--out", str(folder / f"of-{name}")])
    if (scores := folder / f"of-{name}" / "scores.json").exists():
        values = json.loads(scores.read_text())
        del values["sha256"]
        numbers.add(f"{name} tune", [values])
    else:
        with (folder / f"of-{name}" / "metrics.csv").open(newline="") as file:
            numbers.add(f"{name} compare", list(csv.DictReader(file)))


if __name__ == "__main__":
    port, processes, process, out, *names = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", DEVICES // int(processes))
    jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
    np.savez(Path(out, f"numbers-{process}.npz"), **numbers_of(Path(out), names))
