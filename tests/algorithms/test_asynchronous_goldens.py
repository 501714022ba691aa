"""Scalar runs on the virtual clock, to the printed digits, through planner and executor."""

import functools
from fractions import Fraction

import numpy as np
import pytest
from helpers import Case, quadratics

import fedjax_algos as fa
from fedjax_algos.asynchrony import FixedSystem, plan_dispatches, planners
from fedjax_algos.runs.method import Method
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("x64")

# Five clients with gradients a (x - b), one example each, so p_i = .2, from w = .5 at rate .01
A, B = (1, 2, 0.5, 1.5, 0.8), (1, -1, 3, 0, -2)
PER_MINUTE = (10, 5, 4, Fraction(5, 2), 2)  # steps; the clock below runs in minutes
MINUTES = [1 / Fraction(rate) for rate in PER_MINUTE]
EQUAL = FixedSystem([Fraction(1, 10)] * 5)


def slowed(client, dispatch, per_minute):
    """The speeds of the paper, except for one dispatch of one client."""
    rows = [[time] * 60 for time in MINUTES]
    rows[client][dispatch] = 1 / Fraction(per_minute)
    return FixedSystem(rows)


@functools.cache
def executor_of(name, **settings):
    toy = quadratics([[a] for a in A], [[b] for b in B])
    algorithm = Case(name, settings).build(toy.problem, fa.Local(1, 0.01, steps=20))
    return toy, fa.make_executor(algorithm, slots=2)


def run(name, settings, planner, minutes, system=None):
    """{minutes: models after the server steps of that moment, in order}."""
    toy, executor = executor_of(name, **settings)
    plan = planners.make(planner)(system or FixedSystem(MINUTES), 5, seconds=Fraction(minutes))
    state = executor.init(0, fa.Population(5, 5, 5))
    dispatches = plan_dispatches(plan, toy.data.counts(), executor.algorithm.local)
    stops = range(1, len(plan.time) + 1)
    seen: dict[float, list[float]] = {}
    for done, now, *_ in executor.run(state, toy.data, plan, dispatches, stops=list(stops)):
        seen.setdefault(float(plan.time[done - 1]), []).append(float(now.server.params["x"]))
    return seen


WARM_UP = {2: 0.5163883756, 4: 0.4529284782, 5: 0.4777114024, 8: 0.4659725419, 10: 0.4361067460}
COMPASS = "compass:min_steps=20,max_steps=100"
PLAIN = {"variant": "plain"}  # the default, by the name that shares its compiled programs
FIGURE_1 = {
    "plain": {12: 0.4226292493, 22: 0.3357258186, 32: 0.2643750602, 42: 0.2176130349},
    "momentum": {12: 0.4226292493, 22: 0.3235960716, 32: 0.1672955786, 42: 0.0133184157},
    "normalised": {12: 0.4171013608, 22: 0.2527408353, 32: 0.0952823404, 42: -0.0040900945},
}


@pytest.mark.parametrize("variant", FIGURE_1)
def test_fedcompass_on_figure_1(variant):
    seen = run("fedcompass", {"variant": variant}, COMPASS, 42)
    assert all(len(models) == 1 for models in seen.values())
    actual = {time: models[0] for time, models in seen.items()}
    assert actual == pytest.approx(WARM_UP | FIGURE_1[variant], rel=0, abs=6e-11)


def test_fedcompass_on_figure_22():
    """Client 3 is late: at 16:12 instead of 12:00."""
    seen = run("fedcompass", PLAIN, COMPASS, 31.8, slowed(2, 1, Fraction(5, 2)))
    actual = [seen[time][0] for time in (14, 22, 31.8)]
    assert actual == pytest.approx([0.3883049071, 0.2660879208, 0.2501015924], rel=0, abs=6e-11)


@pytest.mark.parametrize(
    ("variant", "expected"), [("plain", 0.4303434691), ("normalised", 0.4325298005)]
)
def test_staleness_counts_at_arrival(variant, expected):
    """Client 3's second round at 8 steps a minute: it arrives at 08:30, aggregated at 12:00."""
    seen = run("fedcompass", {"variant": variant}, COMPASS, 12, slowed(2, 1, 8))
    assert seen[12] == pytest.approx([expected], rel=0, abs=6e-11)


