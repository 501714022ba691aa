"""How far FedLGA's approximations are from the updates of complete local work.

COMMAND   python experiments/papers/claims.py run fedlga/equation_3_error, or one of the two
          experiments that show its reason: why_equation_3_units and why_equation_3_factors
EXPECTED  the table of the claim
TIME      `minutes` of the claim

The model of plain averaging is stopped after 1, 20 and 100 rounds. The cohort of the next round
then trains twice from it on the same batches, with partial and with complete local work. The
relative error is |Delta_i,E - approximation| / |Delta_i,E|, its median over the partial clients of
the cohort; factors and gradient norms are medians as well.
"""

import jax
import numpy as np
import optax
from paper_measures.approximation import (
    PartialUpdates,
    approximation_error,
    fedlga_factors,
    partial_updates,
)

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.participation.cohorts import Cohorts
from fedjax_algos.runs.studies.settings import Settings, split

ROUNDS = (1, 20, 100)
RATE = 0.002
STRENGTHS = {"received": 0.0, "algorithm_1": 1.0, "table_1": -1.0}
IN_UNITS = {"algorithm_1_times_rate": RATE, "table_1_times_rate": -RATE}
SETTINGS = Settings(
    dataset="npz:data/fashion_mnist.npz",
    model="mlp:hidden=400",
    partition="classes_per_client:2",
    clients=50,
    cohort=10,
    work="partial:share=0.5",
    local_steps=5,
    rounds=max(ROUNDS),
)


def rows(run) -> list[tuple]:
    """The medians of all seeds that belong to the file that is run."""
    dataset = SETTINGS.load()
    local = SETTINGS.local(RATE)
    engine = fa.make_engine(algorithms["fedavg"](SETTINGS.problem(dataset), local))
    own = []
    for seed in run.seeds:
        data, *_ = split(SETTINGS, dataset, seed)
        cohorts = Cohorts(data.counts(), local, seed=seed, **SETTINGS.cohorts())
        dispatches = cohorts.dispatches(max(ROUNDS) + 1)
        state, done = None, 0
        for number in ROUNDS:
            more = {} if state is None else {"state": state, "start_round": done}
            loop = SETTINGS.loop() | {"rounds": number - done, "eval_every": number - done}
            state, _ = fa.simulate(engine, data, seed=seed, **loop, **more)
            done = number
            next_cohort = jax.tree.map(lambda leaf, row=number: leaf[row], dispatches)
            found = examine(partial_updates(engine, state, data, next_cohort))
            for (name, method, measure), value in found.items():
                if name == run.row.name:
                    own.append((f"after {number} rounds", method, measure, seed, f"{value:.6g}"))
    return own


def examine(updates: PartialUpdates) -> dict[tuple[str, str, str], float]:
    """Medians over the partial clients, by file, method and measure."""
    stack = updates.stack
    steps = np.asarray(stack.dispatches.num_steps)
    full = np.asarray(stack.dispatches.full_steps)
    partial = steps < full

    def median(values):
        return float(np.median(np.asarray(values)[partial]))

    norms = jax.vmap(optax.tree.norm)
    lengthened = jax.vmap(optax.tree.scale)(full / steps, stack.updates)
    missed = norms(optax.tree.sub(updates.full, lengthened)) / norms(updates.full)
    gradient = np.asarray(norms(stack.updates)) / (RATE * steps)
    found = {}
    for method, strength in (STRENGTHS | IN_UNITS).items():
        error = approximation_error(updates, strength=strength)
        value = median(error.relative)
        if method in STRENGTHS:
            found["equation_3_error", method, "relative error"] = value
        if method in ("received", *IN_UNITS):
            found["why_equation_3_units", method, "relative error"] = value
        if method in ("algorithm_1", "table_1"):
            factor = fedlga_factors(stack, strength=strength)
            found["why_equation_3_factors", method, "factor"] = median(factor)
    found["why_equation_3_units", "lengthened", "relative error"] = median(missed)
    found["why_equation_3_factors", "needed", "factor"] = median(full / steps)
    squares = median(gradient**2)
    found["why_equation_3_factors", "one_plus_square", "factor"] = 1 + squares
    return found
