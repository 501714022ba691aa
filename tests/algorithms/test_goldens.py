"""Scalar runs against golden values, to ten printed digits."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, quadratics, run, stored
from transcriptions import transcription

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms

pytestmark = pytest.mark.usefixtures("x64")

# Three clients with gradients a (x - b), one example each, three local steps of rate .1 from .5.
A, B = [[1.0], [2.0], [0.5]], [[1.0], [-1.0], [3.0]]
SETS = [(0, 1), (1, 2), (0, 2), (0, 1), (1, 2)]
# A method's spec, the local steps of the three clients if they are not all 3, and below the model
# after each round
GOLDENS = """
fedavg:weighting=uniform
0.2017500000 0.1080732031 0.4351598138 0.1615166645 0.0805259412
fedprox:mu=0.5,weighting=uniform
0.2174375000 0.1244236875 0.4318649859 0.1738225741 0.0938496244
fedavgm:beta=0.9,server_learning_rate=0.5,weighting=uniform
0.3508750000 0.1463136133 0.1217973732 0.0223717055 -0.0856696846
fedavgm:beta=0.9,dampened=true,weighting=uniform
0.4701750000 0.4255010445 0.4114383411 0.3723178230 0.3223634604
fedrmsprop:beta=0.9,server_learning_rate=0.1,initial_v=1.0,tau=0.001,weighting=uniform
0.4687486905 0.4491424331 0.4788184192 0.4436546265 0.4220007067
fedadam:b1=0.9,b2=0.99,server_learning_rate=0.1,initial_v=1.0,tau=0.001,weighting=uniform
0.4970068274 0.4924163631 0.4907741555 0.4862893102 0.4803576009
fedgbo:optimizer=sgdm,beta=0.9
0.4633192500 0.4066195945 0.3841368231 0.3326508770 0.2676094534
mimelite:optimizer=sgdm,beta=0.9
0.4633192500 0.4058914338 0.3817055316 0.3286322177 0.2613872123
mfl:optimizer=sgdm,beta=0.9
0.4311892500 0.3094524069 0.2616561323 0.2043915615 0.1152991828
fedgbo:optimizer=rmsprop,beta=0.9
0.2019770881 0.1082469709 0.4498112630 0.1637805611 0.0809680256
mimelite:optimizer=rmsprop,beta=0.9
0.2019770881 0.1094223205 0.4396493895 0.1660255104 0.0844076229
mfl:optimizer=rmsprop,beta=0.9
0.3068944218 0.2357279759 0.4531078004 0.2844948103 0.2170005862
fedgbo:optimizer=adam,beta=0.9
0.4633550822 0.4068455117 0.3843871549 0.3329354492 0.2679608846
mimelite:optimizer=adam,beta=0.9
0.4633550822 0.4061393446 0.3819998737 0.3289947280 0.2618789682
mfl:optimizer=adam,beta=0.9
0.4376444974 0.3276126346 0.2823066706 0.2300805018 0.1492874903
scaffold
0.2017500000 0.2303656337 0.2328141910 0.2006408062 0.1814475991
feddyn:alpha=0.1
0.0082291667 -0.2275886363 0.2012254180 -0.0457054849 -0.1289232141
adabest:mu=0.02,beta=0.8,weighting=uniform
-0.0368500000 -0.2577128779 0.3009620048 0.0293823883 -0.0811556414
fednova:weighting=uniform 1,3,5
0.3060000000 0.1248883284 0.4512765992 0.2700746125 0.1039014700
qfedavg:q=2
0.3733198990 0.3284940043 0.4712066889 0.3470827016 0.3104436279
fedcm:alpha=0.1,weighting=uniform
0.4633192500 0.4066195945 0.3841368231 0.3326508770 0.2676094534
ghbm:tau=2,beta=0.9,weighting=uniform
0.2017500000 0.1080732031 0.2716528532 0.0870605725 0.0212060847
ghbm:tau=1,beta=0.9,weighting=uniform
0.2017500000 -0.1287000156 -0.0283649754 -0.0485916487 -0.0793900447
fedadc:beta=0.9,weighting=uniform
0.2017500000 -0.1004874297 0.0363047150 0.0041252218 -0.0497405285
localghbm:beta=0.9,weighting=uniform
0.2017500000 0.0353002031 0.2040237304 0.0643755908 -0.0117657294
fedhbm:beta=1.0,weighting=uniform
0.2017500000 0.1805242868 0.2324774639 0.1890430462 0.1435955385
fedhbm:beta=1.0,first=shared,weighting=uniform
0.1244660494 0.0721419691 0.1593988187 0.1498369112 0.1155861212
mime
0.1781250000 0.0530483398 0.3896390377 0.1103909594 0.0077194499
mimemom:beta=0.9
0.1781250000 -0.2446547852 -0.2458784061 -0.2806774643 -0.2861766220
mimelitemom:beta=0.9
0.2017500000 -0.1896299219 -0.2082799548 -0.2544807939 -0.2644625818
fedlga:strength=1.0 3,3,1
0.2017500000 -0.7324703991 0.0881960770 -0.0537743342 -0.9245649354
fedlga:strength=1.0,clip=true 3,3,1
0.2017500000 -0.0914770000 0.2882789085 0.0703770627 -0.1907949406
fedlga:strength=0.0 3,3,1
0.2017500000 -0.0215207500 0.1924333304 0.0109048815 -0.1610285316
"""
LINES = GOLDENS.strip().splitlines()


@pytest.mark.parametrize(
    ("line", "printed"), [*zip(LINES[::2], LINES[1::2], strict=True)], ids=LINES[::2]
)
def test_golden(line, printed):
    """Of the algorithm, and of the NumPy code that `test_transcriptions` compares with."""
    spec, _, counts = line.partition(" ")
    name, settings = algorithms.parse(spec)
    steps = [int(number) for number in (counts or "3,3,3").split(",")]
    digits = [float(number) for number in printed.split()]
    toy, local = quadratics(A, B), fa.Local(4, 0.1, steps=3, batches="full")
    history = run(Case(name, settings).build(toy.problem, local), toy.data, SETS, num_steps=steps)
    np.testing.assert_allclose([params["x"] for params in history], digits, rtol=0, atol=5e-11)
    setting = name, settings, toy.clients, SETS, steps
    transcribed = transcription(*setting, batch_size=None, rate=lambda t: 0.1, full_steps=3)
    np.testing.assert_allclose(transcribed, digits, rtol=0, atol=5e-11)


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


@pytest.mark.parametrize(("q", "expected"), [(1.0, (0.983333333, 0.8)), (0.0, (0.95, 0.85))])
def test_qfedavg_in_two_dimensions(q, expected):
    """F = (1, 4) and y = (.9, 1), (1, .7), so h = (11, 49) for q = 1; by the authors' formulas."""
    problem = fa.Problem(
        init=lambda key: fa.Model({"w": jnp.ones(2)}),
        apply=lambda model, batch, key, training: (model.params["w"], ()),
        loss=lambda w, batch: batch["f"] + batch["g"] @ (w - 1),
    )
    g, f = np.array([[1.0, 0.0], [0.0, 3.0]]), np.array([1.0, 4.0])
    data = stored([{"g": g[i : i + 1], "f": f[i : i + 1]} for i in range(2)])
    algorithm = Case("qfedavg", {"q": q}).build(problem, fa.Local(1, 0.1, steps=1))
    (first,) = run(algorithm, data, [(0, 1)])
    np.testing.assert_allclose(first["w"], expected, rtol=0, atol=2e-9)
