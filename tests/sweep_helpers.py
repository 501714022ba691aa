"""A toy problem for sweeps, and the separate runs whose numbers a sweep has to give."""

import functools

import jax
import numpy as np

import fedjax_algos as fa
from fedjax_algos.models.adapters import Outputs
from fedjax_algos.runs.batched.sweeps import sweep

LOCAL = fa.Local(batch_size=2, learning_rate=0.1, steps=2)
FULL = LOCAL._replace(batches="full")  # quicker to compile
ROUNDS = {"cohort_size": 2, "rounds": 3, "eval_every": 2}


def toy():
    """A linear model, quick to compile; the data of two seeds; test examples."""
    return _toy(jax.config.jax_enable_x64)


@functools.cache
def _toy(x64):
    """The examples on the device have the precision that is enabled."""
    rng = np.random.default_rng(0)
    examples = {"x": rng.normal(size=(17, 3)), "y": rng.normal(size=17)}

    def apply(model, batch, key, training):
        del key, training
        products = batch["x"] * model.params[None]
        return Outputs(products.sum(1), products), ()

    problem = fa.Problem(
        lambda key: fa.Model(jax.random.normal(key, (3,), float)),
        apply,
        lambda outputs, batch: (outputs.logits - batch["y"]) ** 2,
    )
    cuts = {0: [5, 6, 14], 7: [2, 9, 13]}
    store = jax.device_put(examples)  # the same arrays for both seeds
    data = {
        seed: fa.federate(store, fa.Partition.of(np.split(rng.permutation(17), cut)))
        for seed, cut in cuts.items()
    }
    return problem, data, {name: values[:6] for name, values in examples.items()}


def sweep_toy(algorithm, grid, seeds=(0, 7), local=LOCAL, **options):
    problem, data, test = toy()
    options = {"test": test} | ROUNDS | options
    return sweep(algorithm, problem, local, data, grid=grid, seeds=seeds, **options)


@functools.cache
def evaluation():
    return fa.make_evaluate(toy()[0])


@functools.cache
def engine_of(algorithm, rate, local, **hyperparameters):
    local = local._replace(learning_rate=rate)
    return fa.make_engine(algorithm(toy()[0], local, **hyperparameters))


def separately(algorithm, seed, rate=LOCAL.learning_rate, local=LOCAL, rounds=3, **hyperparameters):
    """The rows of `simulate` on the same settings."""
    options = ROUNDS | {"rounds": rounds}
    _, data, test = toy()
    engine, evaluate = engine_of(algorithm, rate, local, **hyperparameters), evaluation()
    return fa.simulate(engine, data[seed], seed=seed, test=test, evaluate=evaluate, **options)[1]


def assert_same_rows(rows, expected, tolerance=1e-11):
    """Compares rows column by column, except for the time and the names of the run."""
    assert len(rows) == len(expected) == 3
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() - {"method", "seed"} == other.keys()
        for name in other.keys() - {"wall_seconds"}:
            np.testing.assert_allclose(row[name], other[name], rtol=tolerance, err_msg=name)
