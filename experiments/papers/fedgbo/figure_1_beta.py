"""Figure 1: the drift of a cohort's models with FedGBO, for several beta of its momentum.

COMMAND   python experiments/papers/claims.py run fedgbo/figure_1_beta
EXPECTED  the mean cosine distance of the clients' models falls with beta on each data set
TIME      three minutes

FedGBO with SGDm at one rate for all beta, of which 0 is FedAvg. Every fifth round the cohort's
uploaded models are taken, and the mean of 1 - cos(y_i, y_j) over all pairs. The values are means
over all rounds that were measured. The same is done with the updates x - y_i.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import question_lines

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.participation import Cohorts
from fedjax_algos.runs.studies.settings import Settings, split

BETAS = (0.0, 0.6, 0.9)
EVERY = 5

COMMON: dict[str, Any] = {"local_steps": 10, "batches": "persistent"}
TASKS: dict[str, tuple[dict[str, Any], float]] = {  # settings, client rate
    "MNIST by writer": (
        COMMON
        | {"dataset": "npz:data/mnist.npz", "model": "mlp:hidden=100", "partition": "natural"}
        | {"clients": 500, "cohort": 10, "batch_size": 32, "rounds": 40},
        0.1,
    ),
    "Fashion-MNIST": (
        COMMON
        | {"dataset": "npz:data/fashion_mnist.npz", "model": "mlp:hidden=100", "clients": 500}
        | {"partition": "dirichlet_classes:0.1", "cohort": 5, "batch_size": 32, "rounds": 60},
        0.03,
    ),
    "questions": (
        COMMON
        | {"dataset": "npz:results/papers/fedgbo/question_lines.npz", "model": "linear"}
        | {"partition": "natural", "clients": 399, "cohort": 22, "batch_size": 8, "rounds": 60},
        10.0,
    ),
}


def drift(engine: fa.Engine, settings: Settings, data: Any, local: Any, seed: int) -> np.ndarray:
    """The cosine distances of a cohort's models and of its updates, float[evaluations, 2].

    Args:
      engine: of FedGBO.
      settings: of the run.
      data: the clients' examples.
      local: how clients train.
      seed: of the run.
    """
    cohorts = Cohorts(data.counts(), local, cohort_size=settings.cohort_size, seed=seed)
    dispatches = cohorts.dispatches(settings.rounds)
    population = fa.Population(data.num_clients, settings.cohort_size, settings.rounds)
    state, found = engine.init(seed, population), []
    for number in range(0, settings.rounds, EVERY):
        block = jax.tree.map(lambda leaf, n=number: leaf[n : n + EVERY], dispatches)
        first = jax.tree.map(lambda leaf: leaf[0], block)
        updates, params = engine.updates(state, data, first).updates, state.server.params
        models = fa.diagnostics.local_models(engine.algorithm, params, updates)
        deltas = fa.diagnostics.client_deltas(engine.algorithm, params, updates)
        found.append([float(fa.diagnostics.cosine_drift(each)) for each in (models, deltas)])
        state, _ = engine.rounds(state, data, block)
    return np.array(found)


def rows(run) -> Iterator[tuple]:
    question_lines.make()
    fa.keep_compiled("results/papers/compiled")
    for name, (given, rate) in TASKS.items():
        settings = Settings(**given)
        dataset = settings.load()
        problem, local = settings.problem(dataset), settings.local(rate)
        splits = [split(settings, dataset, seed)[0] for seed in run.seeds]
        for beta in BETAS:
            engine = fa.make_engine(algorithms["fedgbo"](problem, local, beta=beta))
            for seed, data in zip(run.seeds, splits, strict=True):
                curves = drift(engine, settings, data, local, seed)
                models, updates = curves.mean(0)
                yield name, f"beta = {beta:g}", "distance of models", seed, f"{models:.5g}"
                yield name, f"beta = {beta:g}", "distance of updates", seed, f"{updates:.5g}"
