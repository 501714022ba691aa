"""FedCompass's planner: the paper's figures, examples by hand, and a transcription."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.asynchrony import FixedSystem, compass, simulated
from fedjax_algos.asynchrony.plan import AGGREGATE, FIRST


class GivenSystem(FixedSystem):
    """Exact seconds per step, with other ones for some dispatches; only products are rounded."""

    def __init__(self, per_step, changes=(), unavailable=None, number=Fraction):
        times = [[Fraction(time)] * 30 for time in per_step]
        for (client, dispatch), time in dict(changes).items():
            times[client][dispatch] = Fraction(time)
        super().__init__(times, unavailable)
        self.number = number

    def seconds(self, *dispatch):
        return self.number(super().seconds(*dispatch))


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
ALL_ON_TIME = {1: 100, 2: 50, 3: 40, 4: 25, 5: 20}  # steps of ten minutes


def joint(time, group, expected, latest, steps):
    """Assignments at the same time to the same group: steps by client, in order."""
    return [(time, client, q, group, expected, latest) for client, q in steps.items()]


FIGURE_1 = (
    [
        *BEGIN,
        *joint("12:00", 2, "22:00", "24:48", {1: 100, 2: 50, 3: 40}),
        *joint("22:00", 3, "32:00", "34:00", ALL_ON_TIME),
        *joint("32:00", 4, "42:00", "44:00", ALL_ON_TIME),
        *joint("42:00", 5, "52:00", "54:00", ALL_ON_TIME),
    ],
    [
        *FIRSTS,
        ("12:00", AGGREGATE, {1: 4, 2: 3, 3: 2}),
        ("22:00", AGGREGATE, {1: 0, 2: 0, 3: 0, 4: 2, 5: 1}),
        *((time, AGGREGATE, dict.fromkeys(ALL_ON_TIME, 0)) for time in ("32:00", "42:00")),
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

SLOW = {(2, number): "2/5" for number in range(1, 20)}  # client 3 from its second dispatch on
FIGURES = {"1": (*FIGURE_1, {}, []), "22": (*FIGURE_22, SLOW, [(2, 1)])}


def clock(minutes):
    """mm:ss, with tenths where there are any."""
    tenths = round(float(minutes) * 600)
    return f"{tenths // 600:02}:{tenths % 600 // 10:02}" + f".{tenths % 10}" * (tenths % 10 > 0)


def decisions(plan):
    """Assignments and server steps of a plan, in the terms of the tables."""
    columns = plan.started, plan.client, plan.num_steps, *plan.trace[:3]
    assignments = [
        (clock(start), client + 1, steps, group, clock(expected), clock(latest))
        for start, client, steps, group, expected, latest in zip(*columns, strict=True)
        if group
    ]
    clients = [{i + 1: late for i, late in stalenesses(plan, k)} for k in range(len(plan.time))]
    steps = zip(map(clock, plan.time.tolist()), plan.group.tolist(), clients, strict=True)
    return assignments, list(steps)


def stalenesses(plan, step):
    """[(client, staleness)] of a server step; a client may be twice in one."""
    of = plan.step == step
    clients = plan.client[plan.dispatch[of]]
    return list(zip(clients.tolist(), plan.staleness[of].tolist(), strict=True))


@pytest.mark.parametrize("number", [Fraction, float])
@pytest.mark.parametrize("figure", FIGURES)
def test_figures_of_the_paper(figure, number):
    """The claims in `experiments/papers/fedcompass` have figures 20 and 21, and the text's 22."""
    assignments, steps, changes, late = FIGURES[figure]
    minutes, seconds = map(Fraction, steps[-1][0].split(":"))
    end = number(minutes + seconds / 60)
    plan = compass()(GivenSystem(PER_STEP, changes, number=number), 5, seconds=end)
    seen = decisions(plan)
    assert seen == (assignments, steps)
    # the order of the entries, which the equality of dicts does not compare
    assert [list(of) for *_, of in seen[1]] == [list(of) for *_, of in steps]
    is_late = plan.trace.late
    assert list(zip(plan.client[is_late], plan.number[is_late], strict=True)) == late
    assert (plan.time[-1], plan.ended[plan.dispatch[-1]]) == (end, end)


