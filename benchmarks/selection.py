"""The cost of choosing clients by values: rounds with a wrapper that does and without, in turns.

COMMAND   python benchmarks/selection.py
EXPECTED  a line for each form: the median ratio of the times of rounds with and without it, and the
          ratio that its operations give
TIME      about one minute on one CPU core

A cohort of 10 is chosen among 20 of 50 clients with 100 examples each of 28 x 28 pixels, which then
train an MLP for 10 local steps of 10 examples. A form of power of choice asks candidates for their
loss over all examples, of one batch, or for nothing; a forward pass has a third of the operations
of a local step, or a little less. With optimal client sampling a cohort of 10 trains. Each turn is
one call of five rounds; the first is not counted.
"""

import argparse
import time

import jax
import numpy as np

import fedjax_algos as fa
from fedjax_algos.models import models
from fedjax_algos.participation import Cohorts

CLIENTS, COHORT, EXAMPLES, ROUNDS = 50, 10, 100, 5
LOCAL = fa.Local(batch_size=10, learning_rate=0.05, steps=10)
FORMS = [
    "", "power_of_choice", "power_of_choice:loss=batch", "power_of_choice:loss=last", "oort",
    "active:candidates=2,alpha1=0.5", "optimal_client_sampling",
]  # fmt: skip


def data():
    rng = np.random.default_rng(0)
    total = CLIENTS * EXAMPLES
    x = rng.normal(size=(total, 28, 28, 1)).astype(np.float32)
    examples = {"x": x, "y": rng.integers(10, size=total).astype(np.int32)}
    return fa.federate(examples, fa.Partition.of(np.split(np.arange(total), CLIENTS)))


class Run:
    """Calls of five rounds, one after another."""

    def __init__(self, form, store):
        problem = models.make("mlp:hidden=200", (28, 28, 1), 10)
        algorithm = fa.wrappers.wrap(fa.algorithms.fedavg(problem, LOCAL), form)
        self.engine, self.store = fa.make_engine(algorithm, "sequential"), store
        candidates = 2 * COHORT if algorithm.selection else COHORT
        self.cohorts = Cohorts(store.counts(), LOCAL, cohort_size=candidates, seed=0)
        self.state = self.engine.init(0, fa.Population(CLIENTS, COHORT, CLIENTS * EXAMPLES))

    def seconds(self):
        dispatches = self.cohorts.dispatches(ROUNDS)
        start = time.perf_counter()
        self.state, _ = self.engine.rounds(self.state, self.store, dispatches)
        jax.block_until_ready(self.state.server)
        return time.perf_counter() - start


def operations(form, store):
    """Of a run of one round, as its rows count them."""
    problem = models.make("mlp:hidden=200", (28, 28, 1), 10)
    engine = fa.make_engine(fa.wrappers.wrap(fa.algorithms.fedavg(problem, LOCAL), form))
    return fa.simulate(engine, store, cohort_size=COHORT, rounds=1)[1][-1]["flops"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=15)
    turns, store = parser.parse_args().turns, data()
    runs = [Run(form, store) for form in FORMS]
    times = np.array([[run.seconds() for run in runs] for _ in range(turns + 1)])[1:]
    plain = operations("", store)
    for form, ratios in zip(FORMS[1:], (times[:, 1:] / times[:, :1]).T, strict=True):
        counted = operations(form, store) / plain
        low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
        print(f"{form}: {middle:.3f} ({low:.3f} to {high:.3f}), by operations {counted:.3f}")


if __name__ == "__main__":
    main()
