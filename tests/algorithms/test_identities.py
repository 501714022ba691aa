"""Algorithms that are equal up to rounding where they must be, and differ where they must.

Identities have letters and numbers: G and M are FedGBO's and its baselines', X Mime's, H GHBM's,
L FedLGA's, N FedNova's, SC SCAFFOLD's, D FedDyn's, A AdaBest's, P those of personalised algorithms.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, run, stored
from histories import (
    LAYOUT,
    RATE,
    SETS,
    START,
    assert_differ,
    assert_same,
    combine,
    gradient,
    local_models,
    models,
    play,
)

import fedjax_algos as fa
from fedjax_algos.algorithms.global_optimizers import biased_optimizers

pytestmark = pytest.mark.usefixtures("x64")

EPS = 1e-3
PARTIAL, FULL = (5, 2, 5, 3, 1, 4), 5
UNEQUAL = (3, 1, 4, 2, 5, 3)
CYCLE = ((0, 1, 2), (3, 4, 5))
OPTIMIZERS = ["sgdm", "rmsprop", "adam"]
U, E, ETA = {"weighting": "uniform"}, {"weighting": "examples"}, {"server_learning_rate": 0.7}
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
    "L1: with a server rate": ("fedlga", ETA),
    "N1: FedNova at equal work": ("fednova", E),
    "q-FedAvg at q = 0": ("qfedavg", {"q": 0.0}),
    "P1: Ditto's global model": ("ditto", {"strength": 0.7, **U}),
    "P2: APFL's global model": ("apfl", {"alpha": 0.3, **U}),
    "P5: IFCA with one cluster": ("ifca", {"clusters": 1, **U}),
    "P6: Per-FedAvg at alpha = 0": ("perfedavg", {"alpha": 0.0, **U}),
    "P6: its other form": ("perfedavg", {"alpha": 0.0, "form": "hessian_free", **U}),
}


@pytest.mark.all
@pytest.mark.parametrize("identity", IS_FEDAVG)
def test_is_fedavg(identity):
    name, settings = IS_FEDAVG[identity]
    shared = {key: settings[key] for key in (U | ETA) if key in settings}
    assert_same(play(name, **settings), play("fedavg", **U | shared))


def test_the_two_weightings_differ():
    assert_differ(play("fedavg", **U), play("fedavg", **E))


@pytest.mark.all
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
    runs = [play(name, steps=3, optimizer="sgdm") for name in ("fedgbo", "mfl", "mimelite")]
    for left, right in itertools.combinations(runs, 2):
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


def test_l2_fedlga_at_strength_0():
    """It is FedAvg of the partial updates."""
    work = {"steps": PARTIAL, "full": FULL}
    assert_same(play("fedlga", **work, strength=0.0), play("fedavg", **work, **U))
    assert_differ(play("fedlga", **work), play("fedavg", **work, **U))


def flat(tree):
    return np.concatenate([np.ravel(tree[name]) for name in START])


@pytest.mark.parametrize(("strength", "sign"), [(1.0, 1), (-1.0, -1)])
def test_l3_fedlga_is_the_matrix_product(strength, sign):
    """`Delta_i + g g^T (w^ - w_i)` with an explicit matrix, from each round's model.

    Delta_i is w_i - w as in the paper's Algorithm 1, or w - w_i as in its Table I: there the server
    descends along the mean of Delta_i, and this is a strength of -1. Some rounds have two complete
    clients, some one, and some none: those correct nothing.
    """
    history = [START, *models(play("fedlga", steps=PARTIAL, full=FULL, strength=strength))]
    sizes = set()
    for before, after, cohort in zip(history[:-1], history[1:], SETS, strict=True):
        ends = np.stack([flat(local_models(before, i, PARTIAL[i])[-1]) for i in cohort])
        deltas = sign * (ends - flat(before))
        complete = np.array([PARTIAL[i] == FULL for i in cohort])
        sizes.add(int(complete.sum()))
        for index in np.flatnonzero(~complete & complete.any()):
            g = deltas[index] / (RATE * PARTIAL[cohort[index]])
            corrected = deltas[index] + np.outer(g, g) @ (ends[complete].mean(0) - ends[index])
            assert np.linalg.matrix_rank(np.stack([corrected, deltas[index]]), tol=1e-12) == 1
            deltas[index] = corrected
        expected = flat(before) + sign * deltas.mean(0)
        np.testing.assert_allclose(flat(after), expected, rtol=0, atol=1e-13)
    assert sizes == {0, 1, 2}


def test_l4_fedlga_on_constant_gradients():
    """c_i = 1 + lambda |g|^2 (S - S_i) / S_i; its upper bound replaces exactly the missing work."""
    g, strength, steps, full = np.array([0.6, -1.1]), 3.0, (5, 3, 2), 5
    problem = fa.Problem(
        init=lambda key: fa.Model({"w": jnp.zeros(2)}),
        apply=lambda model, batch, key, training: (model.params["w"], ()),
        loss=lambda w, batch: batch["g"] @ w,
    )
    data = stored([{"g": g[None]}] * 3)
    local = fa.Local(1, RATE, steps=full, batches="full")

    def change(**settings):
        algorithm = Case("fedlga", {"strength": strength, **settings}).build(problem, local)
        return run(algorithm, data, [(0, 1, 2)], layout=LAYOUT, num_steps=steps)[0]["w"]

    factors = [1 + strength * g @ g * (full - s) / s for s in steps]
    work = sum(c * s for c, s in zip(factors, steps, strict=True)) / 3
    np.testing.assert_allclose(change(), -RATE * g * work, rtol=0, atol=1e-14)
    np.testing.assert_allclose(change(clip=True), -RATE * g * full, rtol=0, atol=1e-14)


def test_sc1_first_round_of_scaffold_is_fedavg():
    first = play("scaffold", steps=PARTIAL, **E, **ETA)[:1]
    assert_same(first, play("fedavg", steps=PARTIAL, **E, **ETA)[:1])


@pytest.mark.parametrize(
    ("name", "field", "settings"),
    [
        ("scaffold", "control", {}),
        ("scaffold", "control", {**E, **ETA}),
        ("feddyn", "correction", {"alpha": 0.4}),
    ],
)
def test_sc3_d2_the_server_has_the_mean_of_all_rows(name, field, settings):
    """The mean is over all N clients, absent ones too, with either weighting of the deltas."""
    for snapshot in play(name, steps=PARTIAL, **settings):
        mean = jax.tree.map(lambda rows: rows.mean(0), snapshot.clients)
        assert_same([getattr(snapshot.server, field)], [mean])
        assert np.abs(flat(mean)).max() > 1e-3


def test_d1_first_local_models_of_feddyn_are_those_of_fedprox():
    """The server moves by (1 + M / N) times the mean of the deltas."""
    (first, *_) = play("feddyn", steps=PARTIAL, alpha=0.4)
    (prox, *_) = models(play("fedprox", steps=PARTIAL, mu=0.4, **U))
    expected = combine(lambda x, mean: x + (1 + 3 / 6) * (mean - x), START, prox)
    assert_same([first.server.params], [expected])
    for i in SETS[0]:

        def proximal(g, y):
            return combine(lambda g, y, x: g + 0.4 * (y - x), g, y, START)

        end = local_models(START, i, PARTIAL[i], correct=proximal)[-1]
        expected = combine(lambda x, y: 0.4 * (x - y), START, end)
        assert_same([{name: first.clients[name][i] for name in START}], [expected])


def test_h2_first_rounds_are_fedavg():
    """No correction before round tau + 1, and one from then on."""
    actual, expected = play("ghbm", steps=UNEQUAL, tau=2), play("fedavg", steps=UNEQUAL)
    assert_same(actual[:2], expected[:2])
    assert_differ(actual[:3], expected[:3])


@pytest.mark.parametrize("eta", [1.0, 0.5])
def test_h3_ghbm_over_one_round_is_fedcm(eta):
    """With unequal work, weights n_i, and a weight decay that is multiplied by a."""
    a = 1 - 0.9 * eta
    of_ghbm = {"tau": 1, "beta": 0.9, "server_learning_rate": eta}
    ghbm = play("ghbm", steps=UNEQUAL, rate=RATE * a, compiled=(("decay", 0.2),), **of_ghbm)
    settings = {"alpha": a, "server_learning_rate": eta}
    assert_same(play("fedcm", steps=UNEQUAL, compiled=(("decay", 0.2 * a),), **settings), ghbm)
    if eta == 1:
        assert_differ(play("fedcm", steps=UNEQUAL, compiled=(("decay", 0.2),), **settings), ghbm)


@pytest.mark.all
def test_h3b_fedgbo_is_fedcm_and_ghbm():
    """The mean delta divided by (rate * K) is itself the moving average of gradients."""
    expected = play("fedgbo", optimizer="sgdm", beta=0.9)
    assert_same(play("fedcm", alpha=1 - 0.9, **U), expected)
    assert_same(play("ghbm", rate=RATE * (1 - 0.9), tau=1, beta=0.9, **U), expected)


def test_h4_localghbm_in_cycles_is_ghbm():
    """C = 1/2 and tau = 2, from the first round on, with weights n_i and unequal work."""
    sets = (CYCLE * 7)[:13]
    actual = play("localghbm", sets, steps=UNEQUAL)
    assert_same(actual, play("ghbm", sets, steps=UNEQUAL, tau=2))


def test_h5_both_scales_are_equal_only_in_cycles():
    """1 / tau_i is C where every gap is 1 / C."""
    sets = (CYCLE * 7)[:13]
    assert_same(play("localghbm", sets=sets, scale="gap"), play("localghbm", sets=sets))
    assert_differ(play("localghbm", scale="gap"), play("localghbm"))


def test_h7_over_one_round_both_forms_are_equal():
    """With one full step: `m <- beta m + g` of the paper's eq. 4, and the heavy ball of eq. 5."""
    x, m, momentum_form, past = START, dict.fromkeys(START, 0.0), [], [START, START]
    for cohort in SETS:
        mean = mean_gradient(x, cohort)
        m = combine(lambda m, g: 0.9 * m + g, m, mean)
        x = combine(lambda x, m: x - RATE * m, x, m)
        momentum_form.append(x)
        mean = mean_gradient(past[-1], cohort)
        past.append(
            combine(lambda x, old, g: x - RATE * g + 0.9 * (x - old), past[-1], past[-2], mean)
        )
    actual = models(play("ghbm", steps=1, tau=1, beta=0.9, **U))
    assert_same(actual, momentum_form)
    assert_same(actual, past[2:])


