"""Rounds of this checkout against those of another commit, window by window in turns.

COMMAND   python benchmarks/against.py COMMIT [--works linear mlp] [--windows 60]
          python benchmarks/against.py --wrapped: works with wrappers against those without, here
EXPECTED  a line for each work: the median of the ratios of two neighbouring windows, which is below
          1 if this checkout is faster, its 95% interval, and the ratio of the fastest windows
TIME      about ten minutes on two CPU cores

A process of each commit compiles the work of its own `peers/run_ours.py` and waits while the other
one computes, so that what else the machine does meets both alike. Who is first alternates. The
interval is the bootstrap's, of the median. The works: logistic regression of 50 and of 200 clients
with one local step each, the same with SCAFFOLD's client state, an MLP, the same with wrappers, and
a CNN.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]


class Work(NamedTuple):
    name: str  # in peers/work.py
    cohort: int
    window: int  # rounds of one call
    algorithm: str = "fedavg"  # with wrappers


WRAPPERS = "topk", "mean", "majority", "optimal_client_sampling", "gaussian:clip=0.3,noise=1"
WORKS = {
    "linear": Work("linear", 50, 10),
    "linear-200": Work("linear", 200, 5),
    "linear-scaffold": Work("linear", 50, 10, "scaffold"),
    "mlp": Work("mlp", 50, 2),
    **{f"mlp-{spec.partition(':')[0]}": Work("mlp", 50, 2, f"fedavg+{spec}") for spec in WRAPPERS},
    "cnn": Work("cnn", 10, 1),
}


def child(root: str, key: str) -> None:
    """Compiles a work of the checkout `root`; runs a window, and prints its time, for each line."""
    sys.path[:0] = [f"{root}/benchmarks/peers"]
    rounds = 1_000_000
    asked, out = WORKS[key], os.fdopen(os.dup(1), "w")
    options = {"work": asked.name, "cohort": asked.cohort, "rounds": rounds, "window": asked.window}
    sys.argv = ["run_ours.py", *(f"--{name}={value}" for name, value in options.items())]
    sys.argv.append(f"--devices={len(os.sched_getaffinity(0))}")
    import work

    class Clock:
        """Stands for the clock of `run_ours.py`: after each window it waits for a line."""

        def __init__(self):
            self.start = time.perf_counter()

        def lap(self, rounds=1):
            print(time.perf_counter() - self.start, file=out, flush=True)
            if not sys.stdin.readline():
                sys.exit()
            self.start = time.perf_counter()

    work.Clock = Clock
    import run_ours

    fa = run_ours.fa
    name, _, wrappers = asked.algorithm.partition("+")
    factory = fa.algorithms.algorithms[name]

    def wrapped(*arguments, **options):
        algorithm = factory(*arguments, **{"weighting": "uniform", **options})
        return fa.wrappers.wrap(algorithm, wrappers)

    fa.algorithms.fedavg = wrapped
    run_ours.main()


def compare(works: list[tuple[str, str]], windows: int) -> str:
    """A line of results; `works` are two checkouts, and a work of each."""
    processes, key = [], works[1][1]
    for root, key in works:
        command = [sys.executable, __file__, "child", root, key]
        environment = os.environ | {"PYTHONPATH": root}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env=environment, cwd=root, **pipes))
        processes[-1].stdout.readline()  # it has compiled
    times = []
    for number in range(windows + 1):
        taken = {}
        for index in (0, 1) if number % 2 else (1, 0):
            print(file=processes[index].stdin, flush=True)
            taken[index] = float(processes[index].stdout.readline())
        times.append((taken[0], taken[1]))
    for process in processes:
        process.kill()
    times = np.asarray(times[1:])
    ratios = times[:, 1] / times[:, 0]
    drawn = np.random.default_rng(0).choice(ratios, (2000, windows))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    fastest = times[:, 1].min() / times[:, 0].min()
    return (
        f"{key}: {np.median(ratios):.3f} of its time, from {low:.3f} to {high:.3f} "
        f"({windows} pairs; the fastest windows {fastest:.3f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("--wrapped", action="store_true", help="against the works without wrappers")
    parser.add_argument("--works", nargs="+", default=list(WORKS), choices=WORKS)
    parser.add_argument("--windows", type=int, default=60, help="pairs of windows of each work")
    given = parser.parse_args()
    if given.wrapped:
        for key in [key for key in given.works if "+" in WORKS[key].algorithm]:
            works = [(str(ROOT), WORKS[key].name), (str(ROOT), key)]
            print(compare(works, given.windows), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        other = f"{folder}/other"
        add = ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", other]
        subprocess.run([*add, given.commit], check=True)
        try:
            for key in given.works:
                print(compare([(other, key), (str(ROOT), key)], given.windows), flush=True)
        finally:
            remove = ["git", "-C", str(ROOT), "worktree", "remove", "--force", other]
            subprocess.run(remove, check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    else:
        main()
