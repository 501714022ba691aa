"""Barrier, immediate, buffered, tiers: by hand, and invariants; the errors of all planners."""

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedjax_algos.asynchrony import (
    FixedSystem,
    barrier,
    buffered,
    compass,
    immediate,
    planners,
    simulated,
    tiers,
    tiers_of,
)
from fedjax_algos.asynchrony.plan import AGGREGATED, IN_FLIGHT, LOST, Plan

# Figure 1 of FedCompass: seconds for a step, at 10, 5, 4, 2.5 and 2 steps a minute
FIGURE_1 = [Fraction(60) / Fraction(rate) for rate in ("10", "5", "4", "2.5", "2")]
SYSTEMS = [FixedSystem(FIGURE_1), FixedSystem([*map(float, FIGURE_1)])]
EXACT = pytest.mark.parametrize("system", SYSTEMS, ids=["fractions", "floats"])


def compass_of(steps):
    return compass(min_steps=steps, max_steps=steps)


ALL = pytest.mark.parametrize("make", [immediate, buffered, barrier, tiers, compass_of])


def arrivals_of(plan):
    """[(minute, client from 1)] of the contributions, in order."""
    return list(zip(plan.ended[plan.dispatch] / 60, plan.client[plan.dispatch] + 1, strict=True))


def assert_equal_plans(one, other):
    assert one.run is other.run is None  # single runs
    for name in set(Plan._fields) - {"run", "trace"}:
        left, right = getattr(one, name), getattr(other, name)
        np.testing.assert_array_equal(left, right, err_msg=name)
        assert left.dtype == right.dtype


EVENTS = [  # FedAsync's, in minutes: client, from 1
    *[(2, 1), (4, 1), (4, 2), (5, 3), (6, 1), (8, 1), (8, 2), (8, 4)],
    *[(10, 1), (10, 3), (10, 5), (12, 1), (12, 2)],
]


@EXACT
def test_fedasync_on_figure_1(system):
    plan = immediate(steps=20)(system, 5, seconds=720)
    assert arrivals_of(plan) == EVENTS
    assert (plan.time / 60).tolist() == [minute for minute, _ in EVENTS]
    assert plan.staleness.tolist() == [0, 0, 2, 3, 2, 0, 3, 7, 2, 5, 10, 2, 5]


@EXACT
def test_fedbuff_on_figure_1(system):
    plan = buffered(steps=20, size=3)(system, 5, seconds=720)
    assert arrivals_of(plan) == EVENTS[:12]
    assert (plan.time / 60).tolist() == [4, 8, 10, 12]
    # 1 and 1 and 2; 3 is from before the step of 04:00; then 2 at 08:00 got the new model at 04:00
    assert plan.staleness.tolist() == [0, 0, 0, 1, 1, 0, 1, 2, 0, 2, 3, 0]
    # client 2's arrival of 12:00 is in the fifth buffer
    assert plan.fate[(plan.client == 1) & (plan.ended == 720)] == [IN_FLIGHT]


@EXACT
def test_tiers_on_figure_1(system):
    """Clients 1 and 2 in rounds of 4 minutes, the others in rounds of 10."""
    assert tiers_of(system, 5).tolist() == [0, 0, 1, 1, 1]
    plan = tiers(steps=20)(system, 5, seconds=1200)
    assert (plan.time / 60).tolist() == [4, 8, 10, 12, 16, 20, 20]
    assert plan.group.tolist() == [0, 0, 1, 0, 0, 0, 1]
    # the slow tier starts from version 0, 3 and, where both end together, from 7 as the fast one
    assert plan.version[plan.client == 4].tolist() == [0, 3, 7]
    assert plan.version[plan.client == 0].tolist() == [0, 1, 2, 4, 5, 7]
    assert not plan.staleness.any()


def test_tiers_are_cut_at_the_ratio_to_their_fastest():
    system = FixedSystem([5, 1, 2, Fraction(201, 100), 4, 11, 4])
    assert tiers_of(system, 7).tolist() == [2, 0, 0, 1, 1, 3, 1]
    assert tiers_of(system, 7, 5).tolist() == [0, 0, 0, 0, 0, 1, 0]
    assert tiers_of(system, 7, 1).tolist() == [4, 0, 1, 2, 3, 5, 3]
    assert tiers_of(system, 7).dtype == np.int32


def test_the_ratio_is_not_missed_by_rounding():
    pairs = [(a / 100, b / 100) for a in range(1, 60) for b in range(a, 300)]
    assert any(fastest * (slowest / fastest) < slowest for fastest, slowest in pairs)
    for fastest, slowest in pairs:
        assert not tiers_of(FixedSystem([fastest, slowest]), 2, ratio=slowest / fastest).any()


