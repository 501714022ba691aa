"""Scalar runs, to the printed digits, and against an independent loop in NumPy."""

import numpy as np
import pytest
from helpers import CASES, Case, positions, quadratics, run

import fedjax_algos as fa

pytestmark = pytest.mark.usefixtures("x64")

# Three clients with gradients a (x - b), one example each, three local steps of rate .1 from .5.
SETS = [(0, 1), (1, 2), (0, 2), (0, 1), (1, 2)]
UNIFORM = {"weighting": "uniform"}
FROM_ONE = {"initial_v": 1.0, "tau": 1e-3, **UNIFORM}
GOLDENS = [
    ("fedavg", UNIFORM, [0.2017500000, 0.1080732031, 0.4351598138, 0.1615166645, 0.0805259412]),
    (
        "fedprox",
        {"mu": 0.5, **UNIFORM},
        [0.2174375000, 0.1244236875, 0.4318649859, 0.1738225741, 0.0938496244],
    ),
    (
        "fedavgm",
        {"beta": 0.9, "server_learning_rate": 0.5, **UNIFORM},
        [0.3508750000, 0.1463136133, 0.1217973732, 0.0223717055, -0.0856696846],
    ),
    (
        "fedavgm",
        {"beta": 0.9, "dampened": True, **UNIFORM},
        [0.4701750000, 0.4255010445, 0.4114383411, 0.3723178230, 0.3223634604],
    ),
    (
        "fedrmsprop",
        {"beta": 0.9, "server_learning_rate": 0.1, **FROM_ONE},
        [0.4687486905, 0.4491424331, 0.4788184192, 0.4436546265, 0.4220007067],
    ),
    (
        "fedadam",
        {"b1": 0.9, "b2": 0.99, "server_learning_rate": 0.1, **FROM_ONE},
        [0.4970068274, 0.4924163631, 0.4907741555, 0.4862893102, 0.4803576009],
    ),
    (
        "fedgbo",
        {"optimizer": "sgdm", "beta": 0.9},
        [0.4633192500, 0.4066195945, 0.3841368231, 0.3326508770, 0.2676094534],
    ),
    (
        "fedgbo",
        {"optimizer": "rmsprop", "beta": 0.9},
        [0.2019770881, 0.1082469709, 0.4498112630, 0.1637805611, 0.0809680256],
    ),
    (
        "fedgbo",
        {"optimizer": "adam", "beta": 0.9},
        [0.4633550822, 0.4068455117, 0.3843871549, 0.3329354492, 0.2679608846],
    ),
]


@pytest.mark.parametrize(("name", "settings", "expected"), GOLDENS)
def test_golden(name, settings, expected):
    toy = quadratics([[1.0], [2.0], [0.5]], [[1.0], [-1.0], [3.0]])
    algorithm = Case(name, settings).build(toy.problem, fa.Local(4, 0.1, steps=3))
    history = run(algorithm, toy.data, SETS)
    np.testing.assert_allclose([float(p["x"]) for p in history], expected, rtol=0, atol=5e-11)


def test_first_round_by_hand():
    """1 - .5 * .9^3 and -1 + 1.5 * .8^3: two clients, three steps, and their mean."""
    toy = quadratics([[1.0], [2.0], [0.5]], [[1.0], [-1.0], [3.0]])
    algorithm = Case("fedavg", UNIFORM).build(toy.problem, fa.Local(1, 0.1, steps=3))
    (first,) = run(algorithm, toy.data, SETS[:1])
    assert float(first["x"]) == pytest.approx((0.6355 - 0.232) / 2, abs=1e-15)


A = [[1.0], [2.0, 0.7, 1.4], [0.5, 0.9]]
B = [[1.0], [-1.0, 0.3, 2.0], [3.0, -0.4]]
STEPS = (2, 5, 3)
BATCH, RATE, SEED = 2, 0.1, 3


def transcription(case, clients, sets):
    """The papers' boxes once more, in scalar NumPy; only the batches come from the library."""
    h = case.hyperparameters
    eta = h.get("server_learning_rate", 0.1 if case.name in ADAPTIVE else 1.0)
    uniform = h.get("weighting", "uniform" if case.name == "fedgbo" else "examples") == "uniform"
    optimizer = h.get("optimizer")
    b1, b2, eps = 0.9, 0.99, 1e-3
    tau2 = eps**2 if case.name != "fedrmsprop" else 1.0
    x, m, v = 0.5, 0.0, h.get("initial_v", tau2) if case.name in ADAPTIVE else 1.0
    visits, history = [0] * len(clients), []
    for cohort in sets:
        deltas, gradients, weights, steps = [], [], [], []
        for i in cohort:
            a, b, y, seen = clients[i]["a"], clients[i]["b"], x, []
            for k in range(STEPS[i]):
                rows = positions(SEED, i, visits[i], len(a), k, BATCH)
                g = sum(a[j] * (y - b[j]) for j in rows) / len(rows)
                seen.append(g)
                if case.name == "fedprox":
                    g = g + h["mu"] * (y - x)
                if optimizer in ("sgdm", "adam"):
                    g = b1 * m + (1 - b1) * g
                if optimizer in ("rmsprop", "adam"):
                    g = g / (np.sqrt(v) + eps)
                y = y - RATE * g
            visits[i] += 1
            deltas.append(x - y)
            gradients.append(sum(seen))
            weights.append(1.0 if uniform else len(a))
            steps.append(STEPS[i])
        p = np.array(weights) / sum(weights)
        mean = float(p @ np.array(deltas))
        if case.name == "fedgbo":
            gradient = float(p @ np.array(gradients)) / float(p @ np.array(steps))
            m = b1 * m + (1 - b1) * gradient
            decay = b2 if optimizer == "adam" else b1
            v = decay * v + (1 - decay) * gradient**2
            x = x - eta * mean
        elif case.name == "fedavgm":
            m = b1 * m + (1 - b1 if h.get("dampened") else 1.0) * mean
            x = x - eta * m
        elif case.name in ADAPTIVE:
            v = ADAPTIVE[case.name](v, mean)
            decay = b1 if case.name in ("fedadam", "fedyogi") else 0.0
            m = decay * m + (1 - decay) * mean
            x = x - eta * m / (np.sqrt(v) + eps)
        else:
            x = x - eta * mean
        history.append(x)
    return history


ADAPTIVE = {
    "fedadam": lambda v, g: 0.99 * v + 0.01 * g**2,
    "fedyogi": lambda v, g: v - 0.01 * g**2 * np.sign(v - g**2),
    "fedadagrad": lambda v, g: v + g**2,
    "fedrmsprop": lambda v, g: 0.9 * v + 0.1 * g**2,
}
WRITTEN_OUT = [c for c in CASES if isinstance(c.hyperparameters.get("optimizer", ""), str)]


@pytest.mark.parametrize("case", WRITTEN_OUT, ids=str)
def test_equals_numpy_transcription(case):
    """n = (1, 3, 2) examples, batches of at most 2, unequal steps."""
    toy = quadratics(A, B)
    algorithm = case.build(toy.problem, fa.Local(BATCH, RATE, steps=1))
    history = run(algorithm, toy.data, SETS, layout=2, seed=SEED, num_steps=STEPS)
    expected = transcription(case, toy.clients, SETS)
    np.testing.assert_allclose([float(p["x"]) for p in history], expected, rtol=0, atol=1e-12)
