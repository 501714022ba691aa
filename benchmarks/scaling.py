"""What a client costs as cohorts, populations and processes grow, and how long a first round takes.

COMMAND   python benchmarks/scaling.py [cohort] [population] [processes] [first]
EXPECTED  cohorts of 100 to 10,000: seconds and peak of memory within 10% a client; populations of
          1e3 to 1e6: seconds a round within 10%, the largest built in under 60 s; two processes of
          one core 1.7 times as fast as one; the first round of `compare` after less than 15 s
TIME      about 8 minutes on two CPU cores

Every point is a process of its own. Points of a part run in turn, `REPEATS` times over; medians of
the ratios to the part's first point in the same repetition.
"""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

REPEATS = 3
PARTS = {
    "cohort": [100, 1_000, 10_000],
    "population": [1_000, 10_000, 100_000, 1_000_000],
    "processes": [1, 2],
}


def measure(part, point, rank=0, port=0):
    """One point: a line of JSON."""
    import jax

    cores = sorted(os.sched_getaffinity(0))
    if part == "processes":
        os.sched_setaffinity(0, {cores[rank]})
        if point > 1:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(f"localhost:{port}", num_processes=point, process_id=rank)
    elif part == "cohort":
        jax.config.update("jax_num_cpu_devices", len(cores))
    import fedjax_algos as fa
    from fedjax_algos.schedules import Synchronous

    start = time.perf_counter()
    rng = np.random.default_rng(0)
    clients, examples, shape = {
        "cohort": (10_000, 20, (784,)),
        "population": (point, 20, (32,)),
        "processes": (50, 200, (28, 28, 1)),
    }[part]
    total = clients * examples
    x = rng.random((total, *shape), np.float32) if part != "cohort" else None
    x = rng.integers(0, 256, (total, *shape), dtype=np.uint8) if x is None else x
    partition = fa.Partition(np.arange(total), np.arange(clients + 1) * examples)
    made = time.perf_counter()
    data = fa.federate({"x": x, "y": rng.integers(0, 62, total, np.int32)}, partition)
    del x
    jax.block_until_ready(data)
    built = time.perf_counter() - (start if part == "population" else made)
    problem = {
        "cohort": lambda: fa.models.mlp(shape, 62, hidden=200, layers=2),
        "population": lambda: fa.models.linear(shape, 62),
        "processes": lambda: fa.models.cnn_fedgbo(shape, 62),
    }[part]()
    cohort_size = {"cohort": point, "population": 100, "processes": 50}[part]
    local = fa.Local(batch_size=20, learning_rate=0.01, steps=1 if part == "population" else 10)
    devices = None if part == "population" else jax.devices()
    engine = fa.make_engine(fa.algorithms.fedavg(problem, local), "sequential", devices=devices)
    data = engine.place(data)
    rounds = {"cohort": max(6_000 // point, 2), "population": 200, "processes": 4}[part]
    schedule = Synchronous(data.counts(), local, cohort_size=cohort_size, seed=0)
    state = engine.init(0, fa.Population(clients, cohort_size, total))
    taken = []
    for index in range(min(rounds, 60) + 1):
        start = time.perf_counter()  # the draw of a cohort is part of its round
        visits = jax.tree.map(lambda leaf: leaf[0], schedule.visits(1))
        state, _ = jax.block_until_ready(engine.round(state, data, visits))
        if index:
            taken.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = float(np.median(taken))
    print(json.dumps({"seconds": seconds, "built": built, "peak": peak, "cohort": cohort_size}))


def run(part, point):
    """Measures a point in processes of its own; the first one's line."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    number = point if part == "processes" else 1
    script = [sys.executable, __file__, "--measure", part, str(point)]
    processes = [
        subprocess.Popen([*script, str(rank), str(port)], stdout=subprocess.PIPE, text=True)
        for rank in range(number)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{part} {point} failed")
    return json.loads(next(line for line in said[0].splitlines() if line.startswith("{")))


def show(part, points, rows):
    """Prints a part's table: medians, and ratios to its first point."""
    base = rows[points[0]]
    for point in points:
        each = rows[point]
        cost = [r["seconds"] / r["cohort"] for r in each]
        first = [r["seconds"] / r["cohort"] for r in base]
        ratio = np.median(np.divide(cost, first))
        memory = np.median([r["peak"] for r in each])
        told = f"{ratio:.3f} of the first a client"
        if part == "processes":
            told = f"{1 / ratio:.2f} times as fast"
        print(
            f"{part} {point:>9,}: {np.median([r['seconds'] for r in each]):.4f} s a round, {told}, "
            f"built in {np.median([r['built'] for r in each]):.1f} s, peak {memory:,.0f} MB "
            f"({memory / np.median([r['peak'] for r in base]):.3f})",
            flush=True,
        )


def first_round():
    """Seconds from the start of `compare` on the digits to the end of its first evaluated round."""
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "fedjax_algos", "compare", "--eval-every", "1"]
            command += ["--rounds", "1", "--seeds", "1", "--out", str(Path(folder) / "out")]
            start = time.perf_counter()
            environment = os.environ | {"XDG_CACHE_HOME": folder}  # no layout is remembered
            subprocess.run([*command, "fedavg"], check=True, capture_output=True, env=environment)
            print(f"first round of compare: {time.perf_counter() - start:.1f} s, all included")


def main():
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], *map(int, sys.argv[3:]))
        return
    chosen = sys.argv[1:] or [*PARTS, "first"]
    for part, points in PARTS.items():
        if part in chosen:
            rows = {point: [] for point in points}
            for _ in range(REPEATS):
                for point in points:
                    rows[point].append(run(part, point))
            show(part, points, rows)
    if "first" in chosen:
        first_round()


if __name__ == "__main__":
    main()
