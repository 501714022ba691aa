"""Local training with BatchNorm over short batches, by hand in NumPy: forward, backward and SGD.

Features are dropped as the run's keys say: the transcription asks the library which those are, and
computes everything else itself.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import fixed, positions, stored
from model_kinds import in_all, nightly

import fedjax_algos as fa
from fedjax_algos.core.randomness import dispatch_keys
from fedjax_algos.models import classifier
from fedjax_algos.participation import Cohorts

pytestmark = pytest.mark.usefixtures("x64")

PIXELS, WIDTH, CLASSES = 9, 5, 3
MOMENTUM, EPSILON, KEPT, RATE, BATCH = 0.7, 1e-5, 0.6, 0.3, 4
COUNTS = [9, 3, 6, 5]  # in batches of 4 examples: 4 + 4 + 1, 3, 4 + 2, 4 + 1
COHORT, EPOCHS = [2, 0, 3, 1], 2


class Network(nn.Module):
    """BatchNorm is called without a mask."""

    def setup(self):
        self.hidden, self.logits = nn.Dense(WIDTH), nn.Dense(CLASSES)
        self.norm, self.dropout = nn.BatchNorm(momentum=MOMENTUM), nn.Dropout(1 - KEPT)

    def drop(self, x):
        return self.dropout(x, deterministic=False)

    def __call__(self, x, training=False):
        x = self.norm(self.hidden(x), not training)
        return self.logits(self.dropout(nn.relu(x), deterministic=not training))


@jax.jit
def dropped_features(key):
    """float[batch, width]: 1 / KEPT where a feature is kept, and else 0."""
    ones = jnp.ones((BATCH, WIDTH))
    return Network().apply({}, ones, method="drop", rngs={"dropout": key})


def step(params, norm, x, y, dropped):
    """One step of SGD on real rows alone: the new params, mean and variance."""
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
    d_outputs = (p - np.eye(CLASSES)[y]) / len(x)  # of the mean cross-entropy
    d_z = d_outputs @ logits["kernel"].T * dropped * (z > 0)
    d_normal = d_z * scale["scale"]
    d_h = (d_normal - d_normal.mean(0) - normal * (d_normal * normal).mean(0)) / root
    gradient = {
        "hidden": {"kernel": x.T @ d_h, "bias": d_h.sum(0)},
        "norm": {"scale": (d_z * normal).sum(0), "bias": d_z.sum(0)},
        "logits": {"kernel": features.T @ d_outputs, "bias": d_outputs.sum(0)},
    }
    new = jax.tree.map(lambda y, g: y - RATE * g, params, gradient)
    moved = {"mean": mean, "var": variance}
    return new, {k: MOMENTUM * norm[k] + (1 - MOMENTUM) * moved[k] for k in norm}


def local_update(params, norm, client, examples):
    """A client's params and statistics after its local steps, by hand."""
    count = len(examples["y"])
    _, key = dispatch_keys(0, client, 0)
    for k in range(EPOCHS * -(-count // BATCH)):
        rows = positions(0, client, 0, count, k, BATCH)
        dropped = np.asarray(dropped_features(jax.random.fold_in(key, k)))[: len(rows)]
        params, norm = step(params, norm, examples["x"][rows], examples["y"][rows], dropped)
    return params, norm


@pytest.mark.parametrize("layout", [*in_all(2), *nightly("sequential")])
def test_a_round_equals_one_by_hand(layout):
    """FedAvg: the mean of params by examples, and the plain mean of the statistics."""
    rng = np.random.default_rng(0)
    clients = [
        {"x": 2 + rng.normal(size=(n, PIXELS)), "y": rng.integers(0, CLASSES, n, np.int32)}
        for n in COUNTS
    ]
    problem, data = classifier(Network(), (PIXELS,)), stored(clients)
    # a model of float64, with statistics that are neither 0 nor 1
    shapes = jax.eval_shape(problem.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: 0.4 * rng.normal(size=leaf.shape), shapes.params)
    params["norm"]["scale"] += 1
    norm = {"mean": rng.normal(size=WIDTH), "var": rng.uniform(0.5, 2, WIDTH)}
    updates = [local_update(params, norm, i, clients[i]) for i in COHORT]
    weights, (models, norms) = [COUNTS[i] for i in COHORT], zip(*updates, strict=True)
    expected = [
        jax.tree.map(lambda *each: np.average(each, 0, weights), *models),
        jax.tree.map(lambda *each: np.mean(each, 0), *norms),
    ]
    local = fa.Local(BATCH, RATE, epochs=EPOCHS)
    engine = fa.make_engine(fa.algorithms.fedavg(problem, local), layout)
    cohorts = Cohorts(data.counts(), local, cohort_size=4, seed=0, sampler=fixed([COHORT]))
    start = fa.Model(params, {"batch_stats": {"norm": norm}})
    state = engine.init(0, fa.Population(4, 4, sum(COUNTS)), start)
    state, _ = engine.rounds(state, data, cohorts.dispatches(1))
    found = [state.model.params, state.model.statistics["batch_stats"]["norm"]]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
    jax.tree.map(close, found, expected)
