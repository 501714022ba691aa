"""Does one huge client slow down the others? 100 clients of ten examples, with and without it.

COMMAND   python benchmarks/ragged.py
EXPECTED  ratios below 1.2 in both layouts
TIME      half a minute on two CPU cores

The population is 9,999 clients of ten examples, alone or beside one of 10,000; the cohort is the
same 100 small clients, one local epoch, multinomial regression on 784 features. Runs alternate, and
medians are printed.
"""

import time

import jax
import numpy as np

import fedjax_algos as fa
from fedjax_algos.participation import Cohorts

SMALL, COHORT, REPEATS = 9_999, 100, 41


def population(large):
    counts = [10] * SMALL + [10_000] * large
    rng = np.random.default_rng(0)
    examples = {
        "x": rng.integers(0, 256, (sum(counts), 784), dtype=np.uint8),
        "y": rng.integers(0, 10, sum(counts), dtype=np.int32),
    }
    rows = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    return fa.federate(examples, fa.Partition.of(rows))


def main():
    problem = fa.models.linear((784,), 10)
    local = fa.Local(batch_size=10, learning_rate=0.1, epochs=1)
    data = {name: population(large) for name, large in (("alone", 0), ("beside", 1))}
    sizes = {name: sum(leaf.nbytes for leaf in jax.tree.leaves(d)) for name, d in data.items()}
    print({name: f"{size / 1e6:.1f} MB" for name, size in sizes.items()})
    cohort = np.arange(COHORT, dtype=np.int32)[None]
    for layout in ("sequential", "vmapped", 10):
        engine = fa.make_engine(fa.algorithms.fedavg(problem, local), layout)
        prepared = {}
        for name, d in data.items():
            cohorts = Cohorts(
                d.counts(), local, cohort_size=COHORT, seed=0, sampler=lambda *_: cohort
            )
            dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
            counts = d.counts()
            state = engine.init(0, fa.Population(len(counts), COHORT, int(counts.sum())))
            state, _ = engine.round(state, d, dispatches)
            prepared[name] = [state, d, dispatches]
        seconds = {name: [] for name in data}
        for _ in range(REPEATS):
            for name, (state, d, dispatches) in prepared.items():
                start = time.perf_counter()
                prepared[name][0], _ = jax.block_until_ready(engine.round(state, d, dispatches))
                seconds[name].append(time.perf_counter() - start)
        medians = {name: np.median(values) for name, values in seconds.items()}
        ratio = np.median(np.divide(seconds["beside"], seconds["alone"]))
        times = ", ".join(f"{name} {1e3 * value:.2f} ms" for name, value in medians.items())
        print(f"{layout}: {times}; median ratio {ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()