def test_arrivals_come_before_rejoins_at_the_same_time():
    system = FixedSystem([1, 1, 2], {(0, 0): (Fraction(1, 2), 5)})
    plan = immediate(steps=10)(system, 3, seconds=10)
    assert plan.client.tolist() == [0, 1, 2, 1, 0]
    assert plan.version.tolist() == [0, 0, 0, 1, 1]


@ALL
def test_clients_that_leave_for_good(make):
    system = FixedSystem([1, 2], {(0, 0): (1, math.inf), (1, 2): (0.5, math.inf)})
    plan = make(steps=10)(system, 2, seconds=1000)
    assert plan.client.tolist() == [0, 1, 1, 1]
    assert plan.fate.tolist()[0] == plan.fate.tolist()[3] == LOST
    with pytest.raises(ValueError, match="only 2 of arrivals=3 come"):
        make(steps=10)(system, 2, arrivals=3)


def test_idle_clients_are_equally_likely():
    """With concurrency 2, the next client is one of the four idle ones, the last included."""
    system = simulated(speeds="homogeneous")(0)
    plan = immediate(steps=1, concurrency=2, seed=3)(system, 5, arrivals=20_000)
    assert stats.chisquare(np.bincount(plan.client)).pvalue > 1e-3
    arrived, following = plan.client[plan.dispatch], plan.client[2:]
    again = arrived == following
    assert abs(again.mean() - 0.25) < 4 * (0.25 * 0.75 / 20_000) ** 0.5
    pairs = np.bincount(5 * arrived[~again] + following[~again], minlength=25)
    assert stats.chisquare(pairs[pairs > 0]).pvalue > 1e-3
    assert (pairs > 0).sum() == 20


def test_the_seed_draws_the_clients():
    def plan(**options):
        return buffered(steps=2, **options)(simulated()(0), 50, arrivals=99)

    one, same, other = (plan(concurrency=3, seed=seed) for seed in (0, 0, 1))
    assert_equal_plans(one, same)
    assert (one.client != other.client).any()
    assert_equal_plans(plan(concurrency=50), plan())
    with pytest.raises(ValueError, match="concurrency=51"):
        plan(concurrency=51)


class ConstantSystem(FixedSystem):
    """A system in which all dispatches of three clients are alike."""

    def __init__(self, seconds, unavailability=None):
        super().__init__([1] * 3)
        self.seconds = lambda client, number, num_steps: seconds
        self.unavailability = lambda client, number: unavailability


WRONG = [  # system, horizon
    (ConstantSystem(1), {}, "arrivals=None and seconds=None do not define the horizon"),
    (ConstantSystem(1), {"arrivals": 1, "seconds": 2}, "arrivals=1 and seconds=2 do not define"),
    *((ConstantSystem(1), {"arrivals": count}, f"arrivals={count}") for count in (0, 2.5)),
    *((ConstantSystem(1), {"seconds": end}, f"seconds={end}") for end in (-1, math.inf, math.nan)),
    (FixedSystem([1, 2]), {"arrivals": 1}, "client 2 has no time in seconds_per_step"),
    *((ConstantSystem(t), {"arrivals": 9}, f"takes {t} s for 4") for t in (0, math.nan, math.inf)),
    (ConstantSystem(1, (2, 1)), {"arrivals": 9}, r"client 0 has unavailability=\(2, 1\)"),
    (ConstantSystem(1, (0, 0)), {"arrivals": 9}, r"client 0 has unavailability=\(0, 0\)"),
    (ConstantSystem(1, (0.5, 1)), {"arrivals": 9}, "only 0 of arrivals=9 come"),
]


@ALL
def test_wrong_plans(make):
    for system, end, message in WRONG:
        with pytest.raises(ValueError, match=message):
            make(steps=4)(system, 3, **end)
    with pytest.raises(ValueError, match="num_clients=0"):
        make(steps=4)(FixedSystem([1]), 0, arrivals=1)


def test_wrong_specs_and_systems():
    for spec in ("barrier:steps=0", "tiers:ratio=0.9", "immediate:seed=-1", "buffered:size=0"):
        with pytest.raises(ValueError, match=f"{spec.partition(':')[2]} is out of range"):
            planners.make(spec)
    with pytest.raises(ValueError, match="concurrency=0 is out of range"):
        planners.make("buffered:concurrency=0")
    unknown = SimpleNamespace(seconds=lambda *_: 1, unavailability=lambda *_: None)
    barrier(steps=1)(unknown, 2, arrivals=1)
    with pytest.raises(ValueError, match="SimpleNamespace does not know the clients' mean speeds"):
        tiers(steps=1)(unknown, 2, arrivals=1)


SHARES = st.sampled_from([0, Fraction(1, 4), Fraction(1, 2), 1])
TIMES = st.integers(1, 24).map(lambda quarters: Fraction(quarters, 4))  # exact as floats, too


