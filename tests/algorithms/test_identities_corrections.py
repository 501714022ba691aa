"""Identities of algorithms that correct updates or gradients: FedLGA, FedNova, SCAFFOLD, FedDyn.

L1 to L4, N2, SC1 to SC3, D1 and D2; N1 and A1 are in `test_identities`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, run, stored
from histories import (
    COUNTS,
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

pytestmark = pytest.mark.usefixtures("x64")

U, E, ETA = {"weighting": "uniform"}, {"weighting": "examples"}, {"server_learning_rate": 0.7}
PARTIAL, FULL = (5, 2, 5, 3, 1, 4), 5


def test_l1_fedlga_with_a_server_rate():
    """With complete work it is FedAvg with that rate; `test_is_fedavg` has rate 1."""
    assert_same(play("fedlga", **ETA), play("fedavg", **U, **ETA))


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


def test_n2_fednova_at_unequal_work():
    """The server step is tau_eff times the weighted mean of the normalised updates."""
    history = [START, *models(play("fednova", steps=PARTIAL, **E))]
    for before, after, cohort in zip(history[:-1], history[1:], SETS, strict=True):
        p = np.array([COUNTS[i] for i in cohort]) / sum(COUNTS[i] for i in cohort)
        a = np.array([PARTIAL[i] for i in cohort])
        updates = [flat(before) - flat(local_models(before, i, PARTIAL[i])[-1]) for i in cohort]
        expected = flat(before) - (p @ a) * (p / a) @ np.stack(updates)
        np.testing.assert_allclose(flat(after), expected, rtol=0, atol=1e-13)


def test_sc1_first_round_of_scaffold_is_fedavg():
    first = play("scaffold", steps=PARTIAL, **E, **ETA)[:1]
    assert_same(first, play("fedavg", steps=PARTIAL, **E, **ETA)[:1])


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_sc2_control_is_the_mean_raw_gradient(decay):
    """The mean is over the steps of the round; weight decay at the same points is added."""
    history = play("scaffold", steps=PARTIAL, compiled=(("decay", decay),), **E, **ETA)
    x, control, own = START, dict.fromkeys(START, 0.0), [dict.fromkeys(START, 0.0)] * len(COUNTS)
    for snapshot, cohort in zip(history, SETS, strict=True):
        for i in cohort:

            def correct(g, y, c=control, c_i=own[i]):
                return combine(lambda g, y, c, c_i: g - c_i + c + decay * y, g, y, c, c_i)

            passed = local_models(x, i, PARTIAL[i], correct=correct)[:-1]
            seen = [combine(lambda g, y: g + decay * y, gradient(y, i), y) for y in passed]
            mean = combine(lambda *g: sum(g) / len(g), *seen)
            assert_same([row_of(snapshot.clients, i)], [mean])
        x, control = snapshot.server.params, snapshot.server.control
        own = [row_of(snapshot.clients, i) for i in range(len(COUNTS))]


def row_of(table, client):
    return {name: table[name][client] for name in START}


@pytest.mark.parametrize("settings", [{}, {**E, **ETA}], ids=["uniform", "examples"])
def test_sc3_control_is_the_mean_of_all_controls(settings):
    """The mean is over all N clients, absent ones too, with either weighting of the deltas."""
    for snapshot in play("scaffold", steps=PARTIAL, **settings):
        mean = jax.tree.map(lambda rows: rows.mean(0), snapshot.clients)
        assert_same([snapshot.server.control], [mean])
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
        assert_same([row_of(first.clients, i)], [expected])


def test_d2_feddyn_h_is_the_mean_of_all_h_i():
    for snapshot in play("feddyn", steps=PARTIAL, alpha=0.4):
        mean = jax.tree.map(lambda rows: rows.mean(0), snapshot.clients)
        assert_same([snapshot.server.correction], [mean])
        assert np.abs(flat(mean)).max() > 1e-3
