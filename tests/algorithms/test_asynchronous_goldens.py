"""Scalar runs on the virtual clock, to the printed digits; `Naive` is in place of the executor."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, quadratics
from naive_rounds import Naive

import fedjax_algos as fa
from fedjax_algos.asynchrony import FixedSystem, plan_dispatches, planners
from fedjax_algos.runs.studies.method import Method
from fedjax_algos.runs.studies.settings import Settings

pytestmark = pytest.mark.usefixtures("x64")

# Five clients with gradients a (x - b), one example each, so p_i = .2, from w = .5 at rate .01
A, B = (1, 2, 0.5, 1.5, 0.8), (1, -1, 3, 0, -2)
PER_MINUTE = (10, 5, 4, Fraction(5, 2), 2)  # steps; the clock below runs in minutes
MINUTES = [1 / Fraction(rate) for rate in PER_MINUTE]
EQUAL = FixedSystem([Fraction(1, 10)] * 5)
later = functools.partial(pytest.param, marks=pytest.mark.all)
POPULATION = fa.Population(5, 5, 5, num_groups=2)
with jax.enable_x64(True):
    TOY = quadratics([[a] for a in A], [[b] for b in B])
# the params are one array; test_pure_round.py has such params for the other algorithms
FLAT = TOY.problem._replace(
    init=lambda key: fa.Model(jnp.asarray(0.5)),
    apply=lambda model, batch, key, training: (model.params, ()),
)


def slowed(client, dispatch, per_minute):
    """The speeds of the paper, except for one dispatch of one client."""
    rows = [[time] * 60 for time in MINUTES]
    rows[client][dispatch] = 1 / Fraction(per_minute)
    return FixedSystem(rows)


@functools.cache
def algorithm_of(name, **settings):
    return Case(name, settings).build(FLAT, fa.Local(1, 0.01, steps=20, batches="full"))


@functools.cache
def naive_of(name, **settings):
    return Naive(algorithm_of(name, **settings))


def plan_of(planner, minutes, system=None):
    return planners.make(planner)(system or FixedSystem(MINUTES), 5, seconds=Fraction(minutes))


def models(name, settings, planner, minutes=40, system=None):
    """The models after the server steps of a plan."""
    naive, plan = naive_of(name, **settings), plan_of(planner, minutes, system)
    steps = naive.on_the_clock(TOY.data, plan, POPULATION)
    return [float(after.server.params) for after in steps]


def run(name, settings, planner, minutes, system=None):
    """The models after the server steps by their minutes, which differ."""
    found = models(name, settings, planner, minutes, system)
    seen = dict(zip(plan_of(planner, minutes, system).time.tolist(), found, strict=True))
    assert len(seen) == len(found)
    return seen


WARM_UP = {2: 0.5163883756, 4: 0.4529284782, 5: 0.4777114024, 8: 0.4659725419, 10: 0.4361067460}
COMPASS = "compass:min_steps=20,max_steps=100"
BUFFER = {"weighting": "buffer", "server_learning_rate": 0.7}
PLAIN = {"variant": "plain"}  # the default, by the name that shares its compiled programs
FIGURE_1 = {
    "plain": {12: 0.4226292493, 22: 0.3357258186, 32: 0.2643750602, 42: 0.2176130349},
    "momentum": {12: 0.4226292493, 22: 0.3235960716, 32: 0.1672955786, 42: 0.0133184157},
    "normalised": {12: 0.4171013608, 22: 0.2527408353, 32: 0.0952823404, 42: -0.0040900945},
}


@pytest.mark.parametrize("variant", FIGURE_1)
def test_fedcompass_on_figure_1(variant):
    seen = run("fedcompass", {"variant": variant}, COMPASS, 42)
    assert seen == pytest.approx(WARM_UP | FIGURE_1[variant], rel=0, abs=6e-11)


LATE = {14: 0.3883049071, 22: 0.2660879208, 31.8: 0.2501015924}  # 16:12 instead of 12:00


@pytest.mark.parametrize(
    ("variant", "per_minute", "expected"),
    [
        ("plain", Fraction(5, 2), LATE),
        # it arrives at 08:30 and is aggregated at 12:00: its staleness counts at arrival
        ("plain", 8, {12: 0.4303434691}),
        ("normalised", 8, {12: 0.4325298005}),
    ],
)
def test_fedcompass_on_figure_22(variant, per_minute, expected):
    """Client 3 has another speed in its second round."""
    slow = slowed(2, 1, per_minute)
    seen = run("fedcompass", {"variant": variant}, COMPASS, max(expected), slow)
    actual = {time: seen[time] for time in expected}
    assert actual == pytest.approx(expected, rel=0, abs=6e-11)


IMMEDIATE = [0.5163883756, 0.5322395935, 0.4804248042, 0.5018874462, 0.5107391879, 0.5267755679]
IMMEDIATE += [0.4824882416, 0.4741876137, 0.4831427549, 0.5006536983, 0.4805181828]
IMMEDIATE += [0.4902990167, 0.4540881653]
BUFFERED = [0.4430309036, 0.5032276320, 0.4449056190, 0.4550565030]


def test_fedasync_and_fedbuff():
    """Their times are in tests/asynchrony/test_planning.py."""
    found = models("fedasync", {}, "immediate:steps=20", 12)
    assert found == pytest.approx(IMMEDIATE, rel=0, abs=6e-11)
    found = models("fedbuff", {}, "buffered:steps=20,size=3", 12)
    assert found == pytest.approx(BUFFERED, rel=0, abs=6e-11)


def after_steps(start, client, steps, mu=0.0):
    """A client's model after local steps."""
    x = start
    for _ in range(steps):
        x -= 0.01 * (A[client] * (x - B[client]) + mu * (x - start))
    return x


