"""The evaluation of a thousand clients' own models, against twenty rounds of their training.

COMMAND   python benchmarks/own_models.py --data mnist.npz
EXPECTED  for Ditto and FedRep one compiled program, in less time than 20 rounds
TIME      one minute on two CPU cores

MNIST by writer: `x_train`, `y_train` and `writer_train` of the file. The digits of the writers who
have most are halved until there are 1,000 clients. An MLP with 64 hidden units, cohorts of 100, one
epoch of batches of 10. The rounds were compiled before; the evaluation is timed with its
compilation and without.
"""

import argparse
import time

import jax
import numpy as np

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.models import models
from fedjax_algos.participation import Cohorts

CLIENTS, COHORT, ROUNDS = 1000, 100, 20
LOCAL = fa.Local(batch_size=10, learning_rate=0.1, epochs=1)
METHODS = {"ditto": {}, "fedrep": {"head": "Dense_1/*"}}


def clients_of(path):
    with np.load(path) as arrays:
        x, y = arrays["x_train"], arrays["y_train"].astype(np.int32)
        writers = arrays["writer_train"]
    rows = [np.flatnonzero(writers == writer) for writer in np.unique(writers)]
    rows.sort(key=len, reverse=True)
    halved = CLIENTS - len(rows)
    pieces = [half for each in rows[:halved] for half in np.array_split(each, 2)]
    return fa.federate({"x": x, "y": y}, fa.Partition.of(pieces + rows[halved:]))


def seconds(function):
    start = time.perf_counter()
    result = jax.block_until_ready(function())
    return result, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="an npz file with writers")
    data = clients_of(parser.parse_args().data)
    problem = models.make("mlp", data.examples["x"].shape[1:], 10)
    population = fa.Population(CLIENTS, COHORT, len(data.indices))
    for name, options in METHODS.items():
        algorithm = algorithms[name](problem, LOCAL, **options)
        engine, evaluate = fa.make_engine(algorithm), fa.make_evaluate_own(algorithm)
        cohorts = Cohorts(data.counts(), LOCAL, cohort_size=COHORT, seed=0)
        state, _ = engine.rounds(engine.init(0, population), data, cohorts.dispatches(ROUNDS))
        dispatches = cohorts.dispatches(ROUNDS)

        def rounds(engine=engine, state=state, dispatches=dispatches):
            return engine.rounds(state, data, dispatches)

        (state, _), training = seconds(rounds)
        with fa.measure_compilation() as compilation:
            _, first = seconds(lambda e=evaluate, s=state: e(s, data))
        metrics, again = seconds(lambda e=evaluate, s=state: e(s, data))
        accuracy = fa.summarise_clients(metrics["accuracy"], "lowest")
        print(
            f"{name}: {ROUNDS} rounds {training:.2f} s; evaluation {again:.2f} s, {first:.2f} s "
            f"with its compilation ({compilation}); {accuracy}",
            flush=True,
        )


if __name__ == "__main__":
    main()
