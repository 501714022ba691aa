"""Compares rounds on an accelerator with the same rounds on the CPU of the same process.

COMMAND   python benchmarks/gpu_equals_cpu.py [--x64] [--only NAME ...]
EXPECTED  a line for each case: the largest difference of the params after three rounds, relative to
          their largest entry, at most 1e-4 in float32 and 1e-10 with --x64, and that a repeated run
          has the same bits; the last line is OK or names the cases that differ
TIME      90 seconds on a GPU, most of which compile

Matrix products have the highest precision. On a machine without an accelerator both sides are the
CPU, which shows that the script works.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import buffered, simulated
from fedjax_algos.models import models
from fedjax_algos.wrappers import wrap

CASES = {  # algorithm, wrappers, layout
    "fedavg, vmapped": ("fedavg", "", "vmapped"),
    "fedavg, sequential": ("fedavg", "", "sequential"),
    "fedavg, chunks of 2": ("fedavg", "", "2"),
    "scaffold": ("scaffold", "", "vmapped"),
    "fedgbo": ("fedgbo", "", "vmapped"),
    "fedhbm": ("fedhbm", "", "vmapped"),
    "fedlga": ("fedlga", "", "vmapped"),
    "top-k with error feedback": ("fedavg", "topk:fraction=0.1,feedback=ef", "vmapped"),
    "quantised": ("fedavg", "qsgd:levels=127", "vmapped"),
    "mean of the server": ("fedavg", "mean", "vmapped"),
}
CLOCK = "fedbuff on the virtual clock"
OPTIONS = {"fedgbo": {"optimizer": "adam", "beta": 0.9}, "fedhbm": {"beta": 0.9}}
CLIENTS, EXAMPLES, SHAPE = 8, 40, (12, 12, 1)
Run = Callable[[], fa.FederatedState]
LOCAL = fa.Local(batch_size=10, learning_rate=0.05, steps=4)


def federated() -> fa.FederatedData:
    """Random images of equal clients."""
    rng, total = np.random.default_rng(0), CLIENTS * EXAMPLES
    examples = {
        "x": rng.random((total, *SHAPE)),
        "y": rng.integers(0, 10, total, dtype=np.int32),
    }
    return fa.federate(examples, fa.Partition.of(np.split(np.arange(total), CLIENTS)))


def in_rounds(name: str, wrappers: str, layout: str) -> Run:
    """The params after three rounds."""
    problem = models.make("cnn_fedgbo", SHAPE, 10)
    algorithm = wrap(algorithms[name](problem, LOCAL, **OPTIONS.get(name, {})), wrappers)
    engine = fa.make_engine(algorithm, layout)
    return lambda: fa.simulate(engine, federated(), cohort_size=4, rounds=3)[0]


def on_the_clock() -> Run:
    """The params after some server steps."""
    problem = models.make("mlp:hidden=20", SHAPE, 10)
    executor = fa.make_executor(algorithms["fedbuff"](problem, LOCAL), layout="vmapped")
    how = buffered(size=3, steps=4), simulated()
    return lambda: fa.simulate_async(executor, federated(), *how, seconds=3.0).state


def largest_difference(one: Any, other: Any) -> float:
    """The largest difference of two trees, relative to the largest entry."""
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    scale = max(np.abs(b).max() for _, b in pairs)
    return float(max(np.abs(a - b).max() for a, b in pairs) / scale)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--x64", action="store_true", help="in float64")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the cases' names")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", given.x64)
    jax.config.update("jax_default_matmul_precision", "highest")
    limit, wrong = 1e-10 if given.x64 else 1e-4, []
    makers: dict[str, Callable[[], Run]] = {CLOCK: on_the_clock}
    makers |= {name: lambda case=case: in_rounds(*case) for name, case in CASES.items()}
    for name, make in makers.items():
        if not any(part in name for part in given.only):
            continue
        run = make()
        here, again = (jax.device_get(run().server.params) for _ in range(2))
        with jax.default_device(jax.devices("cpu")[0]):
            there = jax.device_get(run().server.params)
        difference, same = largest_difference(here, there), largest_difference(here, again) == 0
        repeated = "the same bits again" if same else "OTHER BITS when repeated"
        print(f"{name:<30} {difference:.1e}  {repeated}", flush=True)
        if difference > limit or not same:
            wrong.append(name)
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}: {', '.join(wrong) or 'OK'}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
