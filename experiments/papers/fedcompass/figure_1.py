"""Figure 1: the timeline of five clients, with the times and steps that the text states.

COMMAND   python experiments/papers/claims.py run fedcompass/figure_1
EXPECTED  groups 1 and 2 are expected at minutes 12 and 22, and then there is one group of all
TIME      a few seconds
"""

from timelines import MIN_PER_STEP, dispatches, rows_of, timeline


def rows(run):
    of = dispatches(timeline(60))
    seen = {("client 1, first round", "arrival (min)"): of[1, 1]["arrival (min)"]}
    for client in range(1, 6):
        for measure in ("steps", "group", "Ta (min)"):
            seen[f"client {client}, second round", measure] = of[client, 2][measure]
    left = of[1, 2]["Ta (min)"] - of[4, 1]["arrival (min)"]  # until group 1 is expected
    seen["client 4, in group 1", "steps"] = int(left / MIN_PER_STEP[3])
    for client in (1, 2, 3):
        seen[f"client {client}, third round", "group"] = of[client, 3]["group"]
    last = {client: dispatch["group"] for (client, _), dispatch in of.items()}
    seen["at the end", "groups"] = len(set(last.values()))
    return rows_of(seen)
