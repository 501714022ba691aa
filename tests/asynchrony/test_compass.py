"""FedCompass's planner: the paper's figures, examples by hand, a transcription, invariants."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.asynchrony import compass, simulated
from fedjax_algos.asynchrony.plan import AGGREGATE, AGGREGATED, FIRST, IN_FLIGHT, LOST

SEEDS = st.integers(0, 2**31 - 1)
SPEEDS = st.sampled_from(["homogeneous", "normal", "exponential"])
STEPS = st.sampled_from([(20, 100), (5, 10), (40, 40), (1, 200)])
DISPATCHES = ("client", "number", "num_steps", "version", "started", "ended")
INTEGERS = ("client", "number", "num_steps", "version", "fate", "dispatch", "staleness", "step")


class GivenSystem:
    """Seconds per step by client, with other times and unavailability for some dispatches."""

    def __init__(self, per_step, changes=(), durations=(), unavailable=(), number=Fraction):
        self.per_step = per_step
        self.changes, self.durations = dict(changes), dict(durations)
        self.unavailable, self.number = dict(unavailable), number

    def seconds(self, client, number, num_steps):
        per_step = self.changes.get((client, number), self.per_step[client])
        seconds = self.durations.get((client, number), num_steps * Fraction(per_step))
        return self.number(Fraction(seconds))

    def unavailability(self, client, number):
        return self.unavailable.get((client, number))


def random_system(seed, speeds, leaving=0.0, changing=0.1, jitter=0.05):
    return simulated(speeds=speeds, dropout=leaving, change=changing, jitter=jitter)(seed)


# the paper's figures; clients are counted from 1 and times are minutes, as there

PER_STEP = ["1/10", "1/5", "1/4", "2/5", "1/2"]
BEGIN = [  # time, client, steps, group, Ta, Tmax
    ("02:00", 1, 100, 1, "12:00", "14:00"),
    ("04:00", 2, 40, 1, "12:00", "14:00"),
    ("05:00", 3, 28, 1, "12:00", "14:00"),
    ("08:00", 4, 35, 2, "22:00", "24:48"),
    ("10:00", 5, 24, 2, "22:00", "24:48"),
]
FIRSTS = [(time, FIRST, {client: client - 1}) for time, client, *_ in BEGIN]


def joint(time, group, expected, latest, steps):
    """Assignments at the same time to the same group: steps by client, in order."""
    return [(time, client, q, group, expected, latest) for client, q in steps.items()]


FIGURE_1 = (
    [
        *BEGIN,
        *joint("12:00", 2, "22:00", "24:48", {1: 100, 2: 50, 3: 40}),
        *joint("22:00", 3, "32:00", "34:00", {1: 100, 2: 50, 3: 40, 4: 25, 5: 20}),
        *joint("32:00", 4, "42:00", "44:00", {1: 100, 2: 50, 3: 40, 4: 25, 5: 20}),
        *joint("42:00", 5, "52:00", "54:00", {1: 100, 2: 50, 3: 40, 4: 25, 5: 20}),
    ],
    [
        *FIRSTS,
        ("12:00", AGGREGATE, {1: 4, 2: 3, 3: 2}),
        ("22:00", AGGREGATE, {1: 0, 2: 0, 3: 0, 4: 2, 5: 1}),
        ("32:00", AGGREGATE, {1: 0, 2: 0, 3: 0, 4: 0, 5: 0}),
        ("42:00", AGGREGATE, {1: 0, 2: 0, 3: 0, 4: 0, 5: 0}),
    ],
)
FIGURE_22 = (  # 28 steps at 2.5 a minute end at 16:12
    [
        *BEGIN,
        *joint("14:00", 2, "22:00", "24:48", {1: 80, 2: 40}),
        *joint("16:12", 3, "31:48", "34:55.2", {3: 39}),
        *joint("22:00", 3, "31:48", "34:55.2", {1: 98, 2: 49, 4: 24}),
        *joint("22:00", 4, "41:30", "45:24", {5: 39}),
        *joint("31:48", 4, "41:30", "45:24", {1: 97, 2: 48, 4: 24, 3: 24}),
        *joint("41:30", 5, "51:30", "53:30", {1: 100, 2: 50, 3: 25, 4: 25, 5: 20}),
    ],
    [
        *FIRSTS,
        ("14:00", AGGREGATE, {1: 4, 2: 3}),
        ("22:00", AGGREGATE, {3: 3, 1: 0, 2: 0, 4: 2, 5: 1}),
        ("31:48", AGGREGATE, {4: 0, 1: 0, 2: 0, 3: 1}),
        ("41:30", AGGREGATE, {2: 0, 3: 0, 4: 0, 1: 0, 5: 1}),
    ],
)
CODE = (
    [
        *BEGIN[:3],
        ("08:00", 4, 40, 2, "24:00", "27:12"),
        ("10:00", 5, 28, 2, "24:00", "27:12"),
        ("12:00", 1, 100, 3, "22:00", "24:00"),
        *joint("12:00", 2, "24:00", "27:12", {2: 60, 3: 48}),
        ("22:00", 1, 20, 2, "24:00", "27:12"),
        *joint("24:00", 4, "34:00", "36:00", {1: 100, 2: 50, 3: 40, 4: 25, 5: 20}),
    ],
    [
        *FIRSTS,
        ("12:00", AGGREGATE, {1: 4, 2: 3, 3: 2}),
        ("22:00", AGGREGATE, {1: 0}),
        ("24:00", AGGREGATE, {1: 0, 2: 1, 3: 1, 4: 3, 5: 2}),
    ],
)


def always(per_step):
    """Client 3 has another speed from its second dispatch on."""
    return {(2, number): per_step for number in range(1, 20)}


FIGURES = {
    "1": (FIGURE_1, {}, {}),
    "22": (FIGURE_22, {"changes": always("2/5")}, {}),
    "1 by the code": (CODE, {}, {"mode": "code", "first_steps": 20}),
}


def clock(minutes):
    """mm:ss, with tenths where there are any."""
    tenths = round(float(minutes) * 600)
    return f"{tenths // 600:02}:{tenths % 600 // 10:02}" + f".{tenths % 10}" * (tenths % 10 > 0)


def decisions(plan):
    """Assignments and server steps of a plan, in the terms of the tables."""
    trace = plan.trace
    assignments = [
        (clock(start), client + 1, steps, group, clock(expected), clock(latest))
        for start, client, steps, group, expected, latest in zip(
            plan.started.tolist(),
            plan.client.tolist(),
            plan.num_steps.tolist(),
            trace.arrival_group.tolist(),
            trace.expected.tolist(),
            trace.latest.tolist(),
            strict=True,
        )
        if group
    ]
    steps = [
        (clock(time), group, members(plan, step))
        for step, (time, group) in enumerate(zip(plan.time.tolist(), plan.group, strict=True))
    ]
    return assignments, steps


def members(plan, step):
    """Staleness by client (from 1) of a server step, in its order."""
    of = plan.step == step
    clients = plan.client[plan.dispatch[of]] + 1
    return dict(zip(clients.tolist(), plan.staleness[of].tolist(), strict=True))


@pytest.mark.parametrize("number", [Fraction, float])
@pytest.mark.parametrize("figure", FIGURES)
def test_figures_of_the_paper(figure, number):
    """The claims in `experiments/papers/fedcompass` have figures 20 and 21, and the text's 22."""
    (assignments, steps), facts, options = FIGURES[figure]
    minutes, seconds = map(Fraction, steps[-1][0].split(":"))
    end = number(minutes + seconds / 60)
    plan = compass(**options)(GivenSystem(PER_STEP, number=number, **facts), 5, seconds=end)
    seen = decisions(plan)
    assert seen[0] == assignments
    assert seen[1] == steps
    # the order of the entries, which the equality of dicts does not compare
    assert [list(of) for *_, of in seen[1]] == [list(of) for *_, of in steps]
    late = plan.trace.late
    expected_late = [(2, 1)] if figure == "22" else []
    assert list(zip(plan.client[late], plan.number[late], strict=True)) == expected_late
    assert (plan.time[-1], plan.ended[plan.dispatch[-1]]) == (end, end)


