"""Local training with BatchNorm over short batches, by hand on the real rows alone."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import dispatches_of, positions, stored

import fedjax_algos as fa
from fedjax_algos.core.randomness import dispatch_keys
from fedjax_algos.models import classifier

pytestmark = pytest.mark.usefixtures("x64")

PIXELS, WIDTH, CLASSES = 9, 5, 3
MOMENTUM, EPSILON, KEPT, RATE, BATCH = 0.7, 1e-5, 0.6, 0.3, 4
COUNTS = [9, 3, 7, 5]  # in batches of 4 examples: 4 + 4 + 1, 3, 4 + 3, 4 + 1
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


@functools.partial(jax.grad, has_aux=True)
def gradient(params, x, y, dropped):
    """That of the mean cross-entropy of real rows, and their mean and variance."""
    hidden, scale, logits = params["hidden"], params["norm"], params["logits"]
    h = x @ hidden["kernel"] + hidden["bias"][None]
    mean, variance = h.mean(0), h.var(0)
    normal = (h - mean[None]) / jnp.sqrt(variance + EPSILON)[None]
    features = jax.nn.relu(normal * scale["scale"][None] + scale["bias"][None]) * dropped
    outputs = features @ logits["kernel"] + logits["bias"][None]
    losses = jax.nn.logsumexp(outputs, 1) - outputs[jnp.arange(len(y)), y]
    return losses.mean(), {"mean": mean, "var": variance}


def local_update(params, norm, client, examples):
    """A client's params and statistics after its local steps; the library says what is dropped."""
    count = len(examples["y"])
    _, key = dispatch_keys(0, client, 0)
    for k in range(EPOCHS * -(-count // BATCH)):
        rows = positions(0, client, 0, count, k, BATCH)
        dropped = dropped_features(jax.random.fold_in(key, k))[: len(rows)]
        slope, moved = jax.jit(gradient)(params, examples["x"][rows], examples["y"][rows], dropped)
        params = jax.tree.map(lambda y, g: y - RATE * g, params, slope)
        norm = {name: MOMENTUM * norm[name] + (1 - MOMENTUM) * moved[name] for name in norm}
    return params, norm


@pytest.mark.all
def test_a_round_equals_one_by_hand():
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
    engine = fa.make_engine(fa.algorithms.fedavg(problem, local), 2)
    start = fa.Model(params, {"batch_stats": {"norm": norm}})
    state = engine.init(0, fa.Population(4, 4, sum(COUNTS)), start)
    state, _ = engine.rounds(state, data, dispatches_of(data, local, [COHORT]))
    found = [state.model.params, state.model.statistics["batch_stats"]["norm"]]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
    jax.tree.map(close, found, expected)
