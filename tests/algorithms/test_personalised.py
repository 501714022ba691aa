"""Personalised algorithms, and FedMAX, against NumPy loops written from the papers alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import dispatches_of, small_network, with_statistics, with_unused
from histories import (
    COUNTS,
    RATE,
    SETS,
    START,
    assert_same,
    combine,
    gradient,
    local_models,
    models,
    regression,
)
from naive_rounds import Naive, follow, play

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.algorithms.personalised.fedrep import in_turns
from fedjax_algos.core.randomness import model_key
from fedjax_algos.core.trees import split_params

pytestmark = pytest.mark.usefixtures("x64")

STEPS = (4, 2, 7, 3, 1, 5)
U, E = {"weighting": "uniform"}, {"weighting": "examples"}
ETA = {"server_learning_rate": 0.7}
later = functools.partial(pytest.param, marks=pytest.mark.all)


def test_head_and_body_have_an_optimiser_each():
    """Momentum 0.9 of gradients of 1: the body's starts when the head's has ended."""
    params = {"body": jnp.zeros(()), "head": jnp.zeros(())}
    parts = split_params(fa.Problem(lambda key: fa.Model(params), None, None), "head")
    transform = in_turns(fa.client_optimizer("sgd:momentum=0.9"), parts, jnp.int32(2))
    state, found = transform.init(params), []
    for _ in range(5):
        move, state = transform.update({"body": 1.0, "head": 1.0}, state, params)
        found.append((move["head"], move["body"]))
    expected = [(1, 0), (1.9, 0), (0, 1), (0, 1.9), (0, 2.71)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def average(x, locals_, cohort, weighting="uniform", eta=1.0):
    """x + eta times the mean of y_i - x over the cohort."""
    weights = np.array([COUNTS[i] if weighting == "examples" else 1.0 for i in cohort])
    weights = weights / weights.sum()
    moved = [combine(lambda y, x: y - x, y, x) for y in locals_]
    return combine(
        lambda x, *d: x + eta * sum(w * e for w, e in zip(weights, d, strict=True)), x, *moved
    )


def mix(alpha, v, w):
    return combine(lambda v, w: alpha * v + (1 - alpha) * w, v, w)


def near(strength, x):
    return lambda g, y: combine(lambda g, y, x: g + strength * (y - x), g, y, x)


def rounds(client, own, weighting="uniform", eta=1.0, personal=lambda x, own: own):
    """The global model and the clients' own ones after each round.

    `client(i, x, own)` is a local update: the model that client i sends, and what it keeps.
    """
    x, own = START, [own] * 6
    for cohort in SETS:
        sent = []
        for i in cohort:
            y, own[i] = client(i, x, own[i])
            sent.append(y)
        x = average(x, sent, cohort, weighting, eta)
        yield x, [personal(x, kept) for kept in own]


def assert_transcribed(name, rounds, atol=1e-12, **settings):
    """The global models, and the clients' own ones if an algorithm has them."""
    algorithm = algorithms[name](regression().problem, fa.Local(3, RATE, steps=1), **settings)
    for snapshot, (x, owned) in zip(play(name, steps=STEPS, **settings), rounds, strict=True):
        assert_same([snapshot.server.params], [x], atol)
        for client, expected in enumerate(owned) if algorithm.personal else ():
            row = jax.tree.map(lambda leaf, i=client: leaf[i], snapshot.clients)
            own = algorithm.personal(snapshot.server, row).params
            assert_same([jax.tree.map(np.asarray, own)], [expected], atol)


@pytest.mark.parametrize("strength", [0.4, later(0.0)])
def test_ditto(strength):
    """P7: without lambda a client's own model is trained alone."""

    def client(i, x, v):
        own = local_models(v, i, STEPS[i], correct=near(strength, x))[-1]
        return local_models(x, i, STEPS[i])[-1], own

    transcribed = rounds(client, START, "examples", 0.7)
    assert_transcribed("ditto", transcribed, strength=strength, **E, **ETA)


@pytest.mark.parametrize(("first", "adaptive"), [(0.9, False), (0.9, True), later(0.0, False)])
def test_apfl(first, adaptive):
    """P8: without a share every client has the global model."""

    def client(i, w, own):
        v, alpha = own
        for _ in range(STEPS[i]):
            g = gradient(mix(alpha, v, w), i)
            gap = sum(((v[n] - w[n]) * g[n]).sum() for n in START)
            v = combine(lambda v, g, a=alpha: v - RATE * a * g, v, g)
            w = combine(lambda w, g: w - RATE * g, w, gradient(w, i))
            alpha = min(max(alpha - RATE * gap, 0.0), 1.0) if adaptive else alpha
        return w, (v, alpha)

    mixed = rounds(client, (START, first), personal=lambda x, own: mix(own[1], own[0], x))
    assert_transcribed("apfl", mixed, alpha=first, adaptive=adaptive)


