"""Local training with BatchNorm over short batches, by hand in NumPy: forward, backward and SGD.

Images are cropped and mirrored, and features dropped, as the run's keys say: the transcription asks
the library which pixels and which features those are, and computes everything else itself.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import fixed, positions, stored

import fedjax_algos as fa
from fedjax_algos.core.randomness import dispatch_keys
from fedjax_algos.models import (
    chain,
    classifier,
    nnx_classifier,
    preprocessed,
    random_crop,
    random_flip,
)
from fedjax_algos.participation import Cohorts

pytestmark = pytest.mark.usefixtures("x64")

SIDE, WIDTH, CLASSES = 3, 5, 3
MOMENTUM, EPSILON, KEPT, RATE, BATCH = 0.7, 1e-5, 0.6, 0.3, 4
COUNTS = [9, 3, 6, 5]  # in batches of 4 examples: 4 + 4 + 1, 3, 4 + 2, 4 + 1
SETS, EPOCHS = [(0, 1, 2, 3), (2, 0, 3, 1)], 2
AUGMENT = chain(random_crop(1), random_flip())


class Linen(nn.Module):
    """BatchNorm is called without a mask."""

    def setup(self):
        self.hidden, self.logits = nn.Dense(WIDTH), nn.Dense(CLASSES)
        self.norm, self.dropout = nn.BatchNorm(momentum=MOMENTUM), nn.Dropout(1 - KEPT)

    def drop(self, x):
        return self.dropout(x, deterministic=False)

    def __call__(self, x, training=False):
        x = self.norm(self.hidden(x.reshape(len(x), -1)), not training)
        return self.logits(self.dropout(nn.relu(x), deterministic=not training))


class Nnx(nnx.Module):
    """BatchNorm is called without a mask."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(SIDE * SIDE, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, momentum=MOMENTUM, rngs=rngs)
        self.dropout = nnx.Dropout(1 - KEPT, rngs=rngs)
        self.logits = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x):
        x = self.norm(self.hidden(x.reshape(len(x), -1)))
        return self.logits(self.dropout(nnx.relu(x)))


@jax.jit
def augment(images, key):
    return AUGMENT(images, key, True)


@jax.jit
def linen_dropped(key):
    ones = jnp.ones((BATCH, WIDTH))
    return Linen().apply({}, ones, method="drop", rngs={"dropout": key})


@jax.jit
def nnx_dropped(key):
    module = Nnx(nnx.Rngs(key))
    module.train()
    return module.dropout(jnp.ones((BATCH, WIDTH)))


class Net(NamedTuple):
    problem: fa.Problem
    dropped: Any  # key -> float[batch, width]: 1 / KEPT where a feature is kept, and else 0


NETS = {
    "linen": Net(classifier(Linen(), (SIDE, SIDE, 1)), linen_dropped),
    "nnx": Net(nnx_classifier(Nnx), nnx_dropped),
}


def initial(name):
    """A model of float64, with statistics that are neither 0 nor 1."""
    rng = np.random.default_rng(3)
    shapes = jax.eval_shape(NETS[name].problem.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: 0.4 * rng.normal(size=leaf.shape), shapes.params)
    params["norm"]["scale"] += 1
    statistics = jax.tree.map(lambda leaf: rng.uniform(0.5, 2, leaf.shape), shapes.statistics)
    return fa.Model(params, statistics)