@pytest.mark.parametrize(
    ("options", "record", "steps"), [({}, 0.205, 58), ({"speed_weight": 1}, 0.2, 60)]
)
def test_speeds_are_averaged_in_code_mode(options, record, steps):
    planner = compass(mode="code", first_steps=20, **options)
    plan = planner(GivenSystem(PER_STEP, dict.fromkeys(SLOW, "1/5")), 5, seconds=12)
    third = np.flatnonzero(plan.client == 2)[-1]
    assert (plan.trace.seconds_per_step[third], plan.num_steps[third]) == (record, steps)


@pytest.mark.parametrize("number", [Fraction, float])
def test_arrivals_at_the_latest_time_are_not_late(number):
    """Slower by lambda, so that all clients are back exactly at Tmax."""
    system = GivenSystem(["0.07"] * 3, {(client, 1): "0.084" for client in range(3)}, number=number)
    plan = compass()(system, 3, arrivals=6)
    assert not plan.trace.late.any()
    assert plan.time[-1] == plan.trace.latest[3] == plan.ended[3]
    assert plan.step.tolist() == [0, 1, 2, 3, 3, 3]


def test_a_client_that_rejoins_at_a_timer_gets_the_new_model():
    """At 140 client 0 is aggregated without client 1, and client 2 comes back."""
    unavailable = {(2, 1): (Fraction("0.5"), 70)}
    system = GivenSystem([1] * 3, changes={(1, 1): Fraction(3, 2)}, unavailable=unavailable)
    plan = compass()(system, 3, seconds=140)
    columns = plan.started, plan.client, plan.version, plan.trace.arrival_group
    assert [column[-2:].tolist() for column in columns] == [[140, 140], [0, 2], [4, 4], [2, 2]]