def test_h7_over_two_rounds_the_first_rounds_have_no_momentum():
    """It is eq. 5 without the term in rounds 1 and 2; eq. 4 from m = 0 has a term in round 2."""
    past, m, momentum_form = [START], [dict.fromkeys(START, 0.0)] * 2, [START]
    for t, cohort in enumerate(SETS):
        x = momentum_form[-1]
        m.append(combine(lambda g, a, b: g + 0.9 / 2 * (a + b), mean_gradient(x, cohort), *m[-2:]))
        momentum_form.append(combine(lambda x, m: x - RATE * m, x, m[-1]))
        x, old = past[-1], past[-3] if t >= 2 else past[-1]
        term = combine(lambda x, old: 0.9 / 2 * (x - old), x, old)
        past.append(combine(lambda x, g, d: x - RATE * g + d, x, mean_gradient(x, cohort), term))
    actual = models(play("ghbm", steps=1, tau=2, **U))
    assert_same(actual, past[1:])
    gap = combine(lambda a, b: abs(a - b).max(), actual[1], momentum_form[2])
    assert max(gap.values()) > 1e-3


def mean_gradient(x, cohort):
    gradients = [gradient(x, client) for client in cohort]
    return combine(lambda *g: sum(g) / len(g), *gradients)


def test_h8_sum_of_the_corrections_of_a_round():
    """It is (beta / tau) (theta^{t-1} - theta^{t-tau-1}) for any rate and J."""
    sets = (*SETS[:4], SETS[4])
    rates = (RATE, 0.3, RATE, 0.2, 1e-13)
    x = models(play("ghbm", sets=sets, steps=UNEQUAL, rate=rates, tau=2))
    expected = combine(lambda now, then: now + 0.9 / 2 * (now - then), x[3], x[1])
    assert_same(x[4:], [expected], atol=1e-12)