def test_staleness_at_arrival_or_at_aggregation():
    """Client 3's second round at 8 steps a minute, so that it arrives at 08:30."""
    system = GivenSystem(PER_STEP, {(2, 1): "1/8"})
    at_arrival = decisions(compass()(system, 5, seconds=12))[1]
    assert at_arrival[-1] == ("12:00", AGGREGATE, {3: 1, 1: 4, 2: 3})
    by_code = decisions(compass(mode="code", first_steps=20)(system, 5, seconds=12))[1]
    assert by_code[-1] == ("12:00", AGGREGATE, {3: 2, 1: 4, 2: 3})


@pytest.mark.parametrize(("speed_weight", "record", "steps"), [(None, 0.205, 58), (1, 0.2, 60)])
def test_speeds_are_averaged_in_code_mode(speed_weight, record, steps):
    options = {"speed_weight": speed_weight} if speed_weight else {}
    planner = compass(mode="code", first_steps=20, **options)
    plan = planner(GivenSystem(PER_STEP, always("1/5")), 5, seconds=12)
    third = np.flatnonzero(plan.client == 2)[-1]
    assert plan.trace.seconds_per_step[third] == record
    assert plan.num_steps[third] == steps


# examples by hand


@pytest.mark.parametrize(("mode", "steps"), [("paper", 100), ("code", 99)])
def test_groups_that_need_too_many_steps(mode, steps):
    """At 100, client 2 could meet group 1 (at 120) after 101 steps, and group 2 (at 119) after 99.

    The paper takes the most of them, and then Qmax; the code passes over the first.
    """
    measured = {0: Fraction(1), 1: Fraction("0.98"), 2: Fraction("1.18")}
    options = {"mode": mode, "first_steps": 20, "speed_weight": 1}
    planner = compass(measure=lambda client, *_: measured[client], slack=1, **options)
    system = GivenSystem([1] * 3, durations={(0, 0): 20, (1, 0): 21, (2, 0): 100})
    plan = planner(system, 3, arrivals=3)
    assert plan.trace.arrival_group[3:].tolist() == [1, 2, 3]
    assert plan.num_steps[3:].tolist() == [100, 100, steps]


