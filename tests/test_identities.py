"""Algorithms that coincide, exactly, under settings in which they must: G1 to G4 and G7 to G9."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import LAYOUTS, Case, run, small_network

import fedjax_algos as fa
from fedjax_algos import biased_optimizers

pytestmark = pytest.mark.usefixtures("x64")

SETS = [(0, 1), (1, 2), (3, 2), (0, 3), (1, 3), (2, 0)]
RATE, EPS = 0.1, 1e-3


@pytest.fixture(scope="module")
def toy():
    return small_network()


def local(rate=RATE, steps=3, batch_size=3):
    return fa.Local(batch_size, rate, steps=steps)


def history(toy, name, layout="vmapped", sets=SETS, work=None, **settings):
    algorithm = Case(name, settings).build(toy.problem, work or local())
    return run(algorithm, toy.data, sets, layout=layout)


def assert_equal(left, right, atol=1e-13):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), left, right)


@pytest.fixture(scope="module", params=LAYOUTS, ids=str)
def averaged(request, toy):
    """A layout and FedAvg's history in it, uniformly weighted."""
    return request.param, history(toy, "fedavg", request.param, weighting="uniform")


IDENTITIES = {
    "G1: FedGBO SGDm without momentum": ("fedgbo", {"optimizer": "sgdm", "beta": 0.0}),
    "G7: FedAvgM without momentum": ("fedavgm", {"beta": 0.0, "weighting": "uniform"}),
    "G7: dampened FedAvgM without momentum": (
        "fedavgm",
        {"beta": 0.0, "dampened": True, "weighting": "uniform"},
    ),
    "G8: FedProx at mu = 0": ("fedprox", {"mu": 0.0, "weighting": "uniform"}),
}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_is_fedavg(toy, averaged, identity):
    layout, expected = averaged
    name, settings = IDENTITIES[identity]
    assert_equal(history(toy, name, layout, **settings), expected)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [("sgdm", RATE * 0.1), ("rmsprop", RATE / (1 + EPS)), ("adam", RATE * 0.1 / (1 + EPS))],
)
def test_g2_first_round_is_fedavg_at_another_rate(toy, layout, optimizer, rate):
    first = history(toy, "fedgbo", layout, SETS[:1], optimizer=optimizer)
    expected = history(toy, "fedavg", layout, SETS[:1], local(rate), weighting="uniform")
    assert_equal(first, expected)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", ["sgdm", "rmsprop", "adam"])
def test_g3_inverse_is_the_mean_gradient(toy, layout, name):
    """The gradient from which the server's inverse tracks is what clients would have uploaded."""
    seen = {}
    for upload in ("model", "gradient"):
        chosen = getattr(biased_optimizers, name)()

        def track(gradient, statistics, upload=upload, chosen=chosen):
            jax.debug.callback(lambda g: seen.setdefault(upload, []).append(g), gradient)
            return chosen.track(gradient, statistics)

        spy = chosen._replace(track=track)
        history(toy, "fedgbo", layout, optimizer=spy, upload=upload)
        jax.effects_barrier()
        # clients trace `track` too, but their statistics are frozen: what they made is unused
        seen[upload] = seen[upload][-len(SETS) :]
    assert len(seen["model"]) == len(SETS)
    assert_equal(seen["model"], seen["gradient"], atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_g4_one_full_batch_step_is_central_momentum(toy, layout):
    """K = 1 on whole clients: SGDm on the mean of the clients' gradients, written with optax."""
    work = local(steps=1, batch_size=8)
    actual = history(toy, "fedgbo", layout, work=work, optimizer="sgdm")
    params = toy.problem.init(jax.random.key(0)).params
    history_of_optax, momentum = [], optax.ema(0.9, debias=False)
    start = fa.make_engine(Case("fedavg", {}).build(toy.problem, work)).init(
        0, fa.Population(4, 2, 17)
    )
    params, state = start.server.params, momentum.init(params)

    def loss(params, client):
        examples = jax.tree.map(jnp.asarray, toy.clients[client])
        outputs, _ = toy.problem.apply(fa.Model(params), examples, jax.random.key(0), True)
        return toy.problem.loss(outputs, examples).mean()

    for cohort in SETS:
        gradients = [jax.grad(loss)(params, client) for client in cohort]
        mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *gradients)
        direction, state = momentum.update(mean, state)
        params = jax.tree.map(lambda x, d: x - RATE * d, params, direction)
        history_of_optax.append(params)
    assert_equal(actual, history_of_optax)


def test_g9_frozen_rmsprop_is_fedavg(toy, averaged):
    """v stays 1 for ever: FedAvg at rate / (1 + eps), in all rounds."""
    layout, _ = averaged
    stub = biased_optimizers.rmsprop(eps=EPS)._replace(
        track=lambda gradient, statistics: statistics
    )
    expected = history(toy, "fedavg", layout, work=local(RATE / (1 + EPS)), weighting="uniform")
    assert_equal(history(toy, "fedgbo", layout, optimizer=stub), expected)


@pytest.mark.parametrize("name", ["sgdm", "rmsprop", "adam"])
def test_inverse_undoes_update(name):
    optimizer = getattr(biased_optimizers, name)()
    rng = np.random.default_rng(0)
    statistics = jax.tree.map(
        lambda leaf: jnp.asarray(rng.uniform(0.1, 2, leaf.shape)), optimizer.init(jnp.zeros(9))
    )
    gradient = jnp.asarray(rng.normal(size=9))
    assert_equal(optimizer.inverse(optimizer.update(gradient, statistics), statistics), gradient)


@pytest.mark.parametrize("name", ["sgdm", "rmsprop", "adam"])
def test_both_forms_agree(toy, name):
    """Inverse and uploaded gradients to 1e-10, also where clients do unequal work."""
    steps = (4, 2, 7, 3)
    forms = [
        run(
            Case("fedgbo", {"optimizer": name, "upload": upload}).build(toy.problem, local()),
            toy.data,
            SETS,
            num_steps=steps,
        )
        for upload in ("model", "gradient", "both")
    ]
    assert_equal(forms[0], forms[1], atol=1e-10)
    assert_equal(forms[0], forms[2], atol=1e-10)


@pytest.mark.parametrize("name", ["sgdm", "rmsprop", "adam"])
def test_client_reads_the_old_statistics(name):
    """U before T; optax's own transforms step with the new ones, and would fail the goldens."""
    transform = getattr(biased_optimizers, name)().transform()
    gradient = jnp.asarray([3.0, -2.0])
    first, tracked = transform.update(gradient, transform.init(gradient))
    second, _ = transform.update(gradient, tracked)
    expected = {"sgdm": 0.1, "rmsprop": 1 / (1 + EPS), "adam": 0.1 / (1 + EPS)}[name]
    assert_equal(first, expected * gradient)
    assert np.abs(np.asarray(second - first)).min() > 1e-3