@st.composite
def fixed_systems(draw):
    """Exact times with many ties, and clients that leave, some for good."""
    num_clients = draw(st.integers(1, 5))
    times = draw(st.lists(TIMES, min_size=num_clients, max_size=num_clients))
    keys = st.tuples(st.integers(0, num_clients - 1), st.integers(0, 6))
    away = st.integers(1, 12) | st.just(math.inf)
    gone = draw(st.dictionaries(keys, st.tuples(SHARES, away), max_size=8))
    for number in draw(st.lists(st.integers(0, 6), max_size=2)):  # whole rounds away
        gone |= {(i, number): (draw(SHARES), draw(st.integers(1, 12))) for i in range(num_clients)}
    return FixedSystem(times, gone), num_clients


@st.composite
def drawn_systems(draw):
    speeds = draw(st.sampled_from(["homogeneous", "normal", "exponential"]))
    jitter, change, dropout = draw(st.tuples(*[st.sampled_from([0, 0.1, 0.5])] * 3))
    options = {"jitter": jitter, "change": change, "dropout": dropout}
    options["unavailable_seconds"] = draw(st.sampled_from([0.1, 3, 30]))
    options["communication_seconds"] = draw(st.sampled_from([0, 1]))
    system = simulated(speeds=speeds, seconds_per_step=1, **options)
    return system(draw(st.integers(0, 999))), draw(st.integers(1, 8))


DRAWN = fixed_systems() | drawn_systems()
PLANS = settings(deadline=None, max_examples=30)  # each to two horizons


def checked_plans(data, planner, system, num_clients, num_steps):
    """Checked plans to a horizon and to a later one, which begins with the shorter one."""
    near = data.draw(st.sampled_from([1, 3, 7.5, 20]))
    far = near + data.draw(st.sampled_from([0.5, 3, 20]))
    short, long = (planner(system, num_clients, seconds=end) for end in (near, far))
    for plan, end in ((short, near), (long, far)):
        check_dispatches(system, num_clients, num_steps, plan, end)
        check_contributions(plan)
    for name in set(Plan._fields) - {"fate", "run", "trace"}:
        column = getattr(short, name)
        np.testing.assert_array_equal(column, getattr(long, name)[: len(column)])
    decided = short.fate != IN_FLIGHT
    np.testing.assert_array_equal(short.fate[decided], long.fate[: len(decided)][decided])
    return (short, near), (long, far)


def check_dispatches(system, num_clients, num_steps, plan, end):
    assert (np.diff(plan.started) >= 0).all()
    assert (np.diff(plan.version) >= 0).all()
    assert (plan.started <= end).all()
    assert {*plan.num_steps, *plan.full_steps} == {num_steps}
    assert set(plan.client) <= set(range(num_clients))
    # versions exist when they are dispatched, and are the latest
    made = np.array([0, *plan.time, np.inf])
    assert (made[plan.version] <= plan.started).all()
    assert (made[plan.version + 1] >= plan.started).all()
    free = np.zeros(num_clients)  # when each is free again
    dispatches = np.zeros(num_clients, int)
    columns = plan.client, plan.number, plan.started, plan.ended, plan.fate
    for index, (client, number, started, ended, fate) in enumerate(zip(*columns, strict=True)):
        assert number == dispatches[client]
        dispatches[client] += 1
        assert started >= free[client]  # one dispatch in flight at most
        unavailability = system.unavailability(client, number)
        share, away = unavailability or (1, 0)
        seconds = share * system.seconds(client, number, num_steps)
        np.testing.assert_allclose(ended, float(started + seconds), rtol=1e-12)
        free[client] = ended + away
        possible = [LOST] if unavailability else [AGGREGATED, IN_FLIGHT]
        assert fate in (possible if ended <= end else [IN_FLIGHT])
        assert np.count_nonzero(plan.dispatch == index) == (fate == AGGREGATED)


def check_contributions(plan):
    assert (np.diff(plan.time) >= 0).all()
    # by server step, none of which is empty, and then by arrival, ties in client order
    ended, client = plan.ended[plan.dispatch], plan.client[plan.dispatch]
    np.testing.assert_array_equal(np.unique(plan.step), np.arange(len(plan.time)))
    order = np.lexsort((client, ended, plan.step))
    np.testing.assert_array_equal(order, np.arange(len(order)))
    assert (ended <= plan.time[plan.step]).all()
    assert (plan.version[plan.dispatch] <= plan.step).all()


@PLANS
@given(DRAWN, st.integers(1, 3), st.data())
def test_every_buffered_timeline(drawn, num_steps, data):
    system, num_clients = drawn
    size = data.draw(st.integers(1, 6))
    places = data.draw(st.none() | st.integers(1, num_clients))
    planner = buffered(steps=num_steps, size=size, concurrency=places)
    for plan, end in checked_plans(data, planner, system, num_clients, num_steps):
        check_buffers(plan, end, size)
        check_busy(system, num_clients, places or num_clients, plan, end)