@pytest.mark.parametrize("number", [Fraction, float])
def test_arrivals_at_the_latest_time_are_not_late(number):
    """Slower by lambda, so that all clients are back exactly at Tmax."""
    system = GivenSystem(["0.07"] * 3, {(client, 1): "0.084" for client in range(3)}, number=number)
    plan = compass()(system, 3, arrivals=6)
    assert not plan.trace.late.any()
    assert plan.time[-1] == plan.trace.latest[3] == plan.ended[3]
    assert plan.step.tolist() == [0, 1, 2, 3, 3, 3]


# clients that leave and come back


def test_a_group_is_aggregated_when_the_last_pending_client_leaves():
    system = GivenSystem(
        [1, 1], durations={(0, 1): 80}, unavailable={(1, 1): (Fraction("0.9"), 30)}
    )
    plan = compass()(system, 2, seconds=140)
    assert plan.time.tolist() == [20, 20, 110]  # 20 + 90 steps, before Ta = 120
    assert plan.fate[:4].tolist() == [AGGREGATED] * 3 + [LOST]
    assert plan.ended[3] == 110
    # back at 140: the last speed, the current model, and the group that client 0 has opened
    assert (plan.client[5], plan.number[5], plan.started[5], plan.version[5]) == (1, 2, 140, 3)
    assert plan.trace.arrival_group[4:].tolist() == [2, 2]
    assert plan.num_steps[5] == plan.trace.expected[4] - 140


def test_a_group_that_all_clients_have_left_is_closed():
    system = GivenSystem([1], unavailable={(0, 1): (Fraction("0.1"), 5)})
    plan = compass()(system, 1, seconds=141)
    assert plan.started.tolist() == [0, 20, 35, 135]
    assert plan.trace.arrival_group.tolist() == [0, 1, 2, 3]  # group 1, at 120, could have taken it
    assert plan.num_steps[2] == 100
    assert plan.time.tolist() == [20, 135]


