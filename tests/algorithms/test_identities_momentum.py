"""Identities of heavy-ball momentum, H2 to H8; H1 and H9 are in `test_identities`."""

import pytest
from histories import RATE, SETS, START, assert_differ, assert_same, combine, gradient, models, play

pytestmark = pytest.mark.usefixtures("x64")

U = {"weighting": "uniform"}
STEPS = (3, 1, 4, 2, 5, 3)
CYCLE = ((0, 1, 2), (3, 4, 5))


def test_h2_first_rounds_are_fedavg():
    """No correction before round tau + 1, and one from then on."""
    actual, expected = play("ghbm", steps=STEPS, tau=2), play("fedavg", steps=STEPS)
    assert_same(actual[:2], expected[:2])
    assert_differ(actual[:3], expected[:3])


@pytest.mark.parametrize("eta", [1.0, 0.5])
def test_h3_ghbm_over_one_round_is_fedcm(eta):
    """With unequal work, weights n_i, and a weight decay that is multiplied by a."""
    a = 1 - 0.9 * eta
    ghbm = play(
        "ghbm",
        steps=STEPS,
        rate=RATE * a,
        compiled=(("decay", 0.2),),
        tau=1,
        beta=0.9,
        server_learning_rate=eta,
    )
    settings = {"alpha": a, "server_learning_rate": eta}
    assert_same(play("fedcm", steps=STEPS, compiled=(("decay", 0.2 * a),), **settings), ghbm)
    if eta == 1:
        assert_differ(play("fedcm", steps=STEPS, compiled=(("decay", 0.2),), **settings), ghbm)


@pytest.mark.slow
def test_h3b_fedgbo_is_fedcm_and_ghbm():
    """The mean delta divided by (rate * K) is itself the moving average of gradients."""
    expected = play("fedgbo", optimizer="sgdm", beta=0.9)
    assert_same(play("fedcm", alpha=1 - 0.9, **U), expected)
    assert_same(play("ghbm", rate=RATE * (1 - 0.9), tau=1, beta=0.9, **U), expected)


def test_h4_localghbm_in_cycles_is_ghbm():
    """C = 1/2 and tau = 2, from the first round on, with weights n_i and unequal work."""
    sets = (CYCLE * 7)[:13]
    actual = play("localghbm", sets, steps=STEPS)
    assert_same(actual, play("ghbm", sets, steps=STEPS, tau=2))


def test_h5_both_scales_are_equal_only_in_cycles():
    """1 / tau_i is C where every gap is 1 / C."""
    sets = (CYCLE * 7)[:13]
    assert_same(play("localghbm", sets=sets, scale="gap"), play("localghbm", sets=sets))
    assert_differ(play("localghbm", scale="gap"), play("localghbm"))


def test_h6_fedhbm_is_not_localghbm():
    """It has another anchor and compares another point with it."""
    assert_differ(play("fedhbm", beta=0.9), play("localghbm", beta=0.9))


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
    x = models(play("ghbm", sets=sets, steps=STEPS, rate=rates, tau=2))
    expected = combine(lambda now, then: now + 0.9 / 2 * (now - then), x[3], x[1])
    assert_same(x[4:], [expected], atol=1e-12)
