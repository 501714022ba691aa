"""Cohorts of known problems, for the diagnostics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from helpers import Toy, fixed, one_round, stored

import fedjax_algos as fa
from fedjax_algos.participation import Cohorts

RATE, SEED = 0.1, 3

# four clients of `helpers.quadratics`
A = [[1.0, 2.0, 0.5], [3.0], [0.2, 1.5, 2.5, 1.0, 0.7], [2.0, 2.0]]
B = [[0.0, 1.0, -1.0], [2.0], [1.0, 0.5, -0.3, 0.0, 4.0], [-2.0, 1.0]]
MODEL = fa.Model({"x": np.asarray(0.5)})


@functools.cache
def regression():
    """Linear regression in three dimensions, on four clients of 5, 1, 8 and 3 examples; in x64."""
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)} for n in (5, 1, 8, 3)]

    def apply(model, batch, key, training):
        return batch["x"] @ model.params["w"] + model.params["b"], ()

    problem = fa.Problem(
        init=lambda key: fa.Model({"b": jnp.ones(()), "w": jnp.asarray([0.3, -0.2, 1.0])}),
        apply=apply,
        loss=lambda outputs, batch: (outputs - batch["y"]) ** 2 / 2,
    )
    return Toy(problem, stored(clients), clients)


def cohort(toy, local, clients, num_steps=None, rounds=1):
    """The dispatches of the last of some rounds, all of the same cohort; with these steps."""
    counts, sampler = toy.data.counts(), fixed([clients] * rounds)
    cohorts = Cohorts(counts, local, cohort_size=len(clients), seed=SEED, sampler=sampler)
    dispatches = one_round(cohorts.dispatches(rounds), rounds - 1)
    given = {} if num_steps is None else {"num_steps": np.asarray(num_steps, np.int32)}
    return dispatches._replace(**given)


def started(toy, algorithm, clients, num_steps=None, layout="vmapped"):
    """An engine, its first state, and the cohort's dispatches."""
    engine, counts = fa.make_engine(algorithm, layout), toy.data.counts()
    state = engine.init(SEED, fa.Population(len(counts), len(clients), int(counts.sum())))
    return engine, state, cohort(toy, algorithm.local, clients, num_steps)


def flat(tree):
    """Leaves [cohort, ...] as one matrix."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], 1)