def test_a_client_that_leaves_before_its_first_arrival_starts_again():
    system = GivenSystem([1], unavailable={(0, 0): (Fraction("0.5"), 3)})
    plan = compass(first_steps=30)(system, 1, arrivals=1)
    assert plan.started.tolist() == [0, 18, 48]
    assert plan.num_steps.tolist() == [30, 30, 100]
    assert plan.group.tolist() == [FIRST]
    assert plan.fate.tolist() == [LOST, AGGREGATED, IN_FLIGHT]


def test_a_client_that_has_left_is_not_the_fastest_of_its_group():
    """At 40, client 2 opens a group to meet client 0, which is back from 100 steps at 160."""
    system = GivenSystem(["1", "1/2", "2"], unavailable={(1, 1): (Fraction("0.3"), math.inf)})
    plan = compass()(system, 3, arrivals=3)
    assert plan.trace.arrival_group[3:].tolist() == [1, 1, 2]
    assert plan.num_steps[3:].tolist() == [100, 40, 60]


def test_a_client_that_rejoins_at_a_timer_gets_the_new_model():
    """At 140 client 0 is aggregated without client 1, and client 2 comes back."""
    unavailable = {(2, 1): (Fraction("0.5"), 70)}
    system = GivenSystem([1] * 3, durations={(1, 1): 150}, unavailable=unavailable)
    plan = compass()(system, 3, seconds=140)
    assert plan.started[-2:].tolist() == [140, 140]
    assert plan.client[-2:].tolist() == [0, 2]
    assert plan.version[-2:].tolist() == [4, 4]
    assert plan.trace.arrival_group[-2:].tolist() == [2, 2]


def test_a_late_client_that_leaves_changes_nothing():
    system = GivenSystem([1, 1], durations={(1, 1): 150}, unavailable={(1, 1): (1, math.inf)})
    plan = compass()(system, 2, seconds=500)
    assert plan.time.tolist() == [20, 20, 140, 240, 340, 440]
    assert plan.fate.tolist() == [0, 0, 0, LOST, 0, 0, 0, IN_FLIGHT]
    assert not plan.trace.late.any()


# identities


# a literal transcription of the paper's boxes


class Literal:
    """Algorithms 1 to 3 with dictionaries and a scan for the next event, without ties or losses."""

    def __init__(self, system, num_clients, least, most, slack):
        self.system, self.least, self.most, self.slack = system, least, most, slack
        self.clients = {i: {"G": None, "Tstart": 0.0, "tau": 0} for i in range(num_clients)}
        self.groups, self.timers, self.general = {}, {}, []
        self.tau = self.made = 0
        self.sent, self.server_steps = [], []
        for i, client in self.clients.items():
            client.update(Q=least, dispatches=0)
            self.train(i)

    def train(self, i):
        c = self.clients[i]
        self.sent.append((i, c["Q"], c["tau"]))
        c["end"] = c["Tstart"] + self.system.seconds(i, c["dispatches"], c["Q"])
        c["dispatches"] += 1

    def run(self, arrivals):
        for _ in range(arrivals):
            i, end = self.earliest()
            while self.timers and min(self.timers.values()) < end:
                g = min(self.timers, key=self.timers.get)
                self.group_aggregate(g, self.timers.pop(g))
                i, end = self.earliest()
            self.clients[i]["end"] = math.inf
            self.receive(i, end)

    def earliest(self):
        i = min(self.clients, key=lambda i: self.clients[i]["end"])
        return i, self.clients[i]["end"]

    def receive(self, i, now):
        c = self.clients[i]
        c["S"] = (now - c["Tstart"]) / c["Q"]
        update, group = (i, self.tau - c["tau"]), self.groups.get(c["G"])
        if group is None:
            self.server_steps.append([update])
            self.tau += 1
            self.assign_and_train(i, now)
            return
        group["CL"].remove(i)
        if now > group["Tmax"]:
            self.general.append(update)
            self.assign_and_train(i, now)
        else:
            group["ACL"].append(i)
            group["buffer"].append(update)
            if not group["CL"]:
                self.group_aggregate(c["G"], now)

    def group_aggregate(self, g, now):
        group = self.groups[g]
        if not group["ACL"]:
            return
        self.server_steps.append(self.general + group["buffer"])
        self.tau += 1
        arrived = group["ACL"]
        self.general, group["ACL"], group["Ta"] = [], [], 0
        for i in sorted(arrived, key=lambda i: self.clients[i]["S"]):
            self.assign_and_train(i, now)

    def assign_and_train(self, i, now):
        self.clients[i]["tau"] = self.tau
        chosen, best = self.join_group(i, now)
        if chosen == -1:
            chosen, best = self.create_group(i, now)
        self.groups[chosen]["CL"].append(i)
        self.clients[i].update(G=chosen, Q=best, Tstart=now)
        self.train(i)

    def join_group(self, i, now):
        chosen, best = -1, -1
        for g, group in self.groups.items():
            q = math.floor((group["Ta"] - now) / self.clients[i]["S"] + 1e-6)
            if q >= self.least and q >= best and q <= self.most:
                chosen, best = g, q
        return chosen, best

    def create_group(self, i, now):
        best, speed = -1, self.clients[i]["S"]
        for group in self.groups.values():
            if now < group["Ta"]:
                fastest = min(self.clients[j]["S"] for j in group["CL"] + group["ACL"])
                expected = group["Ta"] + fastest * self.most
                best = max(best, math.floor((expected - now) / speed + 1e-6))
        if 0 <= best < self.least:
            best = self.least
        elif best < 0 or best > self.most:
            best = self.most
        self.made += 1
        latest = now + best * speed * self.slack
        group = {"CL": [], "ACL": [], "Ta": now + best * speed, "Tmax": latest, "buffer": []}
        self.groups[self.made], self.timers[self.made] = group, latest
        return self.made, best


