"""A sweep of 16 settings against 16 processes, and against 16 runs one after another in one.

COMMAND   python benchmarks/sweep.py [--repeats N] [--json FILE]
EXPECTED  seconds of each, two ratios of medians, and the largest difference of a test loss
TIME      about 4 minutes a repeat on two cores; 3 repeats
BAR       4 times faster than the processes, 1.5 times faster than one warm process

FedProx with four mu and four client rates, for one seed, with the defaults of `compare`, in the
sequential layout. A CPU has a device for each core. The sweep divides its runs over them; the other
runs divide cohorts, or take one device if that was faster in the warm process. Processes are timed
from outside, including imports, one at a time. A warm process has imported everything, loaded the
data and run another algorithm; the time to compile the 16 settings counts.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

GRID = {"mu": [0.001, 0.01, 0.1, 1.0], "client_learning_rate": [0.1, 0.18, 0.32, 0.56]}
SPECS = [
    f"fedprox:mu={mu},client_learning_rate={rate}"
    for mu in GRID["mu"]
    for rate in GRID["client_learning_rate"]
]


def child(what: str, warm: bool, devices: int) -> None:
    """Runs the sweep, or the named methods, here; prints seconds and last test losses."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)

    from fedjax_algos.runs import comparison
    from fedjax_algos.runs.studies.experiment import prepare
    from fedjax_algos.runs.studies.method import methods_of
    from fedjax_algos.runs.studies.settings import Settings
    from fedjax_algos.runs.studies.sweeps import prepare_sweep, run_sweep

    settings = Settings(layout="sequential", devices=devices)
    dataset = settings.load()

    def run(*specs):
        return comparison.run(prepare(settings, methods_of(specs, settings), dataset))

    if warm:
        run("fedavg")
    start = time.perf_counter()
    if what == "sweep":
        rows = run_sweep(prepare_sweep(settings, "fedprox", GRID, dataset)).rows
    else:
        rows = run(*what.split())
    seconds = time.perf_counter() - start
    losses = [row["test_loss"] for row in rows if row["round"] == settings.rounds]
    print(json.dumps({"seconds": seconds, "losses": losses}))


def measure(what: str, warm: bool, devices: int) -> tuple[float, list[float]]:
    """Seconds (of the whole process, unless it is warm) and losses."""
    start = time.perf_counter()
    command = [sys.executable, __file__, "child", what, str(warm), str(devices)]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result["seconds"] if warm else time.perf_counter() - start, result["losses"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    given = parser.parse_args()
    from fedjax_algos.engine.placed.devices import usable_cores

    cores, taken = usable_cores(), {}

    def note(name, seconds):
        taken.setdefault(name, []).append(seconds)
        print(f"{name}: {seconds:.1f} s", flush=True)

    for _ in range(given.repeats):
        note("a process with the sweep", measure("sweep", False, cores)[0])
        seconds, losses = measure("sweep", True, cores)
        note("warm sweep", seconds)
        serial = {count: measure(" ".join(SPECS), True, count) for count in sorted({1, cores})}
        best = min(serial, key=lambda count: serial[count][0])
        note(f"warm, one after another, best on {best} of {cores} devices", serial[best][0])
        taken.setdefault("serial", []).append(serial[best][0])
        note("16 processes", sum(measure(spec, False, best)[0] for spec in SPECS))
    median = {name: statistics.median(seconds) for name, seconds in taken.items()}
    cold = median["16 processes"] / median["a process with the sweep"]
    warm = median["serial"] / median["warm sweep"]
    print(f"a sweep is {cold:.1f} times faster than 16 processes, and warm {warm:.1f} times")
    difference = max(abs(a - b) / b for a, b in zip(losses, serial[1][1], strict=True))
    print(f"largest relative difference of a test loss from one device: {difference:.1e}")
    if given.json:
        results = {"cold": cold, "warm": warm, "difference": difference, "seconds": taken}
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], sys.argv[3] == "True", int(sys.argv[4]))
    else:
        main()