def test_pfedme():
    def client(i, w, _):
        for _ in range(STEPS[i]):
            theta = local_models(w, i, 3, 0.05, near(2.0, w))[-1]
            w = combine(lambda w, t: w - RATE * 2.0 * (w - t), w, theta)
        return w, theta

    settings = {"strength": 2.0, "personal_learning_rate": 0.05, "beta": 0.7, "inner_steps": 3}
    assert_transcribed("pfedme", rounds(client, START, eta=0.7), **settings)


def with_offset(x, offset):
    return x | {"offset": offset}


def test_fedrep():
    """The head is the offset; it is trained first, and never sent."""

    def client(i, x, head):
        model, head_steps = with_offset(x, head), STEPS[i] - int(np.ceil(0.5 * STEPS[i]))
        for k in range(STEPS[i]):
            name = "offset" if k < head_steps else "slope"
            model = model | {name: model[name] - RATE * gradient(model, i)[name]}
        return with_offset(model, x["offset"]), model["offset"]

    transcribed = rounds(client, START["offset"], personal=with_offset)
    assert_transcribed("fedrep", transcribed, head="offset", body_share=0.5)


def test_fedbn_keeps_its_params():
    """Both parts are trained together; that which stays is never averaged."""

    def client(i, x, offset):
        model = local_models(with_offset(x, offset), i, STEPS[i])[-1]
        return with_offset(model, x["offset"]), model["offset"]

    transcribed = rounds(client, START["offset"], personal=with_offset)
    assert_transcribed("fedbn", transcribed, norm="offset")


def test_fedrep_decays_only_the_part_that_is_trained():
    """Weight decay moves the head, which a function names, in its steps, the body in its own."""
    options = {"compiled": (("decay", 0.5),), "head": lambda path: path == "offset"}
    ends = play("fedrep", SETS[:1], steps=2, **options)
    for i in SETS[0]:
        g = gradient(START, i)["offset"] + 0.5 * START["offset"]
        np.testing.assert_allclose(ends[0].clients[0][i], START["offset"] - RATE * g, atol=1e-13)


def test_fedbn_keeps_its_statistics():
    """A client's statistics are the running mean of its own examples alone."""
    toy = small_network()
    local = fa.Local(1, RATE, steps=2, batches="full")  # pieces of one example
    algorithm = algorithms["fedbn"](with_statistics(toy.problem), local)
    dispatches = dispatches_of(toy.data, local, [(0, 1, 2, 3)] * 3)
    rows = Naive(algorithm).rounds(toy.data, dispatches, fa.Population(4, 4, 17))[-1].clients
    for client, examples in enumerate(toy.clients):
        mean = np.zeros(3)
        for x in [*examples["x"]] * 3 * 2:
            mean = 0.9 * mean + 0.1 * x
        np.testing.assert_allclose(rows.statistics["mean"][client], mean, rtol=1e-12)


@pytest.mark.parametrize("form", ["first_order", "hessian_free"])
def test_perfedavg(form):
    """On a quadratic the difference quotient is the Hessian's product, up to rounding."""

    def corrected(g, w, i):
        d = gradient(combine(lambda w, g: w - 0.3 * g, w, g), i)
        if form == "first_order":
            return d
        at_d, at_0 = gradient(d, i), gradient(dict.fromkeys(START, 0.0) | {"slope": np.zeros(2)}, i)
        return combine(lambda d, a, b: d - 0.3 * (a - b), d, at_d, at_0)

    def client(i, x, _):
        return local_models(x, i, STEPS[i], correct=lambda g, w: corrected(g, w, i))[-1], ()

    atol = 1e-12 if form == "first_order" else 1e-9
    assert_transcribed("perfedavg", rounds(client, ()), atol, alpha=0.3, form=form)


@pytest.mark.parametrize("chosen", [False, True])
def test_fedmax(chosen):
    """With the defaults, and with all options; the features are the examples times the slope."""
    beta = 3.0 if chosen else 1.0

    def client(i, x, _):
        examples = regression().clients[i]["x"]

        def penalised(g, y):
            softmax = np.exp(examples * y["slope"])
            softmax = softmax / softmax.sum(1, keepdims=True)
            return g | {"slope": g["slope"] + beta * ((softmax - 1 / 2) * examples).mean(0)}

        return local_models(x, i, STEPS[i], correct=penalised)[-1], ()

    options = {"features": lambda outputs: outputs[1], "beta": 3.0, **E, **ETA} if chosen else {}
    transcribed = rounds(client, (), *("examples", 0.7) if chosen else ())
    assert_transcribed("fedmax", transcribed, **options)


def loss(params, client):
    x, y = regression().clients[client].values()
    return 0.5 * np.mean((x @ params["slope"] + params["offset"] - y) ** 2)


