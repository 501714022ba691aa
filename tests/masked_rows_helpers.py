"""Modules with BatchNorm, and batches of which some rows are masked."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedjax_algos.models import classifier, nnx_classifier

KEY = jax.random.key(0)
REAL = 4  # of six rows


def rows(mask):
    return None if mask is None else mask[:, None]


def nnx_norm(rngs):
    return nnx.BatchNorm(3, momentum=0.5, rngs=rngs)


class NnxPlain(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx_norm(rngs)
        self.dense = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.norm(x))


class LinenPlain(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        return nn.Dense(2)(nn.BatchNorm(not training, momentum=0.5)(x))


def problem_of(module):
    return nnx_classifier(module) if issubclass(module, nnx.Module) else classifier(module(), (3,))


def batches():
    """A batch with two masked rows, and its real rows alone."""
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    x[REAL:] += 50
    short = {"x": jnp.asarray(x), "mask": jnp.arange(6) < REAL}
    return short, {"x": short["x"][:REAL], "mask": jnp.ones(REAL, bool)}


def only_real_rows(problem):
    """Whether the statistics are the same whatever the masked rows are."""
    model = problem.init(KEY)
    (short, _), found = batches(), []
    for x in (short["x"], short["x"].at[REAL:].set(7.0)):
        found.append(problem.apply(model, short | {"x": x}, KEY, True)[1])
    return jax.tree.all(jax.tree.map(lambda one, other: bool((one == other).all()), *found))
