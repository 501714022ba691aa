"""Asynchronous training in waves, against one dispatch at a time and against synchronous rounds.

COMMAND   python benchmarks/deferred.py [--data mnist.npz] [--seeds 5] [--repeats 3]
          python benchmarks/deferred.py --methods fedasync --speeds exponential
EXPECTED  at least .75 of a plan's own ceiling c, whatever the speeds and the seed, and 1.5 times
          immediate execution where c is .95 or more; the merged plans of all seeds at least as
          fast as the mean of the plans
TIME      about 30 minutes on two CPU cores with 3 repeats

An MLP of 784-200-200-10 on 20 clients, batches of 20, SGD, and one CPU device for each core. `of
sync` is the number of local steps a second, divided by that of synchronous rounds of the same 20
clients on the same devices. c is the most that the plan allows: all local steps / (devices x those
of each wave's busiest device), with the best number of slots. Seed "all" is the merged plan of all
seeds. Runs alternate, ratios are taken within a repetition, and their medians are printed. Without
--data the images are random; real images do not change the times.
"""

import argparse
import os
import time

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import fedjax_algos as fa
from fedjax_algos.asynchrony import plan_dispatches, planners, system_models
from fedjax_algos.engine.asynchronous.call_tables import merge_data, merge_plans, merge_states
from fedjax_algos.engine.asynchronous.executor import make_executor
from fedjax_algos.engine.asynchronous.waves import make_waves, wave_costs
from fedjax_algos.participation import Cohorts

CORES = os.cpu_count() or 1
CLIENTS, ARRIVALS, STEPS = 20, 120, 50
SPEEDS = ("homogeneous", "normal", "exponential")
METHODS = {
    "fedasync": f"immediate:steps={STEPS}",
    "fedbuff": f"buffered:steps={STEPS},size=5",
    "fedcompass": "compass:min_steps=20,max_steps=100",
}


def examples(path):
    if path is None:
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (60_000, 28, 28), dtype=np.uint8)
        return {"x": x, "y": rng.integers(0, 10, 60_000, dtype=np.int32)}
    with np.load(path) as archive:
        return {"x": archive["x_train"], "y": archive["y_train"].astype(np.int32)}


def ceiling(plan):
    """The ceiling c, and the mean size of a wave with slots for all dispatches."""
    steps = plan.num_steps[plan.dispatch]
    busiest = []
    for each in (1, 2, 4):
        waves = make_waves(plan, each * CORES)
        costs = wave_costs(waves.trained, waves.filled, steps, "sequential", CORES)
        busiest.append(costs.sum())
    mean_wave = make_waves(plan, len(plan.client)).filled.mean()
    return steps.sum() / (CORES * min(busiest)), mean_wave


def timed(run):
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


class Rounds:
    """Cohorts rounds of all clients, in the layout that is best on these devices."""

    def __init__(self, algorithm, data, devices):
        self.engine = fa.make_engine(algorithm, "sequential", devices=devices)
        self.data, counts = self.engine.put_data(data), data.counts()
        self.number = ARRIVALS // CLIENTS
        cohorts = Cohorts(counts, algorithm.local, cohort_size=CLIENTS, seed=0)
        self.dispatches = cohorts.dispatches(self.number)
        self.steps = int(self.dispatches.num_steps.sum())
        self.population = fa.Population(CLIENTS, CLIENTS, int(counts.sum()))

    def __call__(self):
        state = self.engine.init(0, self.population)
        return self.engine.rounds(state, self.data, self.dispatches)


