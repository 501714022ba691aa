"""Every algorithm against NumPy code, in settings that no golden value covers."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import Case, Toy, positions, quadratics, run, stored
from transcriptions import RULES, transcription

import fedjax_algos as fa
from fedjax_algos.core.randomness import client_key

pytestmark = pytest.mark.usefixtures("x64")

SETS = [(0, 1), (1, 2), (0, 2), (0, 1), (1, 2)]
STEPS, FULL, BATCH, SEED, DECAY = (2, 5, 3), 5, 2, 3, 0.3
U, E = {"weighting": "uniform"}, {"weighting": "examples"}
HALF = {"server_learning_rate": 0.5}


def rate(round_number):
    return 0.1 * 0.9**round_number


MINIBATCHES = [
    Case("fedavg", {}),
    Case("fedprox", {"mu": 0.5}),
    Case("fedavgm", {"beta": 0.8, **HALF}),
    Case("fedgbo", {"optimizer": "adam", "upload": "gradient", **E, **HALF}),
    Case("mfl", {"optimizer": "adam", "beta": 0.8, **E, **HALF}),
    Case("mimelite", {"optimizer": "adam", "beta": 0.8, **E, **HALF}),
    Case("mimexlite", {"optimizer": "adam", "beta": 0.8, **E, **HALF}),
    Case("mimelitemom", {"beta": 0.8, **E, **HALF}),
    Case("mime", {**E, **HALF}),
    Case("mimemom", {"beta": 0.8, **E, **HALF}),
    Case("fedlga", {"mode": "outer", "strength": -0.7, **HALF}),
    Case("fednova", {"momentum": 0.5, **HALF}),
    Case("qfedavg", {"q": 2.5}),
    Case("scaffold", {**E, **HALF}),
    Case("feddyn", {"alpha": 0.3}),
    Case("adabest", {"mu": 0.4, "beta": 0.7}),
    Case("fedcm", {"alpha": 0.3, **HALF}),
    Case("ghbm", {"tau": 2, "beta": 0.8, **HALF}),
    Case("localghbm", {"beta": 0.8, **HALF}),
    Case("fedhbm", {"beta": 0.8, **HALF}),
]
FULL_BATCHES = [  # the gradient of all examples in every step; other settings are in test_goldens
    Case("fedadam", {}),
    Case("fedyogi", {"initial_v": 1.0, **U}),
    Case("fedadagrad", {}),
    Case("fedrmsprop", {}),
    Case("fedgbo", {"optimizer": "rmsprop"}),
    Case("fedgbo", {"optimizer": "sgdm", "upload": "both"}),
    Case("fedlga", {"mode": "diag", "fallback": "max"}),
    Case("fedlga", {"mode": "update", "strength": -20.0}),
    Case("fedlga", {"mode": "outer", "clip": True, "fallback": "max", "strength": 3.0}),
    Case("fedlga", {"mode": "update", "clip": True, "strength": 400.0}),
    Case("fednova", {"mu": 0.6, **U}),
    Case("fednova", {"momentum": 0.5, "mu": 0.6}),
    Case("qfedavg", {"q": 0.5}),
    Case("ghbm", {"tau": 4}),
    Case("ghbm", {"tau": 2, "beta": 0.8, "nesterov": True, **HALF}),
    Case("fedadc", {"beta": 0.8, **HALF}),
    Case("localghbm", {"scale": "gap", **U}),
    Case("fedhbm", {"first": "shared", **U}),
    Case("fedhbm", {"first": "pretrained"}),
]


def assert_transcribed(case, batches, toy=None, params=None, **known):
    a, b = [[1.0], [2.0, 0.7, 1.4], [0.5, 0.9]], [[1.0], [-1.0, 0.3, 2.0], [3.0, -0.4]]
    toy = toy or quadratics(a, b)
    decay = optax.add_decayed_weights(DECAY)
    local = fa.Local(BATCH, rate, steps=FULL, transform=decay, batches=batches)
    algorithm = case.build(toy.problem, local)
    options = {"layout": 2, "seed": SEED, "num_steps": STEPS, "params": params}
    history = run(algorithm, toy.data, SETS, **options)
    setting = case.name, {**case.hyperparameters, **known}, toy.clients, SETS, STEPS
    options = {"batch_size": None if batches == "full" else BATCH, "rate": rate, "decay": DECAY}
    expected = transcription(*setting, seed=SEED, full_steps=FULL, **options)
    np.testing.assert_allclose([float(p["x"]) for p in history], expected, rtol=0, atol=1e-12)


@pytest.mark.all
@pytest.mark.parametrize("case", MINIBATCHES, ids=str)
def test_minibatches(case):
    assert_transcribed(case, "short")


@pytest.mark.all
@pytest.mark.parametrize("case", FULL_BATCHES, ids=str)
def test_full_batches(case):
    assert_transcribed(case, "full")


def test_every_transcription_is_compared():
    assert {case.name for case in MINIBATCHES + FULL_BATCHES} == set(RULES)


def test_fedhbm_from_random_models():
    """The anchor at a first dispatch is the problem's initialisation with the client's key."""
    toy = quadratics([[1.0], [2.0, 0.7], [0.5]], [[1.0], [-1.0, 0.3], [3.0]])
    problem = toy.problem._replace(
        init=lambda key: fa.Model({"x": jax.random.normal(key, dtype=float)})
    )
    anchors = [float(problem.init(client_key(SEED, i)).params["x"]) for i in range(3)]
    assert len(set(anchors)) == 3
    case = Case("fedhbm", {"first": "random"})
    start = {"x": jnp.asarray(0.5, float)}
    assert_transcribed(case, "full", toy._replace(problem=problem), start, anchors=anchors)


class Hidden(NamedTuple):
    prediction: jax.Array
    features: jax.Array


def hidden_network():
    """A network whose hidden layer is its features, and its initial params in NumPy."""
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)} for n in (1, 3, 2)]
    start = {"w": rng.normal(size=(3, 4)), "b": rng.normal(size=4), "out": rng.normal(size=4)}

    def apply(model, batch, key, training):
        del key, training
        hidden = jnp.tanh(batch["x"] @ model.params["w"] + model.params["b"][None])
        return Hidden(hidden @ model.params["out"], hidden), ()

    problem = fa.Problem(
        init=lambda key: fa.Model(jax.tree.map(jnp.asarray, start)),
        apply=apply,
        loss=lambda outputs, batch: (outputs.prediction - batch["y"]) ** 2,
    )
    return Toy(problem, stored(clients), clients), start


def fedmax_gradient(params, x, y, beta):
    """The gradient of the mean of (h . out - y)^2 + beta KL(U || softmax(h)), by the chain rule."""
    hidden = np.tanh(x @ params["w"] + params["b"])
    error = 2 * (hidden @ params["out"] - y)[:, None] / len(x)
    softmax = np.exp(hidden) / np.exp(hidden).sum(1, keepdims=True)
    to_hidden = error * params["out"] + beta * (softmax - 1 / hidden.shape[1]) / len(x)
    inner = to_hidden * (1 - hidden**2)
    return {"w": x.T @ inner, "b": inner.sum(0), "out": hidden.T @ error[:, 0]}


def fedmax_in_numpy(start, clients, *, beta, eta, uniform):
    x, dispatches, history = start, [0] * len(clients), []
    for t, cohort in enumerate(SETS):
        total, weights = jax.tree.map(np.zeros_like, x), 0.0
        for i in cohort:
            y, examples = x, clients[i]
            n = len(examples["y"])
            for k in range(STEPS[i]):
                rows = positions(SEED, i, dispatches[i], n, k, BATCH)
                g = fedmax_gradient(y, examples["x"][rows], examples["y"][rows], beta)
                y = {name: y[name] - rate(t) * (g[name] + DECAY * y[name]) for name in y}
            weight = 1.0 if uniform else n
            total = {name: total[name] + weight * (x[name] - y[name]) for name in x}
            weights, dispatches[i] = weights + weight, dispatches[i] + 1
        x = {name: x[name] - eta / weights * total[name] for name in x}
        history.append(x)
    return history


@pytest.mark.parametrize("features", ["default", "chosen"])
def test_fedmax(features):
    """With the defaults, and with all options; the mean of the divergence is over real examples."""
    toy, start = hidden_network()
    chosen = features == "chosen"
    settings = {"features": lambda outputs: outputs[1], "beta": 3.0, **E, **HALF} if chosen else {}
    decay = optax.add_decayed_weights(DECAY)
    local = fa.Local(BATCH, rate, steps=FULL, transform=decay)
    algorithm = Case("fedmax", settings).build(toy.problem, local)
    history = run(algorithm, toy.data, SETS, layout=2, seed=SEED, num_steps=STEPS)
    given = {"beta": 3.0, "eta": 0.5} if chosen else {"beta": 1.0, "eta": 1.0}
    expected = fedmax_in_numpy(start, toy.clients, uniform=not chosen, **given)
    chex.assert_trees_all_close(history, expected, rtol=0, atol=1e-12)
