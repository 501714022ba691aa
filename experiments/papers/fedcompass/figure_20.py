"""Figure 20: the timeline of five clients where client 3 becomes faster in its second round.

COMMAND   python experiments/papers/claims.py run fedcompass/figure_20
EXPECTED  client 3 arrives at minute 10.6, and clients 1 to 3 join group 2 at minute 12
TIME      a few seconds
"""

from fractions import Fraction

from timelines import dispatches, rows_of, timeline


def rows(run):
    plan = timeline(30, [Fraction(1, 5)])  # 5 steps a minute
    of = dispatches(plan)
    seen = {
        ("client 3, second round", "arrival (min)"): of[3, 2]["arrival (min)"],
        ("client 3, second round", "Ta (min)"): of[3, 2]["Ta (min)"],
        ("group 1", "aggregation (min)"): plan.time[5],  # the sixth server step
    }
    for client in (1, 2, 3):
        seen[f"client {client}, third round", "group"] = of[client, 3]["group"]
    seen["client 3, third round", "steps"] = of[3, 3]["steps"]
    return rows_of(seen)