def step(params, norm, x, y, dropped):
    """One step of SGD on real rows alone: the new params, mean and variance."""
    x, n = x.reshape(len(x), -1), len(x)
    hidden, scale, logits = params["hidden"], params["norm"], params["logits"]
    h = x @ hidden["kernel"] + hidden["bias"]
    mean, variance = h.mean(0), h.var(0)
    root = np.sqrt(variance + EPSILON)
    normal = (h - mean) / root
    z = normal * scale["scale"] + scale["bias"]
    features = np.maximum(z, 0) * dropped
    outputs = features @ logits["kernel"] + logits["bias"]
    p = np.exp(outputs - outputs.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    d_outputs = (p - np.eye(CLASSES)[y]) / n  # of the mean cross-entropy
    d_z = d_outputs @ logits["kernel"].T * dropped * (z > 0)
    d_normal = d_z * scale["scale"]
    centred = d_normal - d_normal.mean(0) - normal * (d_normal * normal).mean(0)
    d_h = centred / root
    gradient = {
        "hidden": {"kernel": x.T @ d_h, "bias": d_h.sum(0)},
        "norm": {"scale": (d_z * normal).sum(0), "bias": d_z.sum(0)},
        "logits": {"kernel": features.T @ d_outputs, "bias": d_outputs.sum(0)},
    }
    new = jax.tree.map(lambda y, g: y - RATE * g, params, gradient)
    moved = {"mean": mean, "var": variance}
    return new, {k: MOMENTUM * norm[k] + (1 - MOMENTUM) * moved[k] for k in norm}


def local_update(name, model, client, number, examples):
    """A client's model after its local steps, by hand."""
    params, norm = model.params, jax.tree.leaves(model.statistics)
    norm = dict(zip(("mean", "var"), norm, strict=True))
    count = len(examples["y"])
    _, key = dispatch_keys(0, client, number)
    for k in range(EPOCHS * -(-count // BATCH)):
        rows = positions(0, client, number, count, k, BATCH)
        augment_key, key_of_model = jax.random.split(jax.random.fold_in(key, k))
        x = np.asarray(augment(jnp.asarray(examples["x"][rows]), augment_key))
        dropped = np.asarray(NETS[name].dropped(key_of_model))[: len(rows)]
        params, norm = step(params, norm, x, examples["y"][rows], dropped)
    return params, norm


@functools.cache
def clients():
    rng = np.random.default_rng(0)
    return [
        {"x": 2 + rng.normal(size=(n, SIDE, SIDE, 1)), "y": rng.integers(0, CLASSES, n)}
        for n in COUNTS
    ]


def weighted(shares, *leaves):
    return np.tensordot(shares, np.stack(leaves), 1)


@functools.cache
def by_hand(name):
    """FedAvg: the mean of params by examples, and that of the statistics."""
    model, numbers = initial(name), [0] * len(COUNTS)
    for cohort in SETS:
        updates = []
        for i in cohort:
            updates.append(local_update(name, model, i, numbers[i], clients()[i]))
            numbers[i] += 1
        shares = np.array([COUNTS[i] for i in cohort]) / sum(COUNTS[i] for i in cohort)
        params, norms = zip(*updates, strict=True)
        mean = jax.tree.map(functools.partial(weighted, shares), *params)
        norm = jax.tree.map(lambda *leaves: np.mean(leaves, 0), *norms)
        structure = jax.tree.structure(model.statistics)
        model = fa.Model(mean, jax.tree.unflatten(structure, jax.tree.leaves(norm)))
    return model


@pytest.mark.parametrize(("name", "layout"), [("linen", 2), ("nnx", "sequential")])
def test_rounds_equal_those_by_hand(name, layout):
    problem = preprocessed(NETS[name].problem, AUGMENT)
    data = stored([{"x": c["x"], "y": c["y"].astype(np.int32)} for c in clients()])
    local = fa.Local(BATCH, RATE, epochs=EPOCHS)
    engine = fa.make_engine(fa.algorithms.fedavg(problem, local), layout)
    cohorts = Cohorts(data.counts(), local, cohort_size=4, seed=0, sampler=fixed(SETS))
    state = engine.init(0, fa.Population(4, 4, sum(COUNTS)), initial(name))
    state, _ = engine.rounds(state, data, cohorts.dispatches(len(SETS)))
    expected = by_hand(name)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
    jax.tree.map(close, state.model[:2], expected[:2])
