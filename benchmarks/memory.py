"""The memory of a round as it is compiled, with four ways to need less of it.

COMMAND   python benchmarks/memory.py
          python benchmarks/memory.py --check vit_small
EXPECTED  the table of docs/data_and_models.md; with --check a largest difference below 1e-5
TIME      five minutes on two CPU cores; with --check, which runs two rounds of ViT-S on images of
          224x224, ten more

The numbers are what XLA allocates for one client of FedAvg with two local steps: state, examples
and temporary arrays of a device. They are the same on every machine with the same jax. With --check
a round of four clients on eight devices, of which two share a client, is compared with the round
on one device.
"""

import argparse

import jax

jax.config.update("jax_num_cpu_devices", 8)

import numpy as np  # noqa: E402

import fedjax_algos as fa  # noqa: E402
from fedjax_algos.models import models, rematerialise  # noqa: E402
from fedjax_algos.participation import Cohorts  # noqa: E402

NETWORKS = {  # shape of an example, batch
    "vit_small": ((224, 224, 3), 32),
    "vit": ((32, 32, 3), 32),
    "resnet18": ((32, 32, 3), 32),
    "resnet20": ((32, 32, 3), 32),
    "mobilenet_v2": ((96, 96, 3), 32),
}
CLASSES = 10


def prepare(name, pieces=1, twice=False, clients=1, **devices):
    """An engine, and what its round takes."""
    shape, batch = NETWORKS[name]
    problem = models.make(name, shape, CLASSES)
    problem = rematerialise(problem) if twice else problem
    rng, number = np.random.default_rng(0), clients * batch
    x = rng.integers(0, 256, (number, *shape), np.uint8)
    examples = {"x": x, "y": rng.integers(0, CLASSES, number).astype(np.int32)}
    data = fa.federate(examples, fa.Partition.of(np.split(np.arange(number), clients)))
    local = fa.Local(batch, 0.01, steps=2, gradient_accumulation=pieces)
    engine = fa.make_engine(fa.algorithms.fedavg(problem, local), **devices)
    cohorts = Cohorts(data.counts(), local, cohort_size=clients, seed=0)
    dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
    population = fa.Population(clients, clients, number)
    return engine, population, data, dispatches


def gigabytes(name, **how):
    engine, population, data, dispatches = prepare(name, **how)
    return engine.memory(engine.shapes(population), data, dispatches) / 1e9


def check(name):
    """The largest difference of a param after a round, relative to the largest change of one."""
    ends = []
    for devices in ({}, {"devices": 8, "devices_per_client": 2}):
        engine, population, data, dispatches = prepare(name, clients=4, **devices)
        state = engine.init(0, population)
        start = jax.device_get(state.server.params)
        state, _ = engine.round(state, engine.put_data(data), dispatches)
        ends.append(jax.device_get(state.server.params))
    start, one, other = map(jax.tree.leaves, (start, *ends))
    change = max(np.abs(a - b).max() for a, b in zip(start, one, strict=True))
    return max(np.abs(a - b).max() for a, b in zip(one, other, strict=True)) / change


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", choices=NETWORKS)
    options = parser.parse_args()
    if options.check:
        print(f"largest difference, relative to the largest change: {check(options.check):.1e}")
        return
    ways = {
        "plain": {},
        "rematerialise": {"twice": True},
        "4 pieces": {"pieces": 4},
        "both": {"twice": True, "pieces": 4},
        "2 devices": {"devices": 2, "devices_per_client": 2},
    }
    print("GB of a device", *ways, sep=" | ")
    for name in NETWORKS:
        found = [gigabytes(name, **how) for how in ways.values()]
        print(name, *(f"{each:.3g}" for each in found), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