def check_buffers(plan, end, size):
    ended, client = plan.ended[plan.dispatch], plan.client[plan.dispatch]
    # buffers are filled in the order of arrival
    np.testing.assert_array_equal(np.lexsort((client, ended)), np.arange(len(ended)))
    np.testing.assert_array_equal(plan.step, np.arange(len(ended)) // size)
    np.testing.assert_array_equal(plan.time, ended[size - 1 :: size])
    assert ((plan.fate == IN_FLIGHT) & (plan.ended <= end)).sum() < size  # they wait
    # server steps between its broadcast and its arrival
    np.testing.assert_array_equal(plan.staleness, plan.step - plan.version[plan.dispatch])


def check_busy(system, num_clients, places, plan, end):
    """At any time `concurrency` clients train, or all that are not away."""
    gone = map(system.unavailability, plan.client, plan.number)
    away = np.array([each and each[1] for each in gone], float)
    back = plan.ended + np.nan_to_num(away, nan=0, posinf=np.inf)
    moments = np.unique(np.concatenate([plan.started, plan.ended[plan.ended <= end], [end]]))
    for now, later in zip(moments, np.append(moments[1:], end), strict=True):
        middle = (now + later) / 2
        training = ((plan.started <= middle) & (plan.ended > middle)).sum()
        absent = ((plan.ended <= middle) & (back > middle)).sum()
        assert now == later or training == min(places, num_clients - absent)


@PLANS
@given(DRAWN, st.integers(1, 3), st.data())
def test_every_timeline_of_rounds(drawn, num_steps, data):
    """With the largest ratio there is one tier, which is a barrier."""
    system, num_clients = drawn
    ratio = data.draw(st.sampled_from([1, 1.5, 2, 10, 1e9]))
    planner = tiers(steps=num_steps, ratio=ratio)
    for plan, end in checked_plans(data, planner, system, num_clients, num_steps):
        check_rounds(system, tiers_of(system, num_clients, ratio), plan, end)
        if ratio == 1e9:
            assert_equal_plans(plan, barrier(steps=num_steps)(system, num_clients, seconds=end))


def check_rounds(system, tier_of, plan, end):
    """Rounds of all available clients: the next starts when the last one arrives or leaves."""
    assert not plan.staleness.any()
    steps = []
    for tier in set(tier_of):
        mine = np.flatnonzero(tier_of[plan.client] == tier)
        members = np.flatnonzero(tier_of == tier)
        back, over = dict.fromkeys(members, 0.0), 0.0
        for start in np.unique(plan.started[mine]):
            in_round = mine[plan.started[mine] == start]
            # at the end of the last round, or when the first one is back
            np.testing.assert_allclose(start, max(over, min(back.values())), rtol=1e-9)
            present = [i for i in members if back[i] <= start * (1 + 1e-12)]
            np.testing.assert_array_equal(plan.client[in_round], present)
            assert len(set(plan.version[in_round])) == 1
            over = plan.ended[in_round].max()
            for index in in_round:
                _, away = system.unavailability(plan.client[index], plan.number[index]) or (1, 0)
                back[plan.client[index]] = plan.ended[index] + away
            arrive = in_round[plan.fate[in_round] == AGGREGATED]
            if len(arrive):
                steps.append((over, tier, *arrive))
            elif over <= end:
                assert (plan.fate[in_round] == LOST).all()
    of_steps = [sorted(plan.dispatch[plan.step == step]) for step in range(len(plan.time))]
    seen = zip(plan.time, plan.group, of_steps, strict=True)
    assert sorted((time, tier, *arrive) for time, tier, arrive in seen) == sorted(steps)


def test_plans_have_their_horizon_and_the_types_of_their_fields():
    plan = barrier(steps=1)(FixedSystem([1, 2], {(0, 1): (1, 5)}), 2, seconds=4)
    assert repr(plan) == "Plan(dispatches=5, lost=1, contributions=3, server_steps=2, runs=1)"
    third = FixedSystem([Fraction(1, 3)])  # the event of the horizon is included
    for end, steps in ((Fraction(7, 3), 7), (Fraction(6999, 3000), 6)):
        assert len(immediate(steps=1)(third, 1, seconds=end).time) == steps
    kinds = {"started": float, "ended": float, "time": float, "fate": np.int8}
    for make in (barrier, immediate):
        columns = make(steps=2)(FixedSystem([1]), 1, seconds=1)._asdict()
        assert columns.pop("run") is columns.pop("trace") is None
        assert not len(columns["time"])
        for name, column in columns.items():
            assert column.dtype == kinds.get(name, np.int32), name
