"""Algorithms that are equal up to rounding where they must be, and differ where they must.

Identities with letters and numbers, here and in the files beside this one: G and M are FedGBO's and
its baselines', X Mime's, H GHBM's, L FedLGA's, N FedNova's, SC SCAFFOLD's, D FedDyn's, A AdaBest's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from histories import (
    RATE,
    SETS,
    START,
    assert_differ,
    assert_same,
    combine,
    engine,
    gradient,
    local_models,
    models,
    play,
    regression,
)

import fedjax_algos as fa
from fedjax_algos.algorithms.global_optimizers import biased_optimizers

pytestmark = pytest.mark.usefixtures("x64")

EPS = 1e-3
OPTIMIZERS = ["sgdm", "rmsprop", "adam"]
U, E = {"weighting": "uniform"}, {"weighting": "examples"}
over_optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS)

IS_FEDAVG = {
    "G1: FedGBO SGDm without momentum": ("fedgbo", {"optimizer": "sgdm", "beta": 0.0}),
    "X2: MimeLiteMom without momentum": ("mimelitemom", {"beta": 0.0}),
    "G7, H9: FedAvgM without momentum": ("fedavgm", {"beta": 0.0, **U}),
    "G7: dampened FedAvgM without momentum": ("fedavgm", {"beta": 0.0, "dampened": True, **U}),
    "G8: FedProx at mu = 0": ("fedprox", {"mu": 0.0, **E}),
    "G8: FedMAX at beta = 0": ("fedmax", {"beta": 0.0, **U}),
    "H1: GHBM at beta = 0": ("ghbm", {"tau": 1, "beta": 0.0, **U}),
    "H1: LocalGHBM at beta = 0": ("localghbm", {"beta": 0.0, **E}),
    "H1: FedHBM at beta = 0": ("fedhbm", {"beta": 0.0, **E}),
    "A1: AdaBest at mu = beta = 0": ("adabest", {"mu": 0.0, "beta": 0.0, **E}),
    "L1: FedLGA where all work is complete": ("fedlga", {}),
    "N1: FedNova at equal work": ("fednova", E),
}


@pytest.mark.sampled
@pytest.mark.parametrize("identity", IS_FEDAVG)
def test_is_fedavg(identity):
    name, settings = IS_FEDAVG[identity]
    weighting = settings.get("weighting", "uniform")
    assert_same(play(name, **settings), play("fedavg", weighting=weighting))


def test_the_two_weightings_differ():
    assert_differ(play("fedavg", **U), play("fedavg", **E))


@pytest.mark.slow
def test_g8_terms_with_factor_zero_do_not_change_the_minibatches():
    """G8 with drawn batches."""
    short = (("batches", "short"),)
    expected = play("fedavg", compiled=short, **E)
    assert_differ(expected, play("fedavg", **E))
    for name, settings in [("fedprox", {"mu": 0.0}), ("fedmax", {"beta": 0.0})]:
        assert_same(play(name, compiled=short, **settings, **E), expected)


@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [("sgdm", RATE * 0.1), ("rmsprop", RATE / (1 + EPS)), ("adam", RATE * 0.1 / (1 + EPS))],
)
def test_g2_first_round_is_fedavg_at_another_rate(optimizer, rate):
    first = play("fedgbo", optimizer=optimizer)[:1]
    assert_same(first, play("fedavg", rate=rate, **U)[:1])


@over_optimizers
def test_g3_inverse_is_the_mean_gradient(optimizer):
    """The server state is the same if the clients upload their mean gradients instead."""
    for steps in (3, (4, 2, 7, 3, 1, 5)):
        forms = [
            play("fedgbo", steps=steps, optimizer=optimizer, upload=upload)
            for upload in ("model", "gradient")
        ]
        assert_same(*([snapshot.server for snapshot in form] for form in forms), atol=1e-12)


def test_g3_mean_gradient_in_numpy():
    """The m of the first round is .1 of the mean over clients and steps of the gradients."""
    (first, *_) = play("fedgbo", optimizer="sgdm")
    seen = [
        gradient(y, client)
        for client in SETS[0]
        for y in local_models(START, client, 3, RATE * 0.1)[:-1]
    ]
    expected = combine(lambda *g: 0.1 * sum(g) / len(g), *seen)
    assert_same([first.server.optimizer_statistics.m], [expected])


@pytest.mark.parametrize("name", ["fedgbo", "mfl", "mimelite"])
def test_g4_one_full_step_is_central_momentum(name):
    """K = 1 with full batches is dampened momentum on the mean of the clients' gradients."""
    x, m, expected = START, dict.fromkeys(START, 0.0), []
    for cohort in SETS:
        gradients = [gradient(x, client) for client in cohort]
        m = combine(lambda m, *g: 0.9 * m + 0.1 * sum(g) / len(g), m, *gradients)
        x = combine(lambda x, m: x - RATE * m, x, m)
        expected.append(x)
    assert_same(models(play(name, steps=1, optimizer="sgdm")), expected)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_g5_one_full_step_of_second_moments(optimizer):
    """FedGBO equals MimeLite; MFL differs: it uses the new v and averages the clients' own g^2."""
    one = {"steps": 1, "rate": 1.0, "optimizer": optimizer}
    expected = play("fedgbo", **one)
    assert_same(play("mimelite", **one), expected)
    assert_differ(play("mfl", **one), expected)


