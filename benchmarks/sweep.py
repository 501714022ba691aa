"""A sweep of 16 settings against 16 processes, and against 16 runs one after another in one.

COMMAND   python benchmarks/sweep.py [REPEATS]
EXPECTED  seconds of each, two ratios of medians, and the largest difference of a test loss
TIME      about 3 minutes a repeat on two cores; 3 repeats
BAR       4 times faster than the processes, 1.5 times faster than one warm process

FedProx with four mu and four client rates, for one seed, with the defaults of `compare`. The sweep
has a CPU device for each core, all else has one device, which may use all cores. Processes are
timed from outside, imports included, one at a time. Warm ones have imported, loaded the data and
run another algorithm; what they compile for the 16 settings counts.
"""

import json
import os
import statistics
import subprocess
import sys
import time

GRID = {"mu": [0.001, 0.01, 0.1, 1.0], "client_learning_rate": [0.1, 0.18, 0.32, 0.56]}
SETTINGS = [(mu, rate) for mu in GRID["mu"] for rate in GRID["client_learning_rate"]]
SERIAL, SWEEP = "warm, one after another", "warm sweep"


def child(kind: str, number: int) -> None:
    """Runs something in this process, and prints its seconds and the last test losses."""
    import jax

    if kind.endswith("sweep"):
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))

    from fedjax_algos import comparison
    from fedjax_algos.settings import Settings, methods_of
    from fedjax_algos.sweep import prepare_sweep, run_sweep

    settings = Settings()

    def run(*specs):
        return comparison.run(comparison.prepare(settings, methods_of(specs, settings), dataset))

    dataset = settings.load()
    specs = [f"fedprox:mu={mu},client_learning_rate={rate}" for mu, rate in SETTINGS]
    if kind.startswith("warm"):
        run("fedavg")
    start = time.perf_counter()
    if kind.endswith("sweep"):
        prepared = prepare_sweep(settings, "fedprox", GRID, dataset)
        rows, _ = run_sweep(prepared, devices=jax.device_count())
    elif kind == SERIAL:
        rows = run(*specs)
    else:
        rows = run(specs[number])
    seconds = time.perf_counter() - start
    losses = [row["test_loss"] for row in rows if row["round"] == settings.rounds]
    print(json.dumps({"seconds": seconds, "losses": losses}))


def measure(kind: str, number: int = 0) -> tuple[float, float, list[float]]:
    """Seconds of a whole process, those that it measured itself, and its losses."""
    start = time.perf_counter()
    command = [sys.executable, __file__, "child", kind, str(number)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return time.perf_counter() - start, told["seconds"], told["losses"]


def main(repeats: int) -> None:
    taken: dict[str, list[float]] = {}

    def note(name, seconds):
        taken.setdefault(name, []).append(seconds)
        print(f"{name}: {seconds:.1f} s", flush=True)

    for _ in range(repeats):
        seconds, _, losses = measure("sweep")
        note("a process with the sweep", seconds)
        note("16 processes", sum(measure("one", number)[0] for number in range(len(SETTINGS))))
        note(SWEEP, measure(SWEEP)[1])
        _, seconds, expected = measure(SERIAL)
        note(SERIAL, seconds)
    median = {name: statistics.median(seconds) for name, seconds in taken.items()}
    cold = median["16 processes"] / median["a process with the sweep"]
    warm = median[SERIAL] / median[SWEEP]
    print(f"a sweep is {cold:.1f} times faster than 16 processes, and warm {warm:.1f} times")
    difference = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
    print(f"largest relative difference of a test loss: {difference:.1e}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], int(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