def test_fedasync():
    expected = {
        2: [0.5163883756],
        4: [0.5322395935, 0.4804248042],
        5: [0.5018874462],
        6: [0.5107391879],
        8: [0.5267755679, 0.4824882416, 0.4741876137],
        10: [0.4831427549, 0.5006536983, 0.4805181828],
        12: [0.4902990167, 0.4540881653],
    }
    seen = run("fedasync", {}, "immediate:steps=20", 12)
    assert seen.keys() == expected.keys()
    for time, models in expected.items():
        assert seen[time] == pytest.approx(models, rel=0, abs=6e-11)


def test_fedbuff():
    expected = {4: [0.4430309036], 8: [0.5032276320], 10: [0.4449056190], 12: [0.4550565030]}
    seen = run("fedbuff", {}, "buffered:steps=20,size=3", 12)
    assert {time: models[:1] for time, models in seen.items()} == {
        time: pytest.approx(models, rel=0, abs=6e-11) for time, models in expected.items()
    }


def looped(planner, minutes, exponent):
    """The models after each server step, by a loop over the plan in NumPy; all p_i are .2."""
    plan = planners.make(planner)(FixedSystem(MINUTES), 5, seconds=Fraction(minutes))
    versions = [0.5]
    for step in range(len(plan.time)):
        x = versions[-1]
        for dispatch, staleness in zip(
            plan.dispatch[plan.step == step], plan.staleness[plan.step == step], strict=True
        ):
            start, i = versions[plan.version[dispatch]], plan.client[dispatch]
            end = B[i] + (start - B[i]) * (1 - 0.01 * A[i]) ** plan.num_steps[dispatch]
            x -= 0.9 * (staleness + 1.0) ** -exponent * 0.2 * (start - end)
        versions.append(x)
    assert len(set(plan.staleness)) >= 3
    return versions[1:]


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "settings", "planner", "exponent"),
    [
        ("fedasync", {"exponent": -0.5}, "immediate:steps=20", -0.5),
        ("fedbuff", {"exponent": -1.5}, "buffered:steps=20,size=3", -1.5),
        ("fedcompass", PLAIN, COMPASS, 0.5),
        ("fedcompass", {"exponent": -0.5}, COMPASS, -0.5),
        ("fedcompass", {"mode": "code"}, COMPASS + ",mode=code,first_steps=20", -0.5),
        ("fedcompass", {"mode": "code", "exponent": 0.5}, COMPASS + ",mode=code", 0.5),
    ],
)
def test_exponents_of_either_sign(name, settings, planner, exponent):
    expected = looped(planner, 90, exponent)
    np.testing.assert_allclose(models(name, settings, planner, 90), expected, atol=1e-14)


def test_the_planner_of_code_mode():
    settings = Settings(seconds=60)
    for spec, planner in (
        ("fedcompass", "compass"),
        ("fedcompass:mode=code", "compass:mode=code"),
        ("fedcompass:mode=code@compass:max_steps=50", "compass:max_steps=50"),
    ):
        assert Method.of(spec, settings).planner == planner


def models(name, settings, planner, minutes=40, system=None):
    return [m for models in run(name, settings, planner, minutes, system).values() for m in models]


def test_as1_a_buffer_of_one_is_fedasync():
    one = models("fedbuff", {}, "buffered:steps=20,size=1")
    np.testing.assert_allclose(one, models("fedasync", {}, "immediate:steps=20"), atol=1e-15)


@pytest.mark.all
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


def test_as5_variants_coincide():
    plain = models("fedcompass", PLAIN, COMPASS)
    without = models("fedcompass", {"variant": "momentum", "beta": 0.0}, COMPASS)
    np.testing.assert_allclose(without, plain, atol=1e-15)
    np.testing.assert_allclose(
        models("fedcompass", {"variant": "normalised"}, COMPASS, 60, EQUAL),
        models("fedcompass", PLAIN, COMPASS, 60, EQUAL),
        atol=1e-14,
    )


def test_as10_one_tier_is_fedavg():
    one = models("fedat", {}, "tiers:steps=20,ratio=5")
    np.testing.assert_allclose(one, models("fedavg", {}, "barrier:steps=20"), atol=1e-14)