def looped(planner, minutes, exponent, weight=0.2, mixing=False):
    """The models after each server step, by a loop over the plan in NumPy; all p_i are `weight`."""
    plan, versions = plan_of(planner, minutes), [0.5]
    for step in range(len(plan.time)):
        x, here = versions[-1], plan.step == step
        for dispatch, staleness in zip(plan.dispatch[here], plan.staleness[here], strict=True):
            start = versions[plan.version[dispatch]]
            end = after_steps(start, plan.client[dispatch], plan.num_steps[dispatch])
            factor = 0.9 * (staleness + 1.0) ** -exponent
            x += factor * (end - x) if mixing else factor * weight * (end - start)
        versions.append(x)
    assert len(set(plan.staleness)) >= 3
    return versions[1:]


@pytest.mark.parametrize(
    ("name", "settings", "planner", "exponent", "how"),
    [
        ("fedasync", {"exponent": -0.5, "weighting": "uniform"}, "immediate:steps=20", -0.5, {}),
        ("fedasync", {"form": "mixing"}, "immediate:steps=20", 0.5, {"mixing": True}),
        ("fedbuff", {"exponent": -1.5}, "buffered:steps=20,size=3", -1.5, {}),
        ("fedbuff", BUFFER, "buffered:steps=20,size=3", 0.5, {"weight": 0.7 / 3}),
        later("fedcompass", PLAIN, COMPASS, 0.5, {}),
        later("fedcompass", {"exponent": -0.5}, COMPASS, -0.5, {}),
        ("fedcompass", {"mode": "code"}, COMPASS + ",mode=code,first_steps=20", -0.5, {}),
        later("fedcompass", {"mode": "code", "exponent": 0.5}, COMPASS + ",mode=code", 0.5, {}),
    ],
)
def test_weights_of_stale_updates(name, settings, planner, exponent, how):
    """Also exponents below 0."""
    expected = looped(planner, 90, exponent, **how)
    np.testing.assert_allclose(models(name, settings, planner, 90), expected, atol=1e-14)