def test_ifca():
    """From models that depend on the key."""

    def init(key):
        first, second = jax.random.split(key)
        slope = jax.random.normal(first, (2,), float)
        return fa.Model({"slope": slope, "offset": jax.random.normal(second, (), float)})

    problem = regression().problem._replace(init=init)
    local = fa.Local(3, RATE, steps=1, batches="full")
    algorithm = algorithms["ifca"](problem, local, clusters=3, **E, **ETA)
    keys = [model_key(0), jax.random.key(1), jax.random.key(2)]
    theta = [jax.tree.map(np.asarray, problem.init(key).params) for key in keys]
    used = set()
    for snapshot, cohort in zip(follow(Naive(algorithm), steps=STEPS), SETS, strict=True):
        chosen = {i: int(np.argmin([loss(t, i) for t in theta])) for i in cohort}
        used |= set(chosen.values())
        for j in range(3):
            group = [i for i in cohort if chosen[i] == j]
            if group:
                y = [local_models(theta[j], i, STEPS[i])[-1] for i in group]
                theta[j] = average(theta[j], y, group, "examples", 0.7)
            found = jax.tree.map(lambda leaf, j=j: leaf[j], snapshot.server.models)
            assert_same([found], [theta[j]], 1e-12)
        assert {i: int(snapshot.clients[i]) for i in cohort} == chosen
        mean = combine(lambda *leaves: sum(leaves) / 3, *theta)
        assert_same([snapshot.server.params], [mean], 1e-12)
        for i in cohort:
            own = algorithm.personal(snapshot.server, snapshot.clients[i]).params
            assert_same([jax.tree.map(np.asarray, own)], [theta[chosen[i]]], 1e-12)
    assert len(used) > 1


@pytest.mark.all
@pytest.mark.parametrize("spec", ["fedrep:head=out,body_share=0.99", "fedbn:norm=hidden/*"])
def test_p3_p4_a_part_that_nothing_reads(spec):
    """FedRep with all steps for the body, and FedBN, are FedAvg of the other params."""
    problem, local = with_unused(regression().problem), fa.Local(3, RATE, steps=1, batches="full")
    found = models(follow(Naive(algorithms.make(spec, problem, local)), steps=STEPS))
    expected = models(play("fedavg", steps=STEPS, **U))
    assert_same([{key: model[key] for key in START} for model in found], expected)


@pytest.mark.parametrize(
    ("form", "rounds", "local", "expected"),
    [
        # six batches: D, D' and D''
        later("hessian_free", 1, {"steps": 2}, [0, 0, 1, 1, 1, 1, 2, 2]),
        later("first_order", 3, {"steps": 1, "batches": "persistent"}, [0, 0, 1, 1, 1, 1, 1, 1]),
        ("hessian_free", 2, {"steps": 1, "batches": "persistent"}, [0, 0, 1, 1, 1, 1, 2, 2]),
    ],
)
def test_perfedavg_takes_no_batch_twice(form, rounds, local, expected):
    """Steps of one example each, six of eight in an epoch; D'' has two gradients."""
    seen, toy = [], small_network()

    def loss(outputs, batch):
        jax.debug.callback(lambda y: seen.append(float(y[0])), batch["y"], ordered=False)
        return (outputs.logits - batch["y"]) ** 2

    local, problem = fa.Local(1, RATE, **local), toy.problem._replace(loss=loss)
    dispatches = dispatches_of(toy.data, local, [(2,)] * rounds)
    naive = Naive(algorithms["perfedavg"](problem, local, form=form))
    naive.rounds(toy.data, dispatches, fa.Population(4, 1, 17))
    jax.effects_barrier()
    assert sorted(seen.count(y) for y in toy.clients[2]["y"]) == expected


PATHS = "of the params offset, slope"
REFUSED = [
    ("fedrep", {"head": "Dense*"}, rf"head='Dense\*' .* none {PATHS}; give a pattern"),
    ("fedrep", {"head": "*"}, f"all {PATHS}, which leaves none for the body"),
    ("fedrep", {"head": str.isdigit}, f"head=isdigit matches none {PATHS}; give a pattern such as"),
    ("fedbn", {"norm": "zzz"}, f"fedbn: norm='zzz' matches none {PATHS}"),
    ("fedbn", {}, rf"fedbn: norm='\*norm\*' matches none {PATHS}; give"),
    ("fedbn", {"norm": "*"}, f"'.*' matches all {PATHS}, .* for the server"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_a_pattern_of_no_param_or_of_all_is_refused(name, options, message):
    local = fa.Local(1, RATE, steps=1)
    with pytest.raises(ValueError, match=message):
        algorithms[name](regression().problem, local, **options)
    if options == {"norm": "zzz"}:  # also where there are statistics
        with pytest.raises(ValueError, match="norm='zzz' matches none of the params hidden/b, hid"):
            algorithms[name](with_statistics(small_network().problem), local, **options)
