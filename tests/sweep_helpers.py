"""Toy problems, quick to compile, for runs and sweeps, and the separate runs of a sweep."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from helpers import CASES, quadratics

import fedjax_algos as fa
from fedjax_algos.models.adapters import Outputs
from fedjax_algos.runs.loops import program as programs
from fedjax_algos.runs.studies.sweeps import sweep


def _loss(x, batch):
    """`a |x - b c|^2 / 2` for each example."""
    differences = x[None] - batch["b"][:, None] * jnp.array([1.0, -2.0, 3.0, 0.5])[None]
    return 0.5 * batch["a"] * (differences**2).sum(-1)


_RNG, _COUNTS = np.random.default_rng(0), (5, 1, 8, 3)
QUADRATICS = quadratics(
    [_RNG.uniform(0.5, 2, count) for count in _COUNTS], [_RNG.normal(size=n) for n in _COUNTS]
)
_PROBLEM = QUADRATICS.problem._replace(
    init=lambda key: fa.Model({"x": jnp.full(4, 0.5)}), loss=_loss
)
QUADRATICS = QUADRATICS._replace(problem=_PROBLEM)
DECAYING = fa.Local(2, lambda count: 0.1 / (1 + count), epochs=1.0, rate_by="dispatch")
POPULATION = fa.Population(4, 2, 17)


@functools.cache
def algorithm_of(spec, local):
    """The first case of an algorithm, with wrappers after a plus, on `QUADRATICS`."""
    name, *wrappers = spec.split("+")
    case = next(case for case in CASES if case.name == name)
    return fa.wrappers.wrap(case.build(QUADRATICS.problem, local), wrappers)


@functools.cache
def _made(make, algorithm, **options):
    return make(algorithm, **options)


def rounds_engine(spec="scaffold", place="device", **options):
    return _made(fa.make_engine, algorithm_of(spec, DECAYING), client_state=place, **options)


def clock_executor(spec="fedasync", **options):
    algorithm = algorithm_of(spec, fa.Local(2, 0.05, steps=2))
    return _made(fa.make_executor, algorithm, **{"slots": 2, "waves_per_call": 2} | options)


def run_rounds(engine, data=QUADRATICS.data, **options):
    """What `simulate` returns, by default with evaluations after 0, 2, 4 and 5 rounds."""
    rounds = {"cohort_size": 2, "rounds": 5, "eval_every": 2, "seed": 3}
    return fa.simulate(engine, data, **{"test": QUADRATICS.data.examples} | rounds | options)


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
        products = batch["x"] * model.params[None]
        return Outputs(products.sum(1), products), ()

    problem = fa.Problem(
        lambda key: fa.Model(jax.random.normal(key, (3,), float)),
        apply,
        lambda outputs, batch: (outputs.logits - batch["y"]) ** 2,
    )
    store = jax.device_put(examples)  # the same arrays for both seeds
    data = {
        seed: fa.federate(store, fa.Partition.of(np.split(rng.permutation(17), cut)))
        for seed, cut in {0: [5, 6, 14], 7: [2, 9, 13]}.items()
    }
    return problem, data, {name: values[:6] for name, values in examples.items()}


def sweep_toy(algorithm, grid, seeds=(0, 7), local=LOCAL, **options):
    problem, data, test = toy()
    options = {"test": test} | ROUNDS | options
    return sweep(algorithm, problem, local, data, grid=grid, seeds=seeds, **options)


@functools.cache
def engine_of(algorithm, rate, local, **hyperparameters):
    local = local._replace(learning_rate=rate)
    return fa.make_engine(algorithm(toy()[0], local, **hyperparameters))


def separately(algorithm, seed, rate=LOCAL.learning_rate, local=LOCAL, rounds=3, **hyperparameters):
    """The rows of `simulate` on the same settings."""
    engine, (_, data, test) = engine_of(algorithm, rate, local, **hyperparameters), toy()
    options = ROUNDS | {"rounds": rounds, "seed": seed, "test": test}
    return fa.simulate(engine, data[seed], **options)[1]


def assert_same_rows(rows, expected, tolerance=1e-11):
    """Compares rows column by column, except for the time and the names of the run."""
    assert len(rows) == len(expected) == 3
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() - {"method", "seed"} == other.keys()
        for name in other.keys() - {"wall_seconds"}:
            np.testing.assert_allclose(row[name], other[name], rtol=tolerance, err_msg=name)


def traced(monkeypatch):
    """Lets the programs of sweeps be traced only; their results are ones."""

    def trace(function, program, *inputs):
        shapes = jax.eval_shape(functools.partial(function, program), *inputs)
        return jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes)

    for name in ("begin_each", "advance_each"):
        monkeypatch.setattr(programs, name, functools.partial(trace, getattr(programs, name)))
