"""Figure 22: the timeline of five clients where client 3 becomes so slow that it is late.

COMMAND   python experiments/papers/claims.py run fedcompass/figure_22
EXPECTED  group 1 is aggregated without client 3, which opens group 3; the others join it later
TIME      a few seconds

Client 3 arrives at minute 15.2, as printed, and reports 2.5 steps a minute. Its 28 steps would take
until minute 16.2 at that speed: see figure_22_arrival.py.
"""

from fractions import Fraction

from timelines import dispatches, rows_of, timeline

SLOW = Fraction(2, 5)  # minutes per step
PRINTED = (Fraction("15.2") - 5) / 28  # so that 28 steps after minute 5 end at minute 15.2


def measure(client, number, num_steps, seconds):
    """The speed that a client reports: client 3 the printed one, in its second round."""
    return SLOW if (client, number) == (2, 1) else seconds / num_steps


def rows(run):
    plan = timeline(50, [PRINTED, SLOW], measure=measure)
    of = dispatches(plan)
    left = of[1, 3]["Ta (min)"] - of[3, 2]["arrival (min)"]  # until group 2 is expected
    seen = {
        ("client 3, second round", "arrival (min)"): of[3, 2]["arrival (min)"],
        ("client 3, second round", "Tmax (min)"): of[3, 2]["Tmax (min)"],
        ("client 3, second round", "late"): of[3, 2]["late"],
        ("group 1", "aggregation (min)"): plan.time[5],
        ("client 3, in group 2", "steps"): int(left / float(SLOW)),
        ("client 3, third round", "group"): of[3, 3]["group"],
    }
    for client in (1, 2):
        seen[f"client {client}, third round", "group"] = of[client, 3]["group"]
    seen["group 2", "aggregation (min)"] = of[1, 3]["arrival (min)"]
    for client, number in ((1, 4), (2, 4), (4, 3), (5, 3)):
        seen[f"client {client}, after group 2", "group"] = of[client, number]["group"]
    return rows_of(seen)
