"""Gradients that are computed in parts: a part of the model twice, or of a batch after another."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers import dispatches_of, small_network
from model_kinds import KINDS, model_of_kind

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis.costs import count_flops
from fedjax_algos.core.local_training import batch_gradient
from fedjax_algos.models import classifier, models, nnx_classifier, rematerialise
from fedjax_algos.models.large.residual import ResidualNetwork

X64 = pytest.mark.usefixtures("x64")
ROWS = 4


def batch_of(name, shape, dtype=float, rows=ROWS):
    """Codes of texts if the dtype is int32, else floats."""
    rng = np.random.default_rng(0)
    labels = (rows, *shape) if "unet" in name else (rows,)
    codes = rng.integers(0, 10, (rows, *shape), np.int32)
    x = codes if dtype == np.int32 else codes / 10
    return {"x": jnp.asarray(x), "y": jnp.asarray(rng.integers(0, 10, labels), jnp.int32)}


def gradient_of(problem, batch, **options):
    """The gradient, statistics and loss of a batch, of which the last row is masked."""
    model = jax.tree.map(lambda leaf: leaf.astype(float), problem.init(jax.random.key(1)))
    mask = jnp.arange(len(batch["x"])) < len(batch["x"]) - 1
    return jax.jit(batch_gradient(problem, **options))(model, batch, mask, jax.random.key(2))


def temporary_bytes(problem, batch, **options):
    given = jax.eval_shape(problem.init, jax.random.key(0)), batch, jnp.ones(len(batch["x"]), bool)
    lowered = jax.jit(batch_gradient(problem, **options)).lower(*given, jax.random.key(0))
    return lowered.compile().memory_analysis().temp_size_in_bytes


class Nnx(nnx.Module):
    """Dropout and a BatchNorm in NNX."""

    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(6, 5, rngs=rngs), nnx.Linear(5, 10, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(jnp.tanh(self.norm(self.first(x)))))


@X64
@pytest.mark.all
@pytest.mark.parametrize(("name", "shape", "dtype"), [*KINDS, ("nnx", (6,), np.float64)])
def test_every_kind_of_model_has_the_same_gradients(name, shape, dtype):
    """Statistics and losses, too, with a mask and dropout; the random numbers are the same."""
    problem = nnx_classifier(Nnx) if name == "nnx" else model_of_kind(name, shape)
    batch = batch_of(name, shape, dtype)
    expected, found = (gradient_of(each, batch) for each in (problem, rematerialise(problem)))
    chex.assert_trees_all_close(found, expected, rtol=1e-9, atol=1e-11)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected[0])) > 1e-3


DEEP = {
    "transformer": models.make("vit:patch_size=4,width=32,depth=4,heads=2", (16, 16, 3), 10),
    "residual": classifier(
        ResidualNetwork((4, 8), (2, 2), 10, "A", "group", 2, "auto"), (16, 16, 3)
    ),
}


@pytest.mark.all
@pytest.mark.parametrize("problem", DEEP.values(), ids=DEEP)
def test_the_program_needs_less_memory(problem, optimised):
    batch = batch_of("", (16, 16, 3), rows=32)
    before, after = (temporary_bytes(each, batch) for each in (problem, rematerialise(problem)))
    assert after < 0.55 * before


@X64
def test_rounds_that_are_mapped_differentiated_and_counted(optimised):
    """Reverse mode goes through whole rounds; a forward pass more is counted."""
    toy, ends, flops = small_network(), [], []
    sets = [(0, 2), (3, 1)]
    for problem in (toy.problem, rematerialise(toy.problem)):
        local = fa.differentiable(fa.Local(3, 0.1, steps=2), toy.data.counts())
        algorithm = algorithms["scaffold"](problem, local)
        dispatches = dispatches_of(toy.data, local, sets)
        round_fn, population = fa.pure_round(algorithm, "vmapped"), fa.Population(4, 2, 17)

        def end(scale, round_fn=round_fn, population=population, dispatches=dispatches):
            rates = scale * dispatches.learning_rate
            step = functools.partial(lambda f, state, of: f(state, toy.data, of), round_fn)
            start = round_fn.init(0, population)
            state, _ = jax.lax.scan(step, start, dispatches._replace(learning_rate=rates))
            return optax.tree.norm(state.server.params)

        ends.append(jax.jit(jax.value_and_grad(end))(1.0))
        start = jax.eval_shape(lambda f=round_fn, p=population: f.init(0, p))
        flops.append(count_flops(algorithm, start, toy.data).of(dispatches).sum())
    chex.assert_trees_all_close(*ends, rtol=1e-10)
    assert flops[0] < flops[1] < 1.5 * flops[0]


@X64
def test_forward_mode_is_refused():
    problem = rematerialise(small_network().problem)
    batch = {"x": jnp.ones((2, 3)), "y": jnp.ones(2)}
    params, key = problem.init(jax.random.key(0)).params, jax.random.key(0)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda y: problem.apply(fa.Model(y), batch, key, True)[0], (params,), (params,))


@X64
@pytest.mark.parametrize("pieces", [2, 4])
def test_accumulated_gradients_are_those_of_the_batch(pieces):
    """The last row is masked, so one piece counts less, and with four pieces one is empty."""
    problem, batch = models.make("cnn_fedgbo", (16, 16, 3), 10), batch_of("", (16, 16, 3))
    expected = gradient_of(problem, batch)
    found = gradient_of(problem, batch, pieces=pieces)
    chex.assert_trees_all_close(found, expected, rtol=1e-10, atol=1e-15)


@pytest.mark.all
def test_accumulation_needs_less_memory(optimised):
    shape = (16, 16, 3)
    problem, batch = models.make("cnn_fedgbo", shape, 10), batch_of("", shape, rows=64)
    assert temporary_bytes(problem, batch, pieces=8) < 0.4 * temporary_bytes(problem, batch)
