"""Timelines of five clients in exact arithmetic, for the scripts of figures 1 and 20 to 22.

Times are minutes as fractions. Clients are counted from 1, as in the paper.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from fedjax_algos.asynchrony import FixedSystem, Plan, compass

MIN_PER_STEP = [Fraction(1, 10), Fraction(1, 5), Fraction(1, 4), Fraction(2, 5), Fraction(1, 2)]
DISPATCHES = 12  # of a client, more than it makes before the end


def timeline(end: int, third: Sequence[Fraction] = (), **options: Any) -> Plan:
    """The planner of Figure 1: from 20 to 100 steps, and groups wait a fifth longer.

    Args:
      end: minutes.
      third: the minutes per step that client 3 has in its second dispatch and the ones after it;
        the last entry is repeated.
      options: of `compass`.
    """
    times: list[list[Fraction]] = [[time] * DISPATCHES for time in MIN_PER_STEP]
    if third:
        times[2] = [times[2][0], *third, *[third[-1]] * DISPATCHES][:DISPATCHES]
    planner = compass(min_steps=20, max_steps=100, slack=1.2, **options)
    return planner(FixedSystem(times), len(times), seconds=Fraction(end))


def dispatches(plan: Plan) -> dict[tuple[int, int], dict[str, float]]:
    """Of each client and number of its dispatch, from 1: steps, arrival, group, Ta and Tmax."""
    trace = plan.trace
    return {
        (client + 1, number + 1): {
            "steps": steps,
            "arrival (min)": arrival,
            "group": group,
            "Ta (min)": expected,
            "Tmax (min)": latest,
            "late": float(late),
        }
        for client, number, steps, arrival, group, expected, latest, late in zip(
            plan.client.tolist(),
            plan.number.tolist(),
            plan.num_steps.tolist(),
            plan.ended.tolist(),
            trace.arrival_group.tolist(),
            trace.expected.tolist(),
            trace.latest.tolist(),
            trace.late.tolist(),
            strict=True,
        )
    }


def rows_of(seen: Mapping[tuple[str, str], float]) -> list[tuple[str, str, str, int, str]]:
    """The rows of values by case and measure."""
    return [(case, "fedcompass", name, 0, f"{value:.10g}") for (case, name), value in seen.items()]
