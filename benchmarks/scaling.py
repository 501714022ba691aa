"""The cost of a client as cohorts, populations and processes grow, and the time to a first round.

COMMAND   python benchmarks/scaling.py [cohort] [population] [processes] [first]
          python benchmarks/scaling.py population --repeats 9 --json population.json
EXPECTED  cohorts of 100 to 10,000: seconds per client within 10%, peak memory up to 1.5 times;
          populations of 1e3 to 1e6: seconds per round within 10%, the largest built in under 60 s;
          two processes of one core 1.7 times as fast as one; the first round of `compare` in less
          than 15 s
TIME      about 12 minutes on two CPU cores

Every point is a process of its own. The points of a part run in turn, `REPEATS` times, and the
medians of the ratios to the part's first point in the same repetition are printed. A round of the
population part takes a few milliseconds, so a sample is the mean over one second of rounds. The
points of this part are prepared together and sampled in turn, so that neighbouring samples are
seconds apart.
"""

import argparse
import itertools
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

REPEATS = {"cohort": 3, "population": 3, "processes": 3, "first": 3}
# of the population part: seconds of a sample, samples of a process, and rounds in one call (a
# multiple of the 16 cohorts that are drawn at a time)
SAMPLE, TURNS, WINDOW = 1.0, 7, 64
PARTS = {
    "cohort": [100, 1_000, 10_000],
    "population": [1_000, 10_000, 100_000, 1_000_000],
    "processes": [1, 2],
}


def measure(part, point, rank=0, port=0):
    """Measures one point and prints a line of JSON."""
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
    from fedjax_algos.participation import Cohorts

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
    data = engine.put_data(data)
    cohorts = Cohorts(data.counts(), local, cohort_size=cohort_size, seed=0)
    state = engine.init(0, fa.Population(clients, cohort_size, total))

    def sample():
        """Seconds of a round, including the draw of its cohort."""
        nonlocal state
        rounds, start = 0, time.perf_counter()
        if part != "population":
            dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
            state, _ = jax.block_until_ready(engine.round(state, data, dispatches))
            return time.perf_counter() - start
        while time.perf_counter() - start < SAMPLE:
            state, _ = jax.block_until_ready(engine.rounds(state, data, cohorts.dispatches(WINDOW)))
            rounds += WINDOW
        return (time.perf_counter() - start) / rounds

    sample()  # compiles
    number = {"cohort": min(max(6_000 // point, 2), 60), "population": 1, "processes": 4}[part]
    for _ in itertools.chain([""], sys.stdin):  # once, and again for each line of input
        seconds = float(np.median([sample() for _ in range(number)]))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        line = {"seconds": seconds, "built": built, "peak": peak, "cohort": cohort_size}
        print(json.dumps(line), flush=True)


def start(part, point, stdin):
    """Starts the processes of a point."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    number = point if part == "processes" else 1
    script = [sys.executable, __file__, "--measure", part, str(point)]
    return [
        subprocess.Popen(
            [*script, str(rank), str(port)], stdin=stdin, stdout=subprocess.PIPE, text=True
        )
        for rank in range(number)
    ]


def run(part, point):
    """Measures a point in processes of its own; returns the line of the first one."""
    processes = start(part, point, subprocess.DEVNULL)
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{part} {point} failed")
    return json.loads(next(line for line in outputs[0].splitlines() if line.startswith("{")))


def take_turns(part, points):
    """The lines of points that are prepared together, `TURNS` of each."""

    def line_of(point):
        line = processes[point].stdout.readline()
        if not line:
            raise SystemExit(f"{part} {point} failed")
        return json.loads(line)

    processes, lines = {}, {point: [] for point in points}
    for point in points:
        (processes[point],) = start(part, point, subprocess.PIPE)
        line_of(point)  # the point is built and warm before the next one starts
    for _ in range(TURNS):
        for point, process in processes.items():
            print(file=process.stdin, flush=True)
            lines[point].append(line_of(point))
    for process in processes.values():
        process.communicate()
    return lines


def summarize(point, rows, base):
    """The medians of a point, and its ratios to the first point of the part."""
    cost, first = ([row["seconds"] / row["cohort"] for row in each] for each in (rows, base))
    memory, least = (float(np.median([row["peak"] for row in each])) for each in (rows, base))
    return {
        "point": point,
        "seconds": float(np.median([row["seconds"] for row in rows])),
        "ratio": float(np.median(np.divide(cost, first))),
        "built": float(np.median([row["built"] for row in rows])),
        "memory": memory,
        "memory_ratio": memory / least,
        "runs": rows,
    }


def show(part, summary):
    comparison = f"{summary['ratio']:.3f} of the first point's time per client"
    if part == "processes":
        comparison = f"{1 / summary['ratio']:.2f} times as fast"
    print(
        f"{part} {summary['point']:>9,}: {summary['seconds']:.4f} s a round, {comparison}, "
        f"built in {summary['built']:.1f} s, peak {summary['memory']:,.0f} MB "
        f"({summary['memory_ratio']:.3f})",
        flush=True,
    )


def first_round():
    """Seconds from the start of `compare` on the digits to the end of its first evaluated round."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedjax_algos", "compare", "--eval-every", "1"]
        command += ["--rounds", "1", "--seeds", "1", "--out", str(Path(folder) / "out")]
        start = time.perf_counter()
        subprocess.run([*command, "fedavg"], check=True, capture_output=True)
        seconds = time.perf_counter() - start
    print(f"first round of compare: {seconds:.1f} s, everything included", flush=True)
    return seconds


def main():
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], *map(int, sys.argv[3:]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(REPEATS)}; all")
    parser.add_argument("--repeats", type=int, help=f"of each part: {REPEATS}")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(REPEATS):
        parser.error(f"unknown parts {', '.join(unknown)}; choose of {', '.join(REPEATS)}")
    parts, cores = given.parts or list(REPEATS), len(os.sched_getaffinity(0))
    if "processes" in parts and cores < max(PARTS["processes"]):
        parser.error(f"processes needs a core each and may use {cores}; choose the other parts")
    results = {}
    for part in parts:
        repeats = given.repeats or REPEATS[part]
        if part == "first":
            results[part] = [first_round() for _ in range(repeats)]
            continue
        rows = {point: [] for point in PARTS[part]}
        for _ in range(repeats):
            if part == "population":
                taken = take_turns(part, rows)
            else:
                taken = {point: [run(part, point)] for point in rows}
            for point, lines in taken.items():
                rows[point] += lines
        base = rows[PARTS[part][0]]
        results[part] = [summarize(point, lines, base) for point, lines in rows.items()]
        for summary in results[part]:
            show(part, summary)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
