"""A regression, its gradients in NumPy, and comparisons of histories; naive_rounds.py runs them."""

import functools
from typing import Any, NamedTuple

import chex
import jax.numpy as jnp
import numpy as np
from helpers import Toy, stored

import fedjax_algos as fa
from fedjax_algos.models.outputs import Outputs

# Three of six clients in a round, so chunks of two need padding; the clients' gaps differ.
SETS = ((0, 1, 2), (3, 2, 5), (1, 4, 0), (5, 3, 1), (2, 0, 4), (4, 1, 5))
COUNTS = (5, 1, 8, 3, 2, 4)
RATE = 0.1
START = {"slope": np.array([0.5, -0.8]), "offset": np.array(0.3)}


class Snapshot(NamedTuple):
    """The server state and the table of client states after a round."""

    server: Any
    clients: Any


@functools.cache
def regression():
    """Linear regression with an offset; the loss is half the squared error."""
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(n, 2)), "y": rng.normal(size=n)} for n in COUNTS]

    def apply(model, batch, key, training):
        features = batch["x"] * model.params["slope"][None]
        return Outputs(features.sum(1) + model.params["offset"], features), ()

    problem = fa.Problem(
        init=lambda key: fa.Model({n: jnp.asarray(x, float) for n, x in START.items()}),
        apply=apply,
        loss=lambda outputs, batch: 0.5 * (outputs.logits - batch["y"]) ** 2,
    )
    return Toy(problem, stored(clients), clients)


def gradient(params, client):
    """The mean gradient over all examples of a client, in NumPy."""
    x, y = regression().clients[client].values()
    error = x @ params["slope"] + params["offset"] - y
    return {"slope": error @ x / len(y), "offset": error.mean()}


def combine(function, *trees):
    return {name: function(*(tree[name] for tree in trees)) for name in START}


def local_models(params, client, steps, rate=RATE, correct=lambda g, y: g):
    """The local models y_0 to y_J of a client, in NumPy."""
    models = [params]
    for _ in range(steps):
        g = correct(gradient(models[-1], client), models[-1])
        models.append(combine(lambda y, g: y - rate * g, models[-1], g))
    return models


def models(snapshots):
    return [snapshot.server.params for snapshot in snapshots]


def assert_same(left, right, atol=1e-13):
    """Checks that the models of all rounds are equal, or any lists of trees."""
    left, right = (models(h) if isinstance(h[0], Snapshot) else h for h in (left, right))
    chex.assert_trees_all_close(left, right, rtol=0, atol=atol)


def assert_differ(left, right, least=1e-3):
    """Checks that the last models differ by at least `least` in some entry."""
    gaps = combine(lambda a, b: np.abs(a - b).max(), models(left)[-1], models(right)[-1])
    assert max(gaps.values()) > least
