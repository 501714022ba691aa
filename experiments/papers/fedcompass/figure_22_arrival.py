"""Figure 22: when client 3 arrives if its second round runs at the speed that is printed.

COMMAND   python experiments/papers/claims.py run fedcompass/figure_22_arrival
EXPECTED  at minute 16.2, and not at the printed 15.2
TIME      a few seconds
"""

from fractions import Fraction

from timelines import dispatches, rows_of, timeline


def rows(run):
    of = dispatches(timeline(50, [Fraction(2, 5)]))  # 2.5 steps a minute
    seen = {
        ("client 3, second round", "arrival (min)"): of[3, 2]["arrival (min)"],
        ("client 3, second round", "late"): of[3, 2]["late"],
        ("client 3, third round", "group"): of[3, 3]["group"],
    }
    for client in (1, 2, 4, 5):
        number = 4 if client < 3 else 3
        seen[f"client {client}, after group 2", "group"] = of[client, number]["group"]
    return rows_of(seen)
