"""Figure 22: the printed arrival and the printed speed of client 3 do not belong together.

COMMAND   python experiments/papers/claims.py run fedcompass/why_figure_22_arrival
EXPECTED  the printed speed gives minute 16.2; the printed minute 15.2 needs 2.745 steps a minute
TIME      a few seconds
"""

from fractions import Fraction

from timelines import dispatches, rows_of, timeline


def rows(run):
    of = dispatches(timeline(50, [Fraction(2, 5)]))  # 2.5 steps a minute
    second, started = of[3, 2], of[3, 1]["arrival (min)"]
    seen = {
        ("second round of client 3", "steps"): second["steps"],
        ("second round of client 3", "start (min)"): started,
        ("with 2.5 steps a minute", "arrival (min)"): second["arrival (min)"],
        ("with the arrival 15:12", "steps a minute"): second["steps"] / (15.2 - started),
    }
    return rows_of(seen)