class Waves:
    """Plans of several seeds, merged and executed in waves."""

    def __init__(self, algorithm, data, plans, devices, slots, layout="auto"):
        self.executor = make_executor(algorithm, slots=slots, devices=devices, layout=layout)
        counts = data.counts()
        self.data = self.executor.put_data(merge_data([data] * len(plans)))
        dispatches = [plan_dispatches(plan, counts, algorithm.local) for plan in plans]
        self.plan, self.dispatches = merge_plans(plans, dispatches, data.num_clients)
        self.steps = int(self.plan.num_steps[self.plan.dispatch].sum())
        self.population = fa.Population(len(counts), len(counts), int(counts.sum()))
        self.population = self.population._replace(num_groups=int(self.plan.group.max()) + 1)
        self.runs = len(plans)
        state = self.start()
        self.waves = self.executor.waves(state, self.plan)
        self.memory = self.executor.memory(state, self.data, self.dispatches, self.waves)

    def start(self):
        states = [self.executor.init(seed, self.population) for seed in range(self.runs)]
        return merge_states(states)

    def __call__(self):
        run = self.executor.run(
            self.start(), self.data, self.plan, self.dispatches, waves=self.waves
        )
        for stop in run:
            last = stop.state
        return last


def row_of(algorithm, data, plans, rounds, repeats):
    """One row: merged plans, or one plan, against rounds and immediate execution."""
    deferred = Waves(algorithm, data, plans, CORES, "auto")
    immediate = Waves(algorithm, data, plans, None, 1)
    runs = {"sync": rounds, "deferred": deferred, "immediate": immediate}
    for run in runs.values():
        timed(run)
    rates = {key: [] for key in runs}
    for _ in range(repeats):
        for key, run in runs.items():
            rates[key].append(run.steps / timed(run))
    share = np.median(np.divide(rates["deferred"], rates["sync"]))
    gain = np.median(np.divide(rates["deferred"], rates["immediate"]))
    c, mean_wave = ceiling(deferred.plan)
    slots = deferred.waves.trained.shape[1]
    return [
        f"{mean_wave:.1f}", f"{c:.2f}", str(slots), f"{share:.2f}", f"{share / c:.2f}",
        f"{gain:.2f}", f"{deferred.memory.bytes / 1e6:.0f}", f"{np.median(rates['sync']):,.0f}",
    ]  # fmt: skip


def main():
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--data", help="npz file with x_train and y_train")
    arguments.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    arguments.add_argument("--speeds", nargs="+", default=list(SPEEDS), choices=SPEEDS)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--repeats", type=int, default=3)
    given = arguments.parse_args()
    jax.config.update("jax_num_cpu_devices", CORES)
    train = examples(given.data)
    rows = np.array_split(np.random.default_rng(1).permutation(len(train["y"])), CLIENTS)
    data = fa.federate(train, fa.Partition.of(rows))
    problem = fa.models.mlp((28, 28), 10, hidden=200, layers=2)
    local = fa.Local(batch_size=20, learning_rate=0.05, steps=STEPS)
    algorithms = {name: fa.algorithms.algorithms[name](problem, local) for name in METHODS}
    rounds = Rounds(fa.algorithms.fedavg(problem, local), data, CORES)
    one = Rounds(fa.algorithms.fedavg(problem, local), data, None)
    seconds = {"devices": [], "one": []}
    for _ in range(given.repeats + 1):
        seconds["devices"].append(timed(rounds))
        seconds["one"].append(timed(one))
    ratio = np.median(np.divide(seconds["devices"], seconds["one"])[1:])
    print(f"synchronous rounds on one device: {ratio:.2f} of those on {CORES}", flush=True)
    table = Table(
        "method", "speeds", "seed", "wave", "c", "slots", "of sync", "of c", "x immediate",
        "rows MB", "sync steps/s",
    )  # fmt: skip
    console = Console(width=120)
    for name in given.methods:
        for speeds in given.speeds:
            plans = [
                planners.make(METHODS[name])(
                    system_models.make(f"simulated:speeds={speeds}")(seed),
                    CLIENTS,
                    arrivals=ARRIVALS,
                )
                for seed in range(given.seeds)
            ]
            alone = {str(seed): [plan] for seed, plan in enumerate(plans)}
            for label, some in (alone | {"all": plans}).items():
                cells = row_of(algorithms[name], data, some, rounds, given.repeats)
                table.add_row(name, speeds, label, *cells)
                console.print(name, speeds, label, *cells, highlight=False)
    console.print(table)


if __name__ == "__main__":
    main()
