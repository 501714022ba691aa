"""Algorithms that are equal up to rounding where they must be, and differ where they must.

Identities have letters and numbers: G and M are FedGBO's and its baselines', X Mime's, H GHBM's,
L FedLGA's, N FedNova's, SC SCAFFOLD's, D FedDyn's, A AdaBest's, P those of personalised algorithms,
S those of sharpness, and B those of other baselines.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import dispatches_of, quadratics
from histories import (
    RATE,
    SETS,
    START,
    assert_differ,
    assert_same,
    combine,
    gradient,
    local_models,
    models,
)
from naive_rounds import play

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.algorithms.averaging.fedlga import factors
from fedjax_algos.algorithms.global_optimizers import biased_optimizers
from fedjax_algos.core import Stack

pytestmark = pytest.mark.usefixtures("x64")

PARTIAL, FULL = (5, 2, 5, 3, 1, 4), 5
UNEQUAL = (3, 1, 4, 2, 5, 3)
U, E, ETA = {"weighting": "uniform"}, {"weighting": "examples"}, {"server_learning_rate": 0.7}
later = functools.partial(pytest.param, marks=pytest.mark.all)
CYCLES = {"sets": (((0, 1, 2), (3, 4, 5)) * 7)[:13]}  # C = 1/2, and every gap is 1 / C
HOW = {  # the options of both runs; `rounds` are compared
    "as_ever": {},
    "first": {"rounds": 1},
    "partial": {"steps": PARTIAL, "full": FULL},
    "unequal": {"steps": UNEQUAL},
    "unequal_first": {"steps": UNEQUAL, "rounds": 1},
    "unequal_two": {"steps": UNEQUAL, "rounds": 2},
    "unequal_three": {"steps": UNEQUAL, "rounds": 3},
    "one_step": {"steps": 1, "rate": 1.0},
    "cycles": CYCLES,
    "unequal_cycles": CYCLES | {"steps": UNEQUAL},
    "short": {"compiled": (("batches", "short"),)},
    "all_drawn": {"compiled": (("batches", "short"), ("batch_size", 8))},  # in any order
}
# "avg" is FedAvg with uniform weights; after "@" there is the factor of the learning rate
QUICK = """
G2_sgdm  fedgbo = avg@0.1  first
L2_strength_0  fedlga:strength=0 = avg  partial
L2_strength_1  fedlga != avg  partial
H2_first_rounds  ghbm:tau=2 = fedavg  unequal_two
H2_from_round_tau_plus_1  ghbm:tau=2 != fedavg  unequal_three
H4_cycles  localghbm = ghbm:tau=2  unequal_cycles
P9_one_inner_step  pfedme:strength=2,personal_learning_rate=0.05,inner_steps=1 = avg@0.1  partial
S_rho_0  fedsam:rho=0 = avg  unequal
S_rho  fedsam != avg  as_ever
B_moon_first  moon = fedavg  unequal_first
B_moon  moon != fedavg  unequal_two
G6_fedgbo_mfl  fedgbo != mfl  as_ever
G6_fedgbo_mimelite  fedgbo != mimelite  as_ever
G6_mfl_mimelite  mfl != mimelite  as_ever
weightings  avg != fedavg  as_ever
"""
LATER = """
G1_no_momentum  fedgbo:beta=0 = avg  as_ever
X2_no_momentum  mimelitemom:beta=0 = avg  as_ever
G7_H9_no_momentum  fedavgm:beta=0,weighting=uniform = avg  as_ever
G7_dampened  fedavgm:beta=0,dampened=true,weighting=uniform = avg  as_ever
G8_mu_0  fedprox:mu=0 = fedavg  as_ever
G8_beta_0  fedmax:beta=0 = avg  as_ever
G8_minibatches_prox  fedprox:mu=0 = fedavg  short
G8_minibatches_max  fedmax:beta=0,weighting=examples = fedavg  short
H1_ghbm  ghbm:tau=1,beta=0,weighting=uniform = avg  as_ever
H1_localghbm  localghbm:beta=0 = fedavg  as_ever
H1_fedhbm  fedhbm:beta=0 = fedavg  as_ever
A1_mu_beta_0  adabest:mu=0,beta=0 = fedavg  as_ever
L1_all_complete  fedlga = avg  as_ever
L1_server_rate  fedlga:server_learning_rate=0.7 = avg,server_learning_rate=0.7  as_ever
N1_equal_work  fednova = fedavg  as_ever
q_0  qfedavg:q=0 = avg  as_ever
S_fedcm  mofedsam:rho=0 = fedcm:weighting=uniform  unequal
S_alpha_1  mofedsam:alpha=1 = fedsam  unequal
S_scaffold  fedgamma:rho=0 = scaffold  unequal
S_fedgamma_first  fedgamma = fedsam  unequal_first
S_feddyn  fedspeed:rho=0,duals=all = feddyn:alpha=0.1  unequal
S_alpha_0  fedspeed:alpha=0,duals=all = feddyn:alpha=0.1  unequal
S_lesam  fedlesam:rho=0 = avg  unequal
S_lesam_first  fedlesam = avg  unequal_first
S_lesam_s  fedlesam:rho=0,variant=scaffold = scaffold  unequal
S_lesam_d  fedlesam:rho=0,variant=feddyn,alpha=0.1 = feddyn:alpha=0.1  unequal
S_lesam_moves  fedlesam != avg  unequal
S_smoo  fedsmoo:rho=0 = feddyn:alpha=0.1  unequal
B_fresh  diloco:state=fresh = diloco  unequal_first
B_kept  diloco:state=fresh != diloco  unequal
B_adamw  fedadamw = diloco:momentum=0,server_learning_rate=1  unequal_first
B_vectors  fedmuon:gamma=0 = diloco:state=fresh,b2=0.95,momentum=0,server_learning_rate=1  unequal
B_blocks  fedadamw:moments=entry != fedadamw  unequal
B_moon_mu_0  moon:mu=0 = fedavg  unequal
B_feddecorr_0  feddecorr:beta=0 = fedavg  short
B_fedexp  fedexp:epsilon=1e9,averaged=false = fedavg  unequal
B_fedacg  fedacg:lambda_=0 = fedprox:mu=0.01,weighting=uniform  unequal
B_fedacg_first  fedacg = fedprox:mu=0.01,weighting=uniform  unequal_first
B_ca2fl_first  ca2fl = avg  unequal_first
B_asyncsgd  asyncsgd = avg  unequal
B_fedala_0  fedala:eta=0 = fedavg  unequal
B_fedala  fedala != fedavg  unequal
B_nesterov  fedavgm:nesterov=true != fedavgm  as_ever
P1_global  ditto:strength=0.7,weighting=uniform = avg  as_ever
P2_global  apfl:alpha=0.3 = avg  as_ever
P5_one_cluster  ifca:clusters=1 = avg  as_ever
P6_alpha_0  perfedavg:alpha=0 = avg  as_ever
P6_hessian_free  perfedavg:alpha=0,form=hessian_free = avg  as_ever
G2_rmsprop  fedgbo:optimizer=rmsprop = avg@0.9990009990009991  first
G2_adam  fedgbo:optimizer=adam = avg@0.09990009990009991  first
G5_rmsprop  fedgbo:optimizer=rmsprop = mimelite:optimizer=rmsprop  one_step
G5_adam  fedgbo:optimizer=adam = mimelite:optimizer=adam  one_step
G10_all_examples  mimexlite:optimizer=adam = mimelite:optimizer=adam  all_drawn
SC1_first_round  scaffold:server_learning_rate=0.7 = avg,server_learning_rate=0.7  unequal_first
H3b_fedcm  fedgbo = fedcm:alpha=0.1,weighting=uniform  as_ever
H3b_ghbm  fedgbo = ghbm:tau=1,weighting=uniform@0.1  as_ever
H5_scales  localghbm:scale=gap = localghbm  cycles
G5_mfl_uses_new_v  fedgbo:optimizer=rmsprop != mfl:optimizer=rmsprop  one_step
G5_mfl_adam  fedgbo:optimizer=adam != mfl:optimizer=adam  one_step
H5_other_cohorts  localghbm:scale=gap != localghbm  as_ever
P9_three_inner  pfedme:strength=2,personal_learning_rate=0.05,inner_steps=3 != avg@0.1  partial
"""


def identities():
    for table, parameters in ((QUICK, pytest.param), (LATER, later)):
        for name, *terms in map(str.split, table.strip().splitlines()):
            yield parameters(*terms, id=name)


def played(spec, how):
    spec, _, factor = spec.partition("@")
    name, settings = algorithms.parse(re.sub(r"^avg\b", "fedavg:weighting=uniform", spec))
    options = HOW[how] | {"rate": HOW[how].get("rate", RATE) * float(factor or 1)}
    rounds = options.pop("rounds", None)
    return play(name, **options, **settings)[:rounds]


@pytest.mark.parametrize(("one", "sign", "other", "how"), [*identities()])
def test_identities(one, sign, other, how):
    check = assert_same if sign == "=" else assert_differ
    check(played(one, how), played(other, how))


@pytest.mark.all
def test_g9_frozen_rmsprop_is_fedavg():
    """If v stays 1, all rounds are FedAvg with rate / (1 + eps)."""
    stub = biased_optimizers.rmsprop()._replace(track=lambda gradient, statistics: statistics)
    assert_same(play("fedgbo", optimizer=stub), play("fedavg", rate=RATE / (1 + 1e-3), **U))


@pytest.mark.parametrize("eta", [later(1.0), 0.5])
def test_h3_ghbm_over_one_round_is_fedcm(eta):
    """With unequal work, weights n_i, and a weight decay that is multiplied by a."""
    a, decay = 1 - 0.9 * eta, (("decay", 0.2),)
    options = {"steps": UNEQUAL, "server_learning_rate": eta}
    ghbm = play("ghbm", rate=RATE * a, compiled=decay, tau=1, beta=0.9, **options)
    fedcm = functools.partial(play, "fedcm", alpha=a, **options)
    assert_same(fedcm(compiled=(("decay", 0.2 * a),)), ghbm)
    if eta == 1:
        assert_differ(fedcm(compiled=decay), ghbm)


@pytest.mark.parametrize("optimizer", ["sgdm", later("rmsprop"), later("adam")])
def test_g3_inverse_is_the_mean_gradient(optimizer):
    """The server state is the same if the clients upload their mean gradients instead."""
    for steps in (3, (4, 2, 7, 3, 1, 5)):
        forms = [
            play("fedgbo", steps=steps, optimizer=optimizer, upload=upload)
            for upload in ("model", "gradient")
        ]
        assert_same(*([snapshot.server for snapshot in form] for form in forms), atol=1e-12)


def descended(rule):
    """The models after rounds of `rule(t, g, models so far)`, g the mean gradient of the cohort."""
    past = [START]
    for t, cohort in enumerate(SETS):
        gradients = [gradient(past[-1], client) for client in cohort]
        mean = combine(lambda *g: sum(g) / len(g), *gradients)
        past.append({name: rule(t, mean[name], [x[name] for x in past]) for name in START})
    return past[1:]


def momentum(beta, factor):
    """`m <- beta m + factor g`, `x <- x - RATE m`: m is the last change."""

    def rule(t, g, past):
        m = (past[-2] - past[-1]) / RATE if t else 0.0
        return past[-1] - RATE * (beta * m + factor * g)

    return rule


@pytest.mark.parametrize(
    ("name", "settings", "factor"),
    [
        *((name, {"optimizer": "sgdm"}, 0.1) for name in ("fedgbo", "mfl", "mimelite")),
        ("ghbm", {"tau": 1, **U}, 1.0),  # which is the heavy ball
    ],
)
def test_g4_h7_one_full_step_is_central_momentum(name, settings, factor):
    """Of the mean of the clients' gradients, which is dampened or not."""
    assert_same(models(play(name, steps=1, **settings)), descended(momentum(0.9, factor)))


