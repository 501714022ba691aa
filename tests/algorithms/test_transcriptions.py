"""Every algorithm against golden values, and against NumPy code in settings beyond them."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import Toy, dispatches_of, quadratics, stored
from naive_rounds import Naive
from transcriptions import RULES, transcription

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.algorithms.averaging.fedlga import approximate
from fedjax_algos.core import Stack
from fedjax_algos.core.options import options
from fedjax_algos.core.randomness import client_key

pytestmark = pytest.mark.usefixtures("x64")

SETS = [(0, 1), (1, 2), (0, 2), (0, 1), (1, 2)]
# Three clients with gradients a (x - b), three local steps of rate .1 from .5; weights are uniform.
# A method's spec, the local steps of the three clients if they are not all 3, and the model after
# each round
GOLDENS = """
fedavg  0.2017500000 0.1080732031 0.4351598138 0.1615166645 0.0805259412
fedprox:mu=0.5  0.2174375000 0.1244236875 0.4318649859 0.1738225741 0.0938496244
fedavgm:server_learning_rate=0.5  0.3508750000 0.1463136133 0.1217973732 0.0223717055 -0.0856696846
fedavgm:dampened=true  0.4701750000 0.4255010445 0.4114383411 0.3723178230 0.3223634604
fedrmsprop  0.4687486905 0.4491424331 0.4788184192 0.4436546265 0.4220007067
fedadam:initial_v=1.0  0.4970068274 0.4924163631 0.4907741555 0.4862893102 0.4803576009
fedgbo:optimizer=sgdm  0.4633192500 0.4066195945 0.3841368231 0.3326508770 0.2676094534
mimelite:optimizer=sgdm  0.4633192500 0.4058914338 0.3817055316 0.3286322177 0.2613872123
mfl:optimizer=sgdm  0.4311892500 0.3094524069 0.2616561323 0.2043915615 0.1152991828
fedgbo:optimizer=rmsprop  0.2019770881 0.1082469709 0.4498112630 0.1637805611 0.0809680256
mimelite:optimizer=rmsprop  0.2019770881 0.1094223205 0.4396493895 0.1660255104 0.0844076229
mfl:optimizer=rmsprop  0.3068944218 0.2357279759 0.4531078004 0.2844948103 0.2170005862
fedgbo:optimizer=adam  0.4633550822 0.4068455117 0.3843871549 0.3329354492 0.2679608846
mimelite:optimizer=adam  0.4633550822 0.4061393446 0.3819998737 0.3289947280 0.2618789682
mfl:optimizer=adam  0.4376444974 0.3276126346 0.2823066706 0.2300805018 0.1492874903
scaffold  0.2017500000 0.2303656337 0.2328141910 0.2006408062 0.1814475991
feddyn:alpha=0.1  0.0082291667 -0.2275886363 0.2012254180 -0.0457054849 -0.1289232141
adabest  -0.0368500000 -0.2577128779 0.3009620048 0.0293823883 -0.0811556414
fednova@1,3,5  0.3060000000 0.1248883284 0.4512765992 0.2700746125 0.1039014700
qfedavg:q=2  0.3733198990 0.3284940043 0.4712066889 0.3470827016 0.3104436279
fedcm  0.4633192500 0.4066195945 0.3841368231 0.3326508770 0.2676094534
ghbm:tau=2  0.2017500000 0.1080732031 0.2716528532 0.0870605725 0.0212060847
ghbm:tau=1  0.2017500000 -0.1287000156 -0.0283649754 -0.0485916487 -0.0793900447
fedadc  0.2017500000 -0.1004874297 0.0363047150 0.0041252218 -0.0497405285
localghbm  0.2017500000 0.0353002031 0.2040237304 0.0643755908 -0.0117657294
fedhbm  0.2017500000 0.1805242868 0.2324774639 0.1890430462 0.1435955385
fedhbm:first=shared  0.1244660494 0.0721419691 0.1593988187 0.1498369112 0.1155861212
mime  0.1781250000 0.0530483398 0.3896390377 0.1103909594 0.0077194499
mimemom  0.1781250000 -0.2446547852 -0.2458784061 -0.2806774643 -0.2861766220
mimelitemom  0.2017500000 -0.1896299219 -0.2082799548 -0.2544807939 -0.2644625818
fedlga@3,3,1  0.2017500000 -0.7324703991 0.0881960770 -0.0537743342 -0.9245649354
fedlga:clip=true@3,3,1  0.2017500000 -0.0914770000 0.2882789085 0.0703770627 -0.1907949406
fedlga:strength=0.0@3,3,1  0.2017500000 -0.0215207500 0.1924333304 0.0109048815 -0.1610285316
"""
PRINTED = {line.split()[0]: line.split()[1:] for line in GOLDENS.strip().splitlines()}
STEPS, FULL, BATCH, SEED, DECAY = (2, 5, 3), 5, 2, 3, 0.3
MORE = """
fedyogi:initial_v=1.0,weighting=uniform  fedadam  fedadagrad  fedgbo:optimizer=sgdm,upload=both
fedlga:mode=diag,fallback=max  fedlga:mode=update,strength=-20
fedlga:clip=true,fallback=max,strength=3  fedlga:mode=update,clip=true,strength=400
fednova:mu=0.6,weighting=uniform  fednova:momentum=0.5,mu=0.6  qfedavg:q=0.5  ghbm:tau=4
ghbm:tau=2,beta=0.8,nesterov=true,server_learning_rate=0.5
localghbm:scale=gap,weighting=uniform  fedhbm:first=pretrained
"""  # with the gradient of all examples in every step
RICH = """
fedavg  fedprox:mu=0.5  qfedavg:q=2.5  feddyn:alpha=0.3  adabest:mu=0.4,beta=0.7
fedgbo:optimizer=adam,upload=gradient,weighting=examples,server_learning_rate=0.5
mfl:optimizer=adam,beta=0.8,weighting=examples,server_learning_rate=0.5
mimelite:optimizer=adam,beta=0.8,weighting=examples,server_learning_rate=0.5
mimexlite:optimizer=adam,beta=0.8,weighting=examples,server_learning_rate=0.5
mimelitemom:beta=0.8,weighting=examples,server_learning_rate=0.5
mime:weighting=examples,server_learning_rate=0.5
mimemom:beta=0.8,weighting=examples,server_learning_rate=0.5
scaffold:weighting=examples,server_learning_rate=0.5
fedavgm:beta=0.8,server_learning_rate=0.5  fedlga:strength=-0.7,server_learning_rate=0.5
fednova:momentum=0.5,server_learning_rate=0.5  fedcm:alpha=0.3,server_learning_rate=0.5
ghbm:tau=2,beta=0.8,server_learning_rate=0.5  fedadc:beta=0.8,server_learning_rate=0.5
localghbm:beta=0.8,server_learning_rate=0.5  fedhbm:beta=0.8,server_learning_rate=0.5
"""
with jax.enable_x64(True):
    UNLIKE = quadratics([[1], [2, 0.7, 1.4], [0.5, 0.9]], [[1], [-1, 0.3, 2], [3, -0.4]])
    # the examples of the golden values, some of them twice or three times: means are the same
    ALIKE = quadratics([[1], [2] * 3, [0.5] * 2], [[1], [-1] * 3, [3] * 2])
# quick: what `RICH` has not, and whose clients' programs are shared or few
FIRST = ("fedavgm:d", "fedad", "fedr", "fedy", "fedgbo", "mfl:optimizer=rmsprop", "fedlga@")
FIRST += ("fedlga:mode=d", "fedlga:clip=true,", "fednova:mu", "localghbm:scale", "fedhbm:first=s")


def in_tiers(specs):
    marks = {True: (), False: pytest.mark.all}
    return [pytest.param(spec, marks=marks[spec.startswith(FIRST)]) for spec in specs]


def of_golden(method):
    """The spec, with uniform weights where they are an option, and the steps of the clients."""
    spec, _, steps = method.partition("@")
    if "weighting" in options(algorithms[spec.partition(":")[0]]):
        spec += ",weighting=uniform" if ":" in spec else ":weighting=uniform"
    return spec, [int(number) for number in (steps or "3,3,3").split(",")]


def rate(round_number):
    return 0.1 * 0.9**round_number


@functools.cache
def naive_of(spec, problem=None):
    """An algorithm with the gradient of all examples in every step."""
    local = fa.Local(BATCH, 0.1, steps=1, batches="full")
    return Naive(algorithms.make(spec, problem or UNLIKE.problem, local))


def run(naive, toy, steps, *, work=None, params=None, sets=SETS):
    """The params after each round."""
    dispatches = dispatches_of(toy.data, work or fa.Local(1, rate, steps=FULL), sets, steps)
    population = fa.Population(len(toy.clients), 2, int(toy.data.counts().sum()))
    rounds = naive.rounds(toy.data, dispatches, population, seed=SEED, params=params)
    return [after.server.params for after in rounds]


def assert_transcribed(spec, naive, params=None, batch_size=None, decay=0.0, **known):
    """In unequal work at decreasing rates, of clients with unequal examples."""
    toy, (name, settings) = UNLIKE, algorithms.parse(spec)
    setting = name, settings | known, toy.clients, SETS, STEPS
    options = {"seed": SEED, "batch_size": batch_size, "decay": decay}
    expected = transcription(*setting, rate=rate, full_steps=FULL, **options)
    history = run(naive, toy, STEPS, params=params)
    np.testing.assert_allclose([float(p["x"]) for p in history], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", PRINTED)
def test_golden_transcription(method):
    spec, steps = of_golden(method)
    setting = *algorithms.parse(spec), ALIKE.clients, SETS, steps
    found = transcription(*setting, batch_size=None, rate=lambda t: 0.1, full_steps=3)
    np.testing.assert_allclose(found, np.float64(PRINTED[method]), rtol=0, atol=5e-11)


@pytest.mark.parametrize("method", in_tiers(PRINTED))
def test_golden(method):
    """To ten digits, and as in the transcription in unequal work."""
    spec, steps = of_golden(method)
    history = run(naive_of(spec), ALIKE, steps, work=fa.Local(1, 0.1, steps=3))
    found = [params["x"] for params in history]
    np.testing.assert_allclose(found, np.float64(PRINTED[method]), rtol=0, atol=5e-11)
    assert_transcribed(spec, naive_of(spec))


@pytest.mark.parametrize("spec", in_tiers(MORE.split()))
def test_all_examples_in_every_step(spec):
    assert_transcribed(spec, naive_of(spec))


def with_batches():
    """With batches of two examples where an algorithm does more with them than its local steps."""
    for spec in RICH.split():
        small = spec == "fedavg" or spec.startswith(("mimexlite", "mime:"))
        yield pytest.param(spec, BATCH, marks=() if small else pytest.mark.all)
        if not small:
            yield spec, None


@pytest.mark.parametrize(("spec", "batch_size"), [*with_batches()])
def test_weight_decay_and_other_options(spec, batch_size):
    options = {"transform": optax.add_decayed_weights(DECAY)}
    options["batches"] = "short" if batch_size else "full"
    naive = Naive(algorithms.make(spec, UNLIKE.problem, fa.Local(BATCH, 0.1, steps=1, **options)))
    assert_transcribed(spec, naive, batch_size=batch_size, decay=DECAY)


def test_every_transcription_is_compared():
    specs = [*PRINTED, *MORE.split(), *RICH.split()]
    assert {re.match(r"\w+", spec)[0] for spec in specs} == set(RULES)


def test_fedhbm_from_random_models():
    """The anchor at a first dispatch is the problem's initialisation with the client's key."""
    problem = UNLIKE.problem._replace(
        init=lambda key: fa.Model({"x": jax.random.normal(key, dtype=float)})
    )
    anchors = [float(problem.init(client_key(SEED, i)).params["x"]) for i in range(3)]
    assert len(set(anchors)) == 3
    naive, start = naive_of("fedhbm:first=random", problem), {"x": jnp.asarray(0.5, float)}
    assert_transcribed("fedhbm:first=random", naive, params=start, anchors=anchors)


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
    """Of Delta = (.1, -.2) in two of four steps, and (.3, .4) in all four."""
    data = quadratics([[1.0]] * 2, [[1.0]] * 2).data
    dispatches = dispatches_of(data, fa.Local(1, 0.1, steps=4), [(0, 1)], (2, 4))
    of_round = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), dispatches)
    changes = {"w": jnp.array([[0.1, -0.2], [0.3, 0.4]])}
    found = approximate(Stack(changes, of_round, jnp.ones(2, bool)), **settings)["w"]
    np.testing.assert_allclose(found, [expected, (0.3, 0.4)], rtol=0, atol=1e-14)


@pytest.mark.parametrize(("q", "expected"), [(1.0, (0.983333333, 0.8)), (0.0, (0.95, 0.85))])
def test_qfedavg_in_two_dimensions(q, expected):
    """F = (1, 4) and y = (.9, 1), (1, .7), so h = (11, 49) for q = 1; by the authors' formulas."""
    problem = fa.Problem(
        init=lambda key: fa.Model({"w": jnp.ones(2)}),
        apply=lambda model, batch, key, training: (model.params["w"], ()),
        loss=lambda w, batch: batch["f"] + batch["g"] @ (w - 1),
    )
    g, f = np.array([[1.0, 0.0], [0.0, 3.0]]), np.array([1.0, 4.0])
    clients = [{"g": g[i : i + 1], "f": f[i : i + 1]} for i in range(2)]
    work = fa.Local(1, 0.1, steps=1)
    naive = Naive(algorithms["qfedavg"](problem, work, q=q))
    toy = Toy(problem, stored(clients), clients)
    (first,) = run(naive, toy, (1, 1), work=work, sets=[(0, 1)])
    np.testing.assert_allclose(first["w"], expected, rtol=0, atol=2e-9)
