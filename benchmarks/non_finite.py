"""The cost of looking for updates that are not finite: rounds with and without, in turns.

COMMAND   python benchmarks/non_finite.py
EXPECTED  one line for each model: the median ratio of the times with "exclude" and with "keep"
TIME      about one minute on two CPU cores

Fifty clients with 20 examples each of 28 x 28 pixels, 10 local steps of 10 examples, one device.
Each turn is one call of five rounds; the first of each engine is not counted. SCAFFOLD's clients
keep state, so its rows are looked at too.
"""

import argparse
import time

import jax
import numpy as np

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.models import models
from fedjax_algos.participation import Cohorts

CLIENTS, EXAMPLES, ROUNDS = 50, 20, 5
LOCAL = fa.Local(batch_size=10, learning_rate=0.05, steps=10)
TASKS = {
    "fedavg, MLP": ("fedavg", "mlp:hidden=200"),
    "fedavg, CNN": ("fedavg", "cnn_fedgbo"),
    "scaffold, MLP": ("scaffold", "mlp:hidden=200"),
}


def data():
    rng = np.random.default_rng(0)
    shape = CLIENTS * EXAMPLES
    examples = {
        "x": rng.normal(size=(shape, 28, 28, 1)).astype(np.float32),
        "y": rng.integers(10, size=shape).astype(np.int32),
    }
    return fa.federate(examples, fa.Partition.of(np.split(np.arange(shape), CLIENTS)))


class Rounds:
    """Calls of five rounds, one after another."""

    def __init__(self, algorithm, store, non_finite):
        self.engine = fa.make_engine(algorithm, "sequential", non_finite=non_finite)
        self.store = store
        self.cohorts = Cohorts(store.counts(), LOCAL, cohort_size=CLIENTS, seed=0)
        population = fa.Population(CLIENTS, CLIENTS, CLIENTS * EXAMPLES)
        self.state = self.engine.init(0, population)

    def seconds(self):
        dispatches = self.cohorts.dispatches(ROUNDS)
        start = time.perf_counter()
        self.state, _ = self.engine.rounds(self.state, self.store, dispatches)
        jax.block_until_ready(self.state.server)
        return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=9)
    turns, store = parser.parse_args().turns, data()
    for name, (algorithm, model) in TASKS.items():
        problem = models.make(model, (28, 28, 1), 10)
        built = algorithms[algorithm](problem, LOCAL)
        both = [Rounds(built, store, kind) for kind in ("keep", "exclude")]
        times = np.array([[each.seconds() for each in both] for _ in range(turns + 1)])[1:]
        ratios = times[:, 1] / times[:, 0]
        keep, exclude = np.median(times, axis=0) / ROUNDS
        print(
            f"{name}: {exclude:.4g} s a round, {keep:.4g} s without; median ratio "
            f"{np.median(ratios):.3f}, from {ratios.min():.3f} to {ratios.max():.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
