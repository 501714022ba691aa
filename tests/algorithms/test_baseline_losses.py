"""Baselines whose loss or weights read more than one output, against loops in NumPy.

Their gradients are imaginary parts: f'(p) = Im f(p + ih) / h, which has no error of differences.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import dispatches_of
from naive_rounds import Naive

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.models.outputs import Outputs

pytestmark = pytest.mark.usefixtures("x64")

RNG = np.random.default_rng(0)
COUNTS, SETS = (5, 3, 7), ((0, 1), (1, 2), (0, 1), (0, 2))
X = [RNG.normal(size=(n, 2)) for n in COUNTS]
Y = [np.array([0, 0, 0, 1, 0]), np.array([2, 2, 1]), np.array([0, 1, 2, 2, 2, 1, 2])]
START, RATE, STEPS = RNG.normal(size=15), 0.2, 3


def model(p, i):
    """The features and the logits of a client's examples."""
    z = np.tanh(X[i] @ p[:6].reshape(2, 3))
    return z, z @ p[6:].reshape(3, 3)


def cross_entropy(logits, labels):
    chosen = logits[np.arange(len(labels)), labels]
    return np.log(np.exp(logits).sum(1)) - chosen


def gradient(f, p):
    return np.array([f(p + 1e-30j * e).imag / 1e-30 for e in np.eye(len(p))])


def plain(p, i, x, last):
    return cross_entropy(model(p, i)[1], Y[i]).mean()


def moon(p, i, x, last):
    def cosine(a, b):
        return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))

    z, of_x, of_last = (model(each, i)[0] for each in (p, x, last))
    gap = (cosine(z, of_last) - cosine(z, of_x)) / 0.4
    return plain(p, i, x, last) + 2 * np.log(1 + np.exp(gap)).mean()


def fedntd(p, i, x, last):
    total = 0
    for own, received, label in zip(model(p, i)[1], model(x, i)[1], Y[i], strict=True):
        q, t = (np.exp(np.delete(each, label) / 2) for each in (own, received))
        q, t = q / q.sum(), t / t.sum()
        total = total + 4 * (t * np.log(t / q)).sum()
    return plain(p, i, x, last) + 0.7 * total / len(Y[i])


def fedlc(p, i, x, last):
    counts = np.bincount(Y[i], minlength=3)
    present = np.flatnonzero(counts)
    logits = model(p, i)[1][:, present] - 0.6 * counts[present] ** -0.25
    return cross_entropy(logits, np.searchsorted(present, Y[i])).mean()


def feddecorr(p, i, x, last):
    z = model(p, i)[0]
    z = z - z.mean(0)
    z = z / np.sqrt((z * z).sum(0) / (len(z) - 1) + 1e-8)
    products = z.T @ z
    others = sum(products[j, k] ** 2 for j in range(3) for k in range(3) if j != k)
    return plain(p, i, x, last) + 0.3 * others / 6 / len(z)


def examples_weights(cohort):
    return np.array([COUNTS[i] for i in cohort]) / sum(COUNTS[i] for i in cohort)


def disco(cohort):
    labels = [np.bincount(Y[i], minlength=3) / COUNTS[i] for i in cohort]
    d = np.array([sum(p * np.log(3 * p) for p in each if p) for each in labels])
    weights = np.maximum(examples_weights(cohort) - 0.8 * d / d.sum() + 0.1, 0)
    return weights / weights.sum()


def looped(objective, weights):
    x, last = START, dict.fromkeys(range(3), START)
    for cohort in SETS:
        ends = []
        for i in cohort:
            y = x
            for _ in range(STEPS):
                y = y - RATE * gradient(functools.partial(objective, i=i, x=x, last=last[i]), y)
            ends.append(y)
        last |= dict(zip(cohort, ends, strict=True))
        x = weights(cohort) @ np.array(ends)
        yield x


def problem():
    def apply(model, batch, key, training):
        z = jnp.tanh(batch["x"] @ model.params["in"])
        return Outputs(z @ model.params["out"], z), ()

    def loss(outputs, batch):
        logits = outputs.logits
        chosen = jnp.take_along_axis(logits, batch["y"][:, None], 1)[:, 0]
        return jnp.log(jnp.exp(logits).sum(1)) - chosen

    params = {"in": jnp.array(START[:6].reshape(2, 3)), "out": jnp.array(START[6:].reshape(3, 3))}
    return fa.Problem(lambda key: fa.Model(params), apply, loss)


@pytest.mark.parametrize(
    ("spec", "objective", "weights"),
    [
        ("fedavg", plain, examples_weights),
        ("moon:mu=2,tau=0.4", moon, examples_weights),
        ("fedntd:beta=0.7,tau=2", fedntd, examples_weights),
        ("fedlc:tau=0.6", fedlc, examples_weights),
        ("feddecorr:beta=0.3", feddecorr, examples_weights),
        ("feddisco:a=0.8", plain, disco),
    ],
)
def test_rounds_are_those_of_numpy(spec, objective, weights):
    """The pieces of the examples have paddings: batches of 8 are larger than all clients."""
    examples = {"x": np.concatenate(X), "y": np.concatenate(Y)}
    data = fa.federate(examples, fa.Partition.of(np.split(np.arange(15), np.cumsum(COUNTS)[:-1])))
    local = fa.Local(8, RATE, steps=STEPS, batches="full")
    naive = Naive(algorithms.make(spec, problem(), local))
    history = naive.rounds(data, dispatches_of(data, local, SETS), fa.Population(3, 2, 15))
    found = [np.concatenate([np.ravel(h.server.params[n]) for n in ("in", "out")]) for h in history]
    np.testing.assert_allclose(found, [*looped(objective, weights)], rtol=0, atol=1e-12)