def test_tiers_have_weights_in_reverse_order():
    """Two tiers: clients 1 and 2, and the others; lambda is .3."""
    plan = plan_of("tiers:steps=20,ratio=2", 42)
    tiers, rounds, versions = [0.0, 0.0], [0, 0], [0.5]
    for step, group in enumerate(plan.group):
        arrived = plan.dispatch[plan.step == step]
        starts = [(versions[plan.version[i]], plan.client[i], 20) for i in arrived]
        tiers[group] = np.mean([after_steps(*each, mu=0.3) for each in starts])
        rounds[group] += 1
        weights = rounds[::-1] if all(rounds) else rounds
        versions.append(np.dot(weights, tiers) / sum(rounds))
    assert rounds[0] > rounds[1] > 1
    actual = models("fedat", {"mu": 0.3}, "tiers:steps=20,ratio=2", 42)
    np.testing.assert_allclose(actual, versions[1:], atol=1e-14)


@pytest.mark.parametrize(
    ("name", "settings", "planner"),
    [
        ("fedcompass", {"variant": "momentum"}, COMPASS),
        later("fedasync", {}, "immediate:steps=20"),
        later("fedbuff", {}, "buffered:steps=20,size=3"),
        later("fedcompass", {"variant": "normalised"}, COMPASS),
        later("fedat", {}, "tiers:steps=20,ratio=2"),
    ],
)
def test_the_executor(name, settings, planner):
    plan = plan_of(planner, 42)
    executor = fa.make_executor(algorithm_of(name, **settings), slots=2)
    dispatches = plan_dispatches(plan, TOY.data.counts(), executor.algorithm.local)
    given = executor.init(0, POPULATION), TOY.data, plan, dispatches
    steps = executor.run(*given, stops=[*range(1, len(plan.time) + 1)])
    found = [float(state.server.params) for _, state, *_ in steps]
    np.testing.assert_allclose(found, models(name, settings, planner, 42), rtol=0, atol=1e-13)


def test_the_planner_of_code_mode():
    settings, own = Settings(seconds=60), "compass:max_steps=50"
    for spec, planner in (("", "compass:mode=code"), (f"@{own}", own)):
        method = Method.of(f"fedcompass:mode=code{spec}", settings)
        algorithm = method.build(TOY.problem, settings)
        assert method.on_the_clock(algorithm, settings).planner == planner


@pytest.mark.parametrize(
    ("name", "planner", "other", "of_other"),
    [
        ("fedbuff", "buffered:steps=20,size=1", "fedasync", "immediate:steps=20"),
        ("fedat", "tiers:steps=20,ratio=5", "fedavg", "barrier:steps=20"),
    ],
)
def test_as1_as10_one_update_in_a_buffer_and_one_tier(name, planner, other, of_other):
    one, expected = models(name, {}, planner), models(other, {}, of_other)
    np.testing.assert_allclose(one, expected, atol=1e-14)


def test_as2_a_first_buffer_of_all_is_fedavg():
    """At equal speeds each client is in it once. Later buffers are stale and differ."""
    buffer = models("fedbuff", {"alpha": 1.0}, "buffered:steps=20,size=5", 12, EQUAL)
    rounds = models("fedavg", {}, "barrier:steps=20", 12, EQUAL)
    assert buffer[0] == pytest.approx(rounds[0], abs=1e-15)
    assert abs(buffer[1] - rounds[1]) > 1e-4


def test_as4_fedcompass_at_equal_speeds_is_fedavg_with_server_rate_alpha():
    """From the second group aggregation on: the first is stale from the warm-up."""
    x, *actual = models("fedcompass", PLAIN, COMPASS, 60, EQUAL)[5:]
    expected = []
    for _ in actual:
        ends = [b + (x - b) * (1 - 0.01 * a) ** 100 for a, b in zip(A, B, strict=True)]
        x = x - 0.9 * (x - np.mean(ends))
        expected.append(x)
    assert len(actual) >= 3
    np.testing.assert_allclose(actual, expected, atol=1e-14)


@pytest.mark.parametrize(
    ("settings", "how", "atol"),
    [
        ({"variant": "momentum", "beta": 0.0}, (), 1e-15),
        ({"variant": "normalised"}, (60, EQUAL), 1e-14),
    ],
)
def test_as5_variants_coincide(settings, how, atol):
    expected = models("fedcompass", PLAIN, COMPASS, *how)
    np.testing.assert_allclose(models("fedcompass", settings, COMPASS, *how), expected, atol=atol)