def test_h7_over_two_rounds_the_first_rounds_have_no_momentum():
    """It is eq. 5 without the term in rounds 1 and 2; eq. 4 from m = 0 has a term in round 2."""

    def heavy_ball(t, g, past, first=2):
        change = past[-1] - past[max(-3, -t - 1)] if t >= first else 0
        return past[-1] - RATE * g + 0.9 / 2 * change

    actual = models(play("ghbm", steps=1, tau=2, **U))
    assert_same(actual, descended(heavy_ball))
    of_eq_4 = descended(functools.partial(heavy_ball, first=1))
    gap = combine(lambda a, b: abs(a - b).max(), actual[1], of_eq_4[1])
    assert max(gap.values()) > 1e-3


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
    g, strength, steps, full = jnp.array([0.6, -1.1]), 3.0, np.array([5, 3, 2]), 5
    data, local = quadratics([[1.0]] * 3, [[1.0]] * 3).data, fa.Local(1, RATE, steps=full)
    dispatches = dispatches_of(data, local, [(0, 1, 2)], steps)
    of_round = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), dispatches)
    stack = Stack({"w": -RATE * steps[:, None] * g[None]}, of_round, jnp.ones(3, bool))
    expected = 1 + strength * g @ g * (full - steps) / steps
    np.testing.assert_allclose(factors(stack, strength=strength), expected, rtol=1e-12)
    found = factors(stack, strength=strength, clip=True)
    np.testing.assert_allclose(found, full / steps, rtol=1e-12)


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


def test_h8_sum_of_the_corrections_of_a_round():
    """It is (beta / tau) (theta^{t-1} - theta^{t-tau-1}) for any rate and J."""
    rates = (RATE, 0.3, RATE, 0.2, 1e-13)
    x = models(play("ghbm", sets=SETS[:5], steps=UNEQUAL, rate=rates, tau=2))
    expected = combine(lambda now, then: now + 0.9 / 2 * (now - then), x[3], x[1])
    assert_same(x[4:], [expected], atol=1e-12)
