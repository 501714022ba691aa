"""Figure 21: the timeline of five clients where client 3 becomes a little slower.

COMMAND   python experiments/papers/claims.py run fedcompass/figure_21
EXPECTED  group 1 waits for client 3 until minute 13.4, and its clients join one group
TIME      a few seconds
"""

from fractions import Fraction

from timelines import dispatches, rows_of, timeline


def rows(run):
    plan = timeline(30, [Fraction(3, 10)])  # 3.33 steps a minute
    of = dispatches(plan)
    seen = {
        ("client 3, second round", "arrival (min)"): of[3, 2]["arrival (min)"],
        ("client 3, second round", "Ta (min)"): of[3, 2]["Ta (min)"],
        ("client 3, second round", "Tmax (min)"): of[3, 2]["Tmax (min)"],
        ("group 1", "aggregation (min)"): plan.time[5],
        ("clients 1 to 3, third round", "groups"): len({of[c, 3]["group"] for c in (1, 2, 3)}),
        ("clients 1 to 3, third round", "group"): of[1, 3]["group"],
    }
    return rows_of(seen)
