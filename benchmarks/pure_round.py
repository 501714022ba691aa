"""A pure round in a loop of one's own, and 64 whole simulations in one call.

COMMAND   python benchmarks/pure_round.py
EXPECTED  six lines with median ratios
TIME      about five minutes on two CPU cores

1. `pure_round` in a jitted `scan` over 20 rounds, against `engine.rounds` of the same dispatches,
   in turns, on one device: digits, 100 clients, cohort 10, an MLP with 50 hidden units, FedAvg and
   SCAFFOLD.
2. 64 simulations of FedAvg (50 rounds, 64 seeds, cohorts and evaluation included) as one jitted
   function, 32 seeds on each of two CPU devices, against 64 calls of `simulate` in a warm process.
   The seeds of a device are mapped by `vmap` or by `lax.map`. With five local steps all clients do
   the same; with one epoch a mapped loop is as long as the longest of the seeds, and the line says
   how many steps are computed for each one that is needed.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.data import datasets, partitions
from fedjax_algos.models import models
from fedjax_algos.participation import Cohorts

jax.config.update("jax_num_cpu_devices", 2)
CLIENTS, COHORT, ROUNDS, SEEDS = 100, 10, 20, 64
SEEDS_OF = {"vmap": jax.vmap, "lax.map": lambda run: lambda seeds: jax.lax.map(run, seeds)}
LOCAL = fa.Local(batch_size=10, learning_rate=0.1, epochs=1)


def seconds(function, *arguments):
    start = time.perf_counter()
    result = function(*arguments)
    jax.block_until_ready(result)
    return time.perf_counter() - start


def computed_steps(data, local):
    """Local steps that 32 simulations under `vmap` compute for each one that is needed."""
    drawn = jax.vmap(
        lambda seed: (
            fa.traced_dispatches(
                seed, data.counts(), local, cohort_size=COHORT, rounds=50
            ).num_steps
        )
    )(jnp.arange(SEEDS // 2))
    return float(drawn.max(0).mean() / drawn.mean())


def loop_of_ones_own(name, problem, data, population, turns):
    """The times of `pure_round` in a `scan` and of `engine.rounds`, float[2, turns]."""
    algorithm = algorithms[name](problem, LOCAL)
    engine, round_fn = fa.make_engine(algorithm), fa.pure_round(algorithm)
    cohorts = Cohorts(data.counts(), LOCAL, cohort_size=COHORT, seed=0)

    @jax.jit
    def own_loop(state, dispatches):
        return jax.lax.scan(lambda s, d: round_fn(s, data, d), state, dispatches)

    times = []
    for _ in range(turns + 1):
        dispatches = cohorts.dispatches(ROUNDS)
        own = seconds(own_loop, engine.init(0, population), dispatches)
        state = engine.init(0, population)
        times.append((own, seconds(engine.rounds, state, data, dispatches)))
    return np.asarray(times[1:]).T


def many_simulations(kind, problem, local, data, population, test, turns):
    """The times of one mapped call and of a loop over `simulate`, float[2, turns]."""
    counts, rounds = data.counts(), 50
    algorithm = fa.algorithms.fedavg(problem, local)
    round_fn, evaluate = fa.pure_round(algorithm, "sequential"), fa.make_evaluate(problem)

    def run(seed):
        dispatches = fa.traced_dispatches(seed, counts, local, cohort_size=COHORT, rounds=rounds)
        state, _ = jax.lax.scan(
            lambda s, d: round_fn(s, data, d), round_fn.init(seed, population), dispatches
        )
        return evaluate(fa.Model(state.server.params), test)["accuracy"].value()

    split = PartitionSpec("seeds")
    mapped = jax.jit(
        jax.shard_map(
            SEEDS_OF[kind](run),
            mesh=Mesh(jax.devices(), ("seeds",)),
            in_specs=split,
            out_specs=split,
            check_vma=False,
        )
    )
    engine = fa.make_engine(algorithm)

    def loop():
        settings = {"cohort_size": COHORT, "rounds": rounds, "eval_every": rounds, "test": test}
        return [
            fa.simulate(engine, data, seed=seed, evaluate=evaluate, **settings)[1][-1]
            for seed in range(SEEDS)
        ]

    ours, theirs = mapped(jnp.arange(SEEDS)), [row["test_accuracy"] for row in loop()]
    assert np.abs(np.asarray(ours) - theirs).max() < 0.02  # rounding moves an example or two
    return np.asarray([(seconds(mapped, jnp.arange(SEEDS)), seconds(loop)) for _ in range(turns)]).T


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=9)
    turns = parser.parse_args().turns
    dataset = datasets["digits"]()
    data = fa.federate(
        dataset.train, partitions["dirichlet"](dataset.train["y"], CLIENTS, 0, alpha=0.1)
    )
    problem = models.make("mlp:hidden=50", dataset.example_shape, dataset.num_classes)
    population = fa.Population(CLIENTS, COHORT, len(data.indices))
    for name in ("fedavg", "scaffold"):
        own, engine = loop_of_ones_own(name, problem, data, population, turns)
        print(
            f"{name}: a scan of one's own {np.median(own) / ROUNDS:.3g} s a round; / engine.rounds "
            f"{np.median(own / engine):.3f}, from {(own / engine).min():.3f} to "
            f"{(own / engine).max():.3f}",
            flush=True,
        )
    for work in ({"steps": 5}, {"epochs": 1}):
        local = fa.Local(batch_size=10, learning_rate=0.1, **work)
        for kind in SEEDS_OF:
            mapped, loop = many_simulations(
                kind, problem, local, data, population, dataset.test, max(turns // 3, 1)
            )
            steps = computed_steps(data, local) if kind == "vmap" else 1.0
            print(
                f"64 simulations, {work}, {kind}: {np.median(mapped):.3g} s in one call, "
                f"{np.median(loop):.3g} s one after another: {np.median(loop / mapped):.2f} times "
                f"as fast; {steps:.2f} steps are computed for each that is needed",
                flush=True,
            )


if __name__ == "__main__":
    main()