def test_g6_with_more_steps_they_differ():
    names = ("fedgbo", "mfl", "mimelite")
    runs = [play(name, steps=3, optimizer="sgdm") for name in names]
    for index, left in enumerate(runs):
        for right in runs[index + 1 :]:
            assert_differ(left, right)


def test_g9_frozen_rmsprop_is_fedavg():
    """If v stays 1, all rounds are FedAvg with rate / (1 + eps)."""
    stub = biased_optimizers.rmsprop(eps=EPS)._replace(
        track=lambda gradient, statistics: statistics
    )
    expected = play("fedavg", rate=RATE / (1 + EPS), **U)
    assert_same(play("fedgbo", optimizer=stub), expected)


def test_g10_mimexlite_on_all_examples_is_mimelite():
    """The drawn batches contain all of a client's examples, in any order."""
    whole = (("batches", "short"), ("batch_size", 8))
    actual = play("mimexlite", compiled=whole, optimizer="adam")
    assert_same(actual, play("mimelite", optimizer="adam"))


@over_optimizers
def test_m1_mfl_with_one_client_is_its_optimiser_without_rounds(optimizer):
    """Five rounds of three steps are fifteen steps of an optimiser that keeps its moments."""
    history = play("mfl", sets=((2,),) * 5, steps=3, optimizer=optimizer)
    y, m, v = START, dict.fromkeys(START, 0.0), dict.fromkeys(START, 1.0)
    decay, expected = 0.99 if optimizer == "adam" else 0.9, []
    for _ in range(15):
        g = gradient(y, 2)
        m = combine(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = combine(lambda v, g: decay * v + (1 - decay) * g**2, v, g)
        scaled = combine(lambda d, v: d / (np.sqrt(v) + EPS), g if optimizer == "rmsprop" else m, v)
        y = combine(lambda y, d: y - RATE * d, y, m if optimizer == "sgdm" else scaled)
        expected.append(y)
    assert_same(models(history), expected[2::3])


@pytest.mark.parametrize(("name", "beta"), [("mime", 0.0), ("mimemom", 0.9)])
def test_x1_one_full_step_of_mime(name, beta):
    """Every client makes the step `-rate (c + beta m)`: momentum on the mean of the gradients."""
    x, m, expected = START, dict.fromkeys(START, 0.0), []
    for cohort in SETS:
        gradients = [gradient(x, client) for client in cohort]
        m = combine(lambda m, *g: beta * m + sum(g) / len(g), m, *gradients)
        x = combine(lambda x, m: x - RATE * m, x, m)
        expected.append(x)
    assert_same(models(play(name, steps=1)), expected)


def test_x1_all_clients_make_the_same_step():
    """The clients' deltas are equal, although their data differ."""
    chosen = engine("mimemom", ())
    data, local = regression().data, fa.Local(1, RATE, steps=1)
    cohorts = fa.participation.Cohorts(data.counts(), local, cohort_size=3, seed=0)
    dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
    state = chosen.init(0, fa.Population(6, 3, 23))
    deltas = chosen.updates(state, data, dispatches).updates
    assert all(np.ptp(leaf, axis=0).max() < 1e-15 for leaf in jax.tree.leaves(deltas))


@over_optimizers
def test_inverse_undoes_update(optimizer):
    chosen = getattr(biased_optimizers, optimizer)()
    rng = np.random.default_rng(0)
    statistics = jax.tree.map(
        lambda leaf: jnp.asarray(rng.uniform(0.1, 2, leaf.shape)), chosen.init(jnp.zeros(9))
    )
    gradient = jnp.asarray(rng.normal(size=9))
    assert_same([chosen.inverse(chosen.update(gradient, statistics), statistics)], [gradient])


@over_optimizers
def test_client_reads_the_old_statistics(optimizer):
    """U is computed before T; optax's own transformations step with the new statistics."""
    transform = getattr(biased_optimizers, optimizer)().transform()
    gradient = jnp.asarray([3.0, -2.0])
    first, tracked = transform.update(gradient, transform.init(gradient))
    second, _ = transform.update(gradient, tracked)
    expected = {"sgdm": 0.1, "rmsprop": 1 / (1 + EPS), "adam": 0.1 / (1 + EPS)}[optimizer]
    assert_same([first], [expected * gradient])
    assert np.abs(np.asarray(second - first)).min() > 1e-3