class Literal:
    """The paper's algorithms 1 to 3 with dictionaries and a scan for the next event; no ties."""

    def __init__(self, system, num_clients, least, most, slack, code):
        self.system, self.least, self.most, self.slack = system, least, most, slack
        self.code = code
        self.first, self.weight = (most, 0.9) if code else (least, 1)
        self.clients = {i: {"dispatches": 0} for i in range(num_clients)}
        self.groups, self.timers, self.general = {}, {}, []
        self.sent, self.server_steps, self.late = [], [], []
        for i in self.clients:
            self.assign_and_train(i, 0.0)

    def run(self, arrivals):
        while arrivals:
            i = min(self.clients, key=lambda i: self.clients[i]["end"])
            c = self.clients[i]
            now = c["end"]
            if self.timers and min(self.timers.values()) < now:
                g = min(self.timers, key=self.timers.get)
                self.group_aggregate(g, self.timers.pop(g))
            elif c["away"] == "it is back":
                self.assign_and_train(i, now)
            elif c["away"] is not None:
                c.update(end=now + c["away"], away="it is back")
                self.leave(i, now)
            else:
                c["end"] = math.inf
                self.receive(i, now)
                arrivals -= 1

    def receive(self, i, now):
        c = self.clients[i]
        speed = (now - c["Tstart"]) / c["Q"]
        c["S"] = (1 - self.weight) * c.get("S", speed) + self.weight * speed
        update, group = (i, c["tau"], len(self.server_steps)), self.groups.get(c["G"])
        if group is None:
            self.serve(0, [update])
            self.assign_and_train(i, now)
        elif group["open"]:
            group["CL"].remove(i)
            group["ACL"].append(i)
            group["buffer"].append(update)
            if not group["CL"]:
                self.group_aggregate(c["G"], now)
        else:
            self.late.append(c["number"])
            self.general.append(update)
            self.assign_and_train(i, now)

    def leave(self, i, now):
        group = self.groups.get(self.clients[i]["G"])
        if group is not None and group["open"]:
            group["CL"].remove(i)
            if not group["CL"]:
                self.group_aggregate(self.clients[i]["G"], now)

    def group_aggregate(self, g, now):
        group = self.groups[g]
        if not group["open"]:
            return
        group["open"] = False
        if group["ACL"]:
            self.serve(g, self.general + group["buffer"])
            self.general = []
        for i in sorted(group["ACL"], key=lambda i: self.clients[i]["S"]):
            self.assign_and_train(i, now)

    def serve(self, g, updates):
        made = len(self.server_steps)
        stale = [(i, (made if self.code else then) - tau) for i, tau, then in updates]
        self.server_steps.append((g, sorted(stale)))

    def assign_and_train(self, i, now):
        c, tau = self.clients[i], len(self.server_steps)
        chosen, q = (None, self.first) if "S" not in c else self.join_group(c["S"], now)
        if q is None:
            chosen, q = self.create_group(c["S"], now)
        if chosen is not None:
            self.groups[chosen]["CL"].append(i)
        seconds = self.system.seconds(i, c["dispatches"], q)
        share, away = self.system.unavailability(i, c["dispatches"]) or (1, None)
        c.update(G=chosen, Q=q, Tstart=now, tau=tau, number=len(self.sent))
        c.update(end=now + share * seconds, away=away, dispatches=c["dispatches"] + 1)
        group = self.groups.get(chosen, {"Ta": math.nan, "Tmax": math.nan})
        self.sent.append((i, q, tau, chosen or 0, group["Ta"], group["Tmax"]))

    def join_group(self, speed, now):
        chosen, best = None, None
        for g, group in self.groups.items():
            q = math.floor((group["Ta"] - now) / speed + 1e-6)
            if group["open"] and self.least <= q <= self.most and q >= (best or 0):
                chosen, best = g, q
        return chosen, best

    def create_group(self, speed, now):
        best = -1
        for group in self.groups.values():
            then = group["Tmax" if self.code else "Ta"]
            if group["open"] and now < then:
                fastest = min(self.clients[j]["S"] for j in group["CL"] + group["ACL"])
                q = math.floor((then + fastest * self.most - now) / speed + 1e-6)
                if q <= self.most or not self.code:
                    best = max(best, q)
        if 0 <= best < self.least:
            best = self.least
        elif best < 0 or best > self.most:
            best = self.most
        g, latest = len(self.groups) + 1, now + best * speed * self.slack
        group = {"Ta": now + best * speed, "Tmax": latest, "open": True}
        self.groups[g], self.timers[g] = group | {"CL": [], "ACL": [], "buffer": []}, latest
        return g, best


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**31 - 1),
    st.sampled_from(["homogeneous", "normal", "exponential"]),
    st.integers(1, 12),
    st.sampled_from([(20, 100), (5, 10), (40, 40), (1, 200)]),
    st.sampled_from([1.0, 1.2, 2.0]),
    st.sampled_from(["paper", "code"]),
    st.sampled_from([0, 0.05, 0.5]),
)
def test_literal_transcription(seed, speeds, num_clients, steps, slack, mode, leaving):
    make = simulated(speeds=speeds, dropout=leaving, change=0.1)
    literal = Literal(make(seed), num_clients, *steps, slack, mode == "code")
    literal.run(80)
    planner = compass(min_steps=steps[0], max_steps=steps[1], slack=slack, mode=mode)
    plan = planner(make(seed), num_clients, arrivals=80)
    trace = plan.trace
    columns = plan.client, plan.num_steps, plan.version, *trace[:3]
    np.testing.assert_allclose(np.transpose(columns), literal.sent, rtol=1e-9)  # exact integers
    assert np.flatnonzero(trace.late).tolist() == sorted(literal.late)
    assert ((plan.group == FIRST) == (trace.aggregated_group == 0)).all()
    groups = enumerate(trace.aggregated_group)
    seen = [(group, sorted(stalenesses(plan, step))) for step, group in groups]
    assert seen == literal.server_steps


def test_floors_of_floats():
    """Without care, these speeds give a new group one step less."""
    exact, rounded = (
        compass()(GivenSystem(["0.35", "1.1"], number=number), 2, arrivals=12)
        for number in (Fraction, float)
    )
    for name in ("client", "num_steps", "version", "fate", "dispatch", "staleness", "step"):
        np.testing.assert_array_equal(getattr(exact, name), getattr(rounded, name))
