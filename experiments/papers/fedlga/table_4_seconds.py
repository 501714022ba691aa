"""Seconds of one round of the methods of FedLGA's paper, and seconds to 65% accuracy.

COMMAND   python experiments/papers/claims.py run fedlga/CLAIM, where CLAIM is table_4_single,
          table_4_clients, table_4_total, table_4_total_feddyn or why_table_4_clients
EXPECTED  the table of the claim
TIME      `minutes` of the claims

The rounds are those of the paper's setting on Fashion-MNIST, without evaluation. Each method runs
blocks of rounds in one compiled call, in turn with the other methods, and the fastest block of a
seed counts, since other work on the computer only makes a block slower. Compilation is left out.
The milliseconds to 65% are those of a round times the rounds in table_5_fmnist.csv. Where other
work keeps all cores busy for longer than a block, no block is fast and orders become unclear: the
program needs an idle computer.
"""

import dataclasses
import time

import jax

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.runs.studies.settings import Settings, split

METHODS = {
    "fedavg": {"weighting": "uniform"},
    "fedprox": {"weighting": "uniform", "mu": 1.0},
    "fednova": {},
    "scaffold": {},
    "feddyn": {"alpha": 0.1},
    "fedlga": {"strength": -1.0},
}
BATCHES = Settings(
    dataset="npz:data/fashion_mnist.npz",
    model="mlp:hidden=400",
    partition="classes_per_client:2",
    clients=50,
    cohort=10,
    work="partial:share=0.5",
    local_steps=5,
    rounds=20,
    eval_every=20,
)
EPOCHS = dataclasses.replace(BATCHES, local_steps=None, local_epochs=5, rounds=1, eval_every=1)


def milliseconds(
    settings: Settings, blocks: int, seeds: tuple[int, ...]
) -> dict[tuple[str, int], float]:
    """Those of one round, by method and seed.

    Args:
      settings: of the rounds; a block has as many as they say.
      blocks: of each method and seed.
      seeds: of the runs.
    """
    dataset = settings.load()
    problem, local = settings.problem(dataset), settings.local(0.002)
    engines = {
        name: fa.make_engine(algorithms[name](problem, local, **options))
        for name, options in METHODS.items()
    }
    fastest = {}
    for seed in seeds:
        data, *_ = split(settings, dataset, seed)
        times: dict[str, list[float]] = {name: [] for name in METHODS}
        states = {
            name: fa.simulate(engine, data, seed=seed, **settings.loop())[0]
            for name, engine in engines.items()
        }
        for block in range(1, blocks + 1):
            for name, engine in engines.items():
                start = time.perf_counter()
                state, _ = fa.simulate(
                    engine,
                    data,
                    seed=seed,
                    state=states[name],
                    start_round=block * settings.rounds,
                    **settings.loop(),
                )
                states[name] = jax.block_until_ready(state)
                times[name].append(time.perf_counter() - start)
        for name, values in times.items():
            fastest[name, seed] = 1000 * min(values) / settings.rounds
            print(name, seed, f"{fastest[name, seed]:.4g} ms", flush=True)
    return fastest


def rows(run) -> list[tuple]:
    """Milliseconds of a round, or to 65% in table_4_total."""
    name, measure = run.row.name, "milliseconds of a round"
    if name.startswith("table_4_total"):
        single, rounds = run.measured("table_4_single"), run.measured("table_5_fmnist")
        return [
            ("", method, "milliseconds to 65%", seed, f"{each * number:.4g}")
            for (_, _, method), seen in single.items()
            for seed, each, number in zip(
                seen.seeds,
                seen.values,
                rounds["rounds to 65%", "", method].values,
                strict=True,
            )
        ]
    if name == "why_table_4_clients":
        found = milliseconds(EPOCHS, 8, run.seeds)
    else:
        found = milliseconds(BATCHES, 12, run.seeds)
    return [("", method, measure, seed, f"{value:.4g}") for (method, seed), value in found.items()]
