"""Seconds of one round of the methods of FedLGA's paper, and seconds to 65% accuracy.

COMMAND   python experiments/papers/fedlga/table_4_seconds.py [CLAIM.toml, whose table is shown]
EXPECTED  the table of the claim, and the CSV files of Table IV: milliseconds of a round of five
          batches and of one of five epochs, and milliseconds to 65% with the former
TIME      `minutes` of the claims

The rounds are those of the paper's setting on Fashion-MNIST, without evaluation. Each method runs
blocks of rounds in one compiled call, in turn with the other methods, and the fastest block of a
seed counts, since other work on the computer only makes a block slower. Compilation is left out.
The milliseconds to 65% are those of a round times the rounds in table_5_fmnist.csv. Where other
work keeps all cores busy for longer than a block, no block is fast and orders become unclear: the
program needs an idle computer.
"""

import argparse
import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import jax

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis.claims import read_measured, write_measured
from fedjax_algos.runs.settings import Settings

HERE = Path(__file__).parent
SEEDS = range(5)
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


def milliseconds(settings: Settings, blocks: int) -> dict[tuple[str, int], float]:
    """Those of one round, by method and seed.

    Args:
      settings: of the rounds; a block has as many as they say.
      blocks: of each method and seed.
    """
    dataset = settings.load()
    problem, local = settings.problem(dataset), settings.local(0.002)
    engines = {
        name: fa.make_engine(algorithms[name](problem, local, **options))
        for name, options in METHODS.items()
    }
    fastest = {}
    for seed in SEEDS:
        data, _ = settings.split(dataset, seed)
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


def total(single: dict[tuple[str, int], float]) -> dict[tuple[str, int], float]:
    """The milliseconds to 65%, by method and seed.

    Args:
      single: those of a round.
    """
    rounds = {
        (quantity.method, seed): value
        for quantity, seen in read_measured(HERE / "table_5_fmnist.csv").items()
        for seed, value in zip(seen.seeds, seen.values.tolist(), strict=True)
        if quantity.measure == "rounds to 65%"
    }
    return {key: value * rounds[key] for key, value in single.items()}


def write(name: str, measure: str, values: dict[tuple[str, int], float]) -> None:
    """Writes the values of a claim.

    Args:
      name: of the claim.
      measure: what the values are.
      values: by method and seed.
    """
    rows = [("", method, measure, seed, f"{value:.4g}") for (method, seed), value in values.items()]
    write_measured(HERE / f"{name}.csv", rows)


def main() -> None:
    """Writes the files and prints the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("claim", type=Path, nargs="?", default=HERE / "table_4_single.toml")
    shown = parser.parse_args().claim
    single = milliseconds(BATCHES, 12)
    write("table_4_single", "milliseconds of a round", single)
    write("table_4_total", "milliseconds to 65%", total(single))
    write("table_4_clients", "milliseconds of a round", single)
    long = milliseconds(EPOCHS, 8)
    write("why_table_4_clients", "milliseconds of a round", long)
    subprocess.run([sys.executable, "-m", "fedjax_algos", "claims", str(shown)], check=True)


if __name__ == "__main__":
    main()