@pytest.mark.slow
@settings(deadline=None, max_examples=250)
@given(
    SEEDS,
    SPEEDS,
    st.integers(1, 12),
    STEPS,
    st.sampled_from([1.0, 1.2, 2.0]),
)
def test_literal_transcription(seed, speeds, num_clients, steps, slack):
    literal = Literal(random_system(seed, speeds), num_clients, *steps, slack)
    literal.run(80)
    plan = compass(min_steps=steps[0], max_steps=steps[1], slack=slack)
    plan = plan(random_system(seed, speeds), num_clients, arrivals=80)
    seen = zip(plan.client.tolist(), plan.num_steps.tolist(), plan.version.tolist(), strict=True)
    assert list(seen) == literal.sent
    assert len(plan.time) == len(literal.server_steps)
    seen = zip(plan.client[plan.dispatch].tolist(), plan.staleness.tolist(), strict=True)
    assert sorted(zip(plan.step.tolist(), seen, strict=True)) == sorted(
        (step, update) for step, updates in enumerate(literal.server_steps) for update in updates
    )


# invariants


def check_dispatches(plan, least, most, first_steps):
    trace = plan.trace
    made = np.concatenate([[0], plan.time])  # version v by server step v - 1
    assert (made[plan.version] <= plan.started).all()
    for order in (plan.version, plan.started, plan.time, plan.step):
        assert (np.diff(order) >= 0).all()
    assert (plan.ended >= plan.started).all()
    alone = trace.arrival_group == 0
    assert (plan.num_steps[alone] == first_steps).all()
    assert ((plan.num_steps >= least) & (plan.num_steps <= most))[~alone].all()
    assert (plan.full_steps == plan.num_steps).all()
    room = (trace.expected - plan.started) / trace.seconds_per_step
    assert (np.floor(room[~alone] + 1e-6) == plan.num_steps[~alone]).all()
    assert (trace.expected <= trace.latest)[~alone].all()
    assert (plan.ended > trace.latest)[trace.late].all()


