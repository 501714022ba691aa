"""A local step of the GRU model of Shakespeare, against the same model of Flax's own layers.

COMMAND   XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 1 python benchmarks/recurrent.py
EXPECTED  ratios of about 1, sequentially and mapped
TIME      a minute on one CPU core

Four clients, three SGD steps each, batch 32, 80 characters, two GRU layers of 128. Times are those
of the processor, so that other work on the machine counts less. Runs alternate, and medians are
printed.
"""

import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import fedjax_algos as fa
from fedjax_algos.models import Recurrent, classifier

CLIENTS, STEPS, BATCH, LENGTH, SYMBOLS, REPEATS = 4, 3, 32, 80, 79, 7


class Reader(nn.Module):
    """The model, with our layers or with Flax's."""

    ours: bool

    @nn.compact
    def __call__(self, x):
        x = nn.Embed(SYMBOLS, 8)(x)
        for _ in range(2):
            x = (Recurrent("gru", 128, "flax") if self.ours else nn.RNN(nn.GRUCell(128)))(x)
        return nn.Dense(SYMBOLS)(x[:, -1])


def main():
    rng = np.random.default_rng(0)
    total = CLIENTS * STEPS * BATCH
    examples = {
        "x": rng.integers(0, SYMBOLS, (total, LENGTH), dtype=np.int32),
        "y": rng.integers(0, SYMBOLS, total, dtype=np.int32),
    }
    data = fa.federate(examples, fa.Partition.of(np.split(np.arange(total), CLIENTS)))
    local = fa.Local(BATCH, 0.1, steps=STEPS)
    cohorts = fa.participation.Cohorts(data.counts(), local, cohort_size=CLIENTS, seed=0)
    dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
    for layout in ("sequential", "vmapped"):
        runs = {}
        for name, ours in (("flax", False), ("ours", True)):
            problem = classifier(Reader(ours), (LENGTH,), inputs=lambda x: x, dtype=jnp.int32)
            engine = fa.make_engine(fa.algorithms.fedavg(problem, local), layout)
            state = engine.init(0, fa.Population(CLIENTS, CLIENTS, total))
            runs[name] = [engine, engine.round(state, data, dispatches)[0]]
        seconds = {name: [] for name in runs}
        for _ in range(REPEATS):
            for name, (engine, state) in runs.items():
                start = time.process_time()
                runs[name][1], _ = jax.block_until_ready(engine.round(state, data, dispatches))
                seconds[name].append(time.process_time() - start)
        ratio = np.median(np.divide(seconds["ours"], seconds["flax"]))
        steps = {n: 1e3 * np.median(s) / CLIENTS / STEPS for n, s in seconds.items()}
        print(f"{layout}: {steps['ours']:.1f} ms a step, {ratio:.2f} of Flax's", flush=True)


if __name__ == "__main__":
    main()
