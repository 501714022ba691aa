"""Gradients that are computed in parts: a part of the model twice, or of a batch after another."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers import small_network
from model_kinds import KINDS, PHOTO, in_all, model_of_kind, nightly

import fedjax_algos as fa
from fedjax_algos.core.local_steps import batch_gradient
from fedjax_algos.models import classifier, models, nnx_classifier, rematerialise
from fedjax_algos.models.large.residual import ResidualNetwork

X64 = pytest.mark.usefixtures("x64")


def batch_of(name, shape, dtype=float, rows=4):
    """Codes of texts if the dtype is int32, else floats."""
    labels = (rows, *shape) if "unet" in name else (rows,)
    codes, y = (np.random.default_rng(0).integers(0, 10, n) for n in ((rows, *shape), labels))
    return {"x": jnp.asarray(codes if dtype == np.int32 else codes / 10), "y": jnp.asarray(y)}


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
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(6, 5, rngs=rngs), nnx.Linear(5, 10, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(jnp.tanh(self.norm(self.first(x)))))


OTHERS = in_all(("blocks", *PHOTO)) + nightly(*(kind for kind in KINDS if kind[0] != "blocks"))


@X64
@pytest.mark.parametrize(("name", "shape", "dtype"), [("nnx", (6,), np.float64), *OTHERS])
def test_every_kind_of_model_has_the_same_gradients(name, shape, dtype):
    """Statistics and losses, too, with a mask and dropout; the random numbers are the same."""
    problem = nnx_classifier(Nnx) if name == "nnx" else model_of_kind(name, shape)
    batch = batch_of(name, shape, dtype)
    expected, found = (gradient_of(each, batch) for each in (problem, rematerialise(problem)))
    chex.assert_trees_all_close(found, expected, rtol=1e-9, atol=1e-11)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected[0])) > 1e-3


@pytest.mark.nightly
def test_programs_need_less_memory(optimised):
    shape = (16, 16, 3)
    for problem in (
        models.make("vit:patch_size=4,width=32,depth=4,heads=2", shape, 10),
        classifier(ResidualNetwork((4, 8), (2, 2), 10, "A", "group", 2, "auto"), shape),
    ):
        batch = batch_of("", shape, rows=32)
        before, after = (temporary_bytes(each, batch) for each in (problem, rematerialise(problem)))
        assert after < 0.55 * before
    problem, batch = models.make("cnn_fedgbo", shape, 10), batch_of("", shape, rows=64)
    assert temporary_bytes(problem, batch, pieces=8) < 0.4 * temporary_bytes(problem, batch)


@X64
@pytest.mark.all
def test_gradients_are_mapped_and_differentiated():
    """Reverse mode goes through local steps."""
    toy = small_network()
    params = toy.problem.init(jax.random.key(0)).params
    clients = [jax.tree.map(lambda rows: rows[:3], toy.clients[n]) for n in (0, 3)]
    batches = jax.tree.map(lambda *rows: np.stack(rows), *clients)

    def second(problem):
        def norm(params, batch):
            given = fa.Model(params), batch, jnp.ones(3, bool), jax.random.key(1)
            return optax.tree.norm(batch_gradient(problem)(*given)[0])

        return jax.jit(jax.vmap(jax.value_and_grad(norm), (None, 0)))(params, batches)

    expected, found = map(second, (toy.problem, rematerialise(toy.problem)))
    chex.assert_trees_all_close(found, expected, rtol=1e-10)


@X64
def test_forward_mode_is_refused():
    problem, key = rematerialise(small_network().problem), jax.random.key(0)
    batch, params = {"x": jnp.ones((2, 3)), "y": jnp.ones(2)}, problem.init(key).params
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda y: problem.apply(fa.Model(y), batch, key, True)[0], (params,), (params,))


@X64
@pytest.mark.parametrize("pieces", [4, *in_all(2)])
def test_accumulated_gradients_are_those_of_the_batch(pieces):
    """The last row is masked, so one piece counts less, and with four pieces one is empty."""
    problem, batch = models.make("mlp:hidden=5", (6,), 10), batch_of("", (6,))
    expected = gradient_of(problem, batch)
    found = gradient_of(problem, batch, pieces=pieces)
    chex.assert_trees_all_close(found, expected, rtol=1e-10, atol=1e-15)
