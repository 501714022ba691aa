"""Scalar runs against golden values, to ten printed digits."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, quadratics, run, stored
from transcriptions import transcription

import fedjax_algos as fa

pytestmark = pytest.mark.usefixtures("x64")

# Three clients with gradients a (x - b), one example each, three local steps of rate .1 from .5.
A, B = [[1.0], [2.0], [0.5]], [[1.0], [-1.0], [3.0]]
SETS = [(0, 1), (1, 2), (0, 2), (0, 1), (1, 2)]
EQUAL, ODD, SLOW = (3, 3, 3), (1, 3, 5), (3, 3, 1)
U = {"weighting": "uniform"}
FROM_ONE = {"initial_v": 1.0, "tau": 1e-3, **U}
GOLDENS = [
    ("fedavg", EQUAL, U, "0.2017500000 0.1080732031 0.4351598138 0.1615166645 0.0805259412"),
    (
        *("fedprox", EQUAL, {"mu": 0.5, **U}),
        "0.2174375000 0.1244236875 0.4318649859 0.1738225741 0.0938496244",
    ),
    (
        *("fedavgm", EQUAL, {"beta": 0.9, "server_learning_rate": 0.5, **U}),
        "0.3508750000 0.1463136133 0.1217973732 0.0223717055 -0.0856696846",
    ),
    (
        *("fedavgm", EQUAL, {"beta": 0.9, "dampened": True, **U}),
        "0.4701750000 0.4255010445 0.4114383411 0.3723178230 0.3223634604",
    ),
    (
        *("fedrmsprop", EQUAL, {"beta": 0.9, "server_learning_rate": 0.1, **FROM_ONE}),
        "0.4687486905 0.4491424331 0.4788184192 0.4436546265 0.4220007067",
    ),
    (
        *("fedadam", EQUAL, {"b1": 0.9, "b2": 0.99, "server_learning_rate": 0.1, **FROM_ONE}),
        "0.4970068274 0.4924163631 0.4907741555 0.4862893102 0.4803576009",
    ),
    (
        *("fedgbo", EQUAL, {"optimizer": "sgdm", "beta": 0.9}),
        "0.4633192500 0.4066195945 0.3841368231 0.3326508770 0.2676094534",
    ),
    (
        *("mimelite", EQUAL, {"optimizer": "sgdm", "beta": 0.9}),
        "0.4633192500 0.4058914338 0.3817055316 0.3286322177 0.2613872123",
    ),
    (
        *("mfl", EQUAL, {"optimizer": "sgdm", "beta": 0.9}),
        "0.4311892500 0.3094524069 0.2616561323 0.2043915615 0.1152991828",
    ),
    (
        *("fedgbo", EQUAL, {"optimizer": "rmsprop", "beta": 0.9}),
        "0.2019770881 0.1082469709 0.4498112630 0.1637805611 0.0809680256",
    ),
    (
        *("mimelite", EQUAL, {"optimizer": "rmsprop", "beta": 0.9}),
        "0.2019770881 0.1094223205 0.4396493895 0.1660255104 0.0844076229",
    ),
    (
        *("mfl", EQUAL, {"optimizer": "rmsprop", "beta": 0.9}),
        "0.3068944218 0.2357279759 0.4531078004 0.2844948103 0.2170005862",
    ),
    (
        *("fedgbo", EQUAL, {"optimizer": "adam", "beta": 0.9}),
        "0.4633550822 0.4068455117 0.3843871549 0.3329354492 0.2679608846",
    ),
    (
        *("mimelite", EQUAL, {"optimizer": "adam", "beta": 0.9}),
        "0.4633550822 0.4061393446 0.3819998737 0.3289947280 0.2618789682",
    ),
    (
        *("mfl", EQUAL, {"optimizer": "adam", "beta": 0.9}),
        "0.4376444974 0.3276126346 0.2823066706 0.2300805018 0.1492874903",
    ),
    ("scaffold", EQUAL, {}, "0.2017500000 0.2303656337 0.2328141910 0.2006408062 0.1814475991"),
    (
        *("feddyn", EQUAL, {"alpha": 0.1}),
        "0.0082291667 -0.2275886363 0.2012254180 -0.0457054849 -0.1289232141",
    ),
    (
        *("adabest", EQUAL, {"mu": 0.02, "beta": 0.8, **U}),
        "-0.0368500000 -0.2577128779 0.3009620048 0.0293823883 -0.0811556414",
    ),
    ("fednova", ODD, U, "0.3060000000 0.1248883284 0.4512765992 0.2700746125 0.1039014700"),
    (
        *("fedcm", EQUAL, {"alpha": 0.1, **U}),
        "0.4633192500 0.4066195945 0.3841368231 0.3326508770 0.2676094534",
    ),
    (
        *("ghbm", EQUAL, {"tau": 2, "beta": 0.9, **U}),
        "0.2017500000 0.1080732031 0.2716528532 0.0870605725 0.0212060847",
    ),
    (
        *("ghbm", EQUAL, {"tau": 1, "beta": 0.9, **U}),
        "0.2017500000 -0.1287000156 -0.0283649754 -0.0485916487 -0.0793900447",
    ),
    (
        *("fedadc", EQUAL, {"beta": 0.9, **U}),
        "0.2017500000 -0.1004874297 0.0363047150 0.0041252218 -0.0497405285",
    ),
    (
        *("localghbm", EQUAL, {"beta": 0.9, **U}),
        "0.2017500000 0.0353002031 0.2040237304 0.0643755908 -0.0117657294",
    ),
    (
        *("fedhbm", EQUAL, {"beta": 1.0, **U}),
        "0.2017500000 0.1805242868 0.2324774639 0.1890430462 0.1435955385",
    ),
    (
        *("fedhbm", EQUAL, {"beta": 1.0, "first": "shared", **U}),
        "0.1244660494 0.0721419691 0.1593988187 0.1498369112 0.1155861212",
    ),
    ("mime", EQUAL, {}, "0.1781250000 0.0530483398 0.3896390377 0.1103909594 0.0077194499"),
    (
        *("mimemom", EQUAL, {"beta": 0.9}),
        "0.1781250000 -0.2446547852 -0.2458784061 -0.2806774643 -0.2861766220",
    ),
    (
        *("mimelitemom", EQUAL, {"beta": 0.9}),
        "0.2017500000 -0.1896299219 -0.2082799548 -0.2544807939 -0.2644625818",
    ),
    (
        *("fedlga", SLOW, {"strength": 1.0}),
        "0.2017500000 -0.7324703991 0.0881960770 -0.0537743342 -0.9245649354",
    ),
    (
        *("fedlga", SLOW, {"strength": 1.0, "clip": True}),
        "0.2017500000 -0.0914770000 0.2882789085 0.0703770627 -0.1907949406",
    ),
    (
        *("fedlga", SLOW, {"strength": 0.0}),
        "0.2017500000 -0.0215207500 0.1924333304 0.0109048815 -0.1610285316",
    ),
]
each_golden = pytest.mark.parametrize(
    ("name", "steps", "settings", "printed"), GOLDENS, ids=[golden[0] for golden in GOLDENS]
)


def digits(printed):
    return [float(number) for number in printed.split()]


@each_golden
def test_golden(name, steps, settings, printed):
    toy = quadratics(A, B)
    local = fa.Local(4, 0.1, steps=3, batches="full")
    history = run(Case(name, settings).build(toy.problem, local), toy.data, SETS, num_steps=steps)
    actual = [float(params["x"]) for params in history]
    np.testing.assert_allclose(actual, digits(printed), rtol=0, atol=5e-11)


@each_golden
def test_transcription_is_golden(name, steps, settings, printed):
    """Checks the NumPy code that `test_transcriptions` compares everything else with."""
    clients = [{"a": np.array(a), "b": np.array(b)} for a, b in zip(A, B, strict=True)]
    actual = transcription(
        *(name, settings, clients, SETS, steps),
        batch_size=None,
        rate=lambda t: 0.1,
        full_steps=3,
    )
    np.testing.assert_allclose(actual, digits(printed), rtol=0, atol=5e-11)


def test_first_round_of_fedavg():
    """1 - .5 * .9^3 and -1 + 1.5 * .8^3: two clients, three steps, and their mean."""
    toy = quadratics(A, B)
    algorithm = Case("fedavg", U).build(toy.problem, fa.Local(1, 0.1, steps=3))
    (first,) = run(algorithm, toy.data, SETS[:1])
    assert float(first["x"]) == pytest.approx((0.6355 - 0.232) / 2, abs=1e-15)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"mode": "outer"}, (-0.15, 0.3)),
        # g = (-.5, 1) and v = (.2, .6): g <g, v> = (-.25, .5) is subtracted from Delta
        ({"mode": "outer", "strength": -1.0}, (0.35, -0.7)),
        ({"mode": "diag"}, (0.15, 0.4)),
        ({"mode": "diag", "strength": -1.0}, (0.05, -0.8)),
        # 1 + <(.1, -.2), (.2, .6)> = .9
        ({"mode": "update"}, (0.09, -0.18)),
        ({"mode": "outer", "clip": True}, (0.0, 0.0)),
    ],
    ids=str,
)
def test_fedlga_in_two_dimensions(settings, expected):
    """Constant gradients give Delta = (.1, -.2) in two steps and D2 = (.3, .4) in four."""
    problem = fa.Problem(
        init=lambda key: fa.Model({"w": jnp.zeros(2)}),
        apply=lambda model, batch, key, training: (model.params["w"], ()),
        loss=lambda w, batch: batch["g"] @ w,
    )
    slow, complete = np.array([[-0.1, 0.2]]) / 0.2, np.array([[-0.3, -0.4]]) / 0.4
    data = stored([{"g": slow}, {"g": complete}])
    algorithm = Case("fedlga", settings).build(problem, fa.Local(1, 0.1, steps=4, batches="full"))
    (first,) = run(algorithm, data, [(0, 1)], num_steps=(2, 4))
    np.testing.assert_allclose(2 * first["w"] - [0.3, 0.4], expected, rtol=0, atol=1e-14)


class Activations(NamedTuple):
    features: jnp.ndarray


def test_fedmax_divergence():
    """KL(U || softmax((0, 1, 2))), the integral over s of its derivative along (0, s, 2 s)."""
    points, weights = np.polynomial.legendre.leggauss(12)
    points, weights = (points + 1) / 2, weights / 2

    def apply(model, batch, key, training):
        del key, training
        return Activations((batch["pick"] @ model.params["s"])[:, None] * jnp.arange(3.0)[None]), ()

    problem = fa.Problem(
        init=lambda key: fa.Model({"s": jnp.asarray(points)}),
        apply=apply,
        loss=lambda outputs, batch: jnp.zeros(len(batch["pick"])),
    )
    data = stored([{"pick": np.eye(12)}])
    local = fa.Local(12, 12.0, steps=1, batches="full")  # each of 12 examples has its own s
    (after,) = run(Case("fedmax", {"beta": 1.0}).build(problem, local), data, [(0,)])
    assert weights @ (points - after["s"]) == pytest.approx(0.3089936758, abs=5e-11)
