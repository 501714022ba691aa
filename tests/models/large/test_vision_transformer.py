"""The vision transformer agrees with an evaluation in NumPy, also in parts and mapped."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_algos.core import Model
from fedjax_algos.models import vit

pytestmark = pytest.mark.usefixtures("x64")
SMALL = {"patch_size": 3, "width": 8, "depth": 2, "heads": 2}
SHAPE, KEY = (6, 9, 2), jax.random.key(0)


def random_params(problem, seed=0):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(problem.init, KEY).params
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)) / 3, shapes)


@functools.partial(jax.jit, static_argnums=(0, 3))
def logits_of(problem, params, x, training=False, key=KEY):
    return problem.apply(Model(params), {"x": x}, key, training)[0].logits


def layer_norm(x, p):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def dense(x, p):
    return x @ p["kernel"] + p["bias"]


def block(x, p, heads):
    """One image's tokens, [tokens, width], head by head."""
    query, key, value = np.split(
        dense(layer_norm(x, p["LayerNorm_0"]), p["SelfAttention_0"]["query_key_value"]), 3, -1
    )
    d, mixed = x.shape[-1] // heads, []
    for head in range(heads):
        own = slice(head * d, (head + 1) * d)
        weights = np.exp(query[:, own] @ key[:, own].T / math.sqrt(d))
        mixed.append(weights / weights.sum(-1, keepdims=True) @ value[:, own])
    x = x + dense(np.concatenate(mixed, -1), p["SelfAttention_0"]["projection"])
    hidden = dense(layer_norm(x, p["LayerNorm_1"]), p["Dense_0"])
    hidden = hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2))) / 2
    return x + dense(hidden, p["Dense_1"])


def in_numpy(image, p):
    patches = [
        image[row : row + 3, column : column + 3].ravel()
        for row in range(0, 6, 3)
        for column in range(0, 9, 3)
    ]
    tokens = dense(np.stack(patches), p["patch_embedding"])
    x = np.concatenate([p["class_token"][0], tokens]) + p["position_embedding"][0]
    for index in range(2):
        x = block(x, p[f"EncoderBlock_{index}"], heads=2)
    return dense(layer_norm(x, p["LayerNorm_0"])[0], p["head"])


def test_logits_are_those_of_an_evaluation_in_numpy():
    problem = vit(SHAPE, 5, **SMALL)
    params = random_params(problem)
    x = np.random.default_rng(1).normal(size=(2, *SHAPE))
    expected = [in_numpy(image, jax.tree.map(np.asarray, params)) for image in x]
    np.testing.assert_allclose(logits_of(problem, params, x), expected, rtol=0, atol=1e-12)


@pytest.mark.all
def test_dropout_depends_on_the_key_and_only_in_training():
    problem = vit(SHAPE, 5, **SMALL, dropout=0.5)
    params, x = random_params(problem), jnp.ones((1, *SHAPE))
    logits = {
        (training, seed): logits_of(problem, params, x, training, jax.random.key(seed))
        for training in (False, True)
        for seed in (0, 1)
    }
    without = logits_of(vit(SHAPE, 5, **SMALL), params, x)
    for seed in (0, 1):
        np.testing.assert_array_equal(logits[False, seed], without)
    assert np.abs(logits[True, 0] - logits[True, 1]).max() > 0.01


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((6, 8, 2), {}, r"images of \(6, 8\) cannot be cut into patches of 3x3; give a patch size"),
        (SHAPE, {"heads": 3}, "width=8 cannot be divided among heads=3; give a multiple"),
    ],
)
def test_sizes_that_cannot_be_divided_are_rejected(shape, options, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(vit(shape, 5, **SMALL | options).init, KEY)