def check_server_steps(plan, code):
    trace = plan.trace
    arrived = plan.dispatch
    assert sorted(arrived) == np.flatnonzero(plan.fate == AGGREGATED).tolist()  # once
    # a first arrival alone; a group once, all of it in time, with the late ones of others
    assert ((plan.group == FIRST) == (trace.aggregated_group == 0)).all()
    groups = trace.aggregated_group[plan.group == AGGREGATE]
    assert len(set(groups.tolist())) == len(groups)
    late = trace.late[arrived]
    assert (trace.arrival_group[arrived] == trace.aggregated_group[plan.step])[~late].all()
    assert (plan.group[plan.step] == AGGREGATE)[late].all()
    sizes = np.bincount(plan.step[~late], minlength=len(plan.time))
    assert (sizes >= 1).all()
    assert (sizes[plan.group == FIRST] == 1).all()
    then = plan.time[plan.step]
    assert (plan.ended[arrived] <= then).all()
    assert (np.diff(plan.ended[arrived])[np.diff(plan.step) == 0] >= 0).all()
    grouped = ~late & (trace.arrival_group[arrived] > 0)
    assert (then <= trace.latest[arrived])[grouped].all()
    # staleness: the server steps from the version to the aggregation, or to the arrival
    assert (plan.staleness >= 0).all()
    if code:
        assert (plan.staleness == plan.step - plan.version[arrived]).all()
    else:
        ends = plan.ended[arrived]
        low, high = (np.searchsorted(plan.time, ends, side) for side in ("left", "right"))
        seen = plan.version[arrived] + plan.staleness
        assert ((low <= seen) & (seen <= np.minimum(high, plan.step))).all()


def check_clients(plan, system, now):
    """Each client is dispatched again exactly when its last dispatch has been processed."""
    trace = plan.trace
    used = dict(zip(plan.dispatch.tolist(), plan.step.tolist(), strict=True))
    for client in range(plan.client.max() + 1):
        mine = np.flatnonzero(plan.client == client)
        assert (plan.number[mine] == np.arange(len(mine))).all()
        for last, following in itertools.pairwise(mine):
            start = plan.started[following]
            if plan.fate[last] == LOST:
                away = system.unavailability(client, int(plan.number[last]))[1]
                assert start == plan.ended[last] + away
            elif trace.late[last] or trace.arrival_group[last] == 0:
                assert start == plan.ended[last]
            else:
                assert start == plan.time[used[last]]
                assert plan.version[following] == used[last] + 1
        last = mine[-1]
        if plan.fate[last] == IN_FLIGHT and plan.ended[last] < now:  # it waits for its group
            assert trace.latest[last] >= now


@pytest.mark.slow
@settings(deadline=None, max_examples=1000)
@given(
    SEEDS,
    SPEEDS,
    st.integers(1, 12),
    STEPS,
    st.sampled_from([1.0, 1.2, 2.0]),
    st.sampled_from([None, 7, 300]),
    st.sampled_from(["paper", "code"]),
    st.sampled_from([0, 0.05, 0.5]),
    st.sampled_from([0, 0.1]),
    st.sampled_from([0, 0.05]),
)
def test_invariants(
    seed, speeds, num_clients, steps, slack, first_steps, mode, leaving, changing, jitter
):
    least, most = steps
    options = {"slack": slack, "first_steps": first_steps, "mode": mode}
    planner = compass(min_steps=least, max_steps=most, **options)
    system = random_system(seed, speeds, leaving, changing, jitter)
    plan = planner(system, num_clients, arrivals=60)
    dispatches = zip(plan.client.tolist(), plan.number.tolist(), strict=True)
    arrives = np.array([system.unavailability(*number) is None for number in dispatches])
    now = np.sort(plan.ended[arrives])[59]
    check_dispatches(plan, least, most, first_steps or (most if mode == "code" else least))
    check_server_steps(plan, mode == "code")
    check_clients(plan, system, now)
    # a longer plan begins like a shorter one
    longer = planner(system, num_clients, seconds=now)
    check_server_steps(longer, mode == "code")
    for name in DISPATCHES:
        shorter = getattr(plan, name)
        np.testing.assert_array_equal(shorter, getattr(longer, name)[: len(shorter)])


def test_floors_of_floats():
    """Without care, these speeds give a new group one step less."""
    exact, rounded = (
        compass()(GivenSystem(["0.35", "1.1"], number=number), 2, arrivals=12)
        for number in (Fraction, float)
    )
    for name in INTEGERS:
        np.testing.assert_array_equal(getattr(exact, name), getattr(rounded, name))


# options


def test_wrong_options():
    with pytest.raises(ValueError, match="min_steps=30 is above max_steps=20; give at most that"):
        compass(min_steps=30, max_steps=20)
    with pytest.raises(ValueError, match=r"slack=0\.9 is out of range"):
        compass(slack=0.9)
