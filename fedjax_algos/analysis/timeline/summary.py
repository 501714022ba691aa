"""A plan in numbers."""

from typing import NamedTuple

import numpy as np

from fedjax_algos.asynchrony.plan import IN_FLIGHT, LOST, Plan


class PlanSummary(NamedTuple):
    """A plan in numbers, up to its last server step."""

    server_steps: int
    arrivals: int  # updates that are in a server step
    lost: int  # visits
    in_flight: int  # visits in flight at the horizon, or arrived and in no server step
    mean_staleness: float
    max_staleness: int
    mean_idle_share: float
    seconds: float  # of virtual time


def summarise_plan(plan: Plan, num_clients: int) -> PlanSummary:
    """Counts, staleness and idle time, see `idle_share`. Staleness is as the schedule counts it.

    Raises:
      ValueError: for a plan without server steps, or that dispatches more clients.
    """
    fates = np.bincount(plan.fate, minlength=3)
    idle = idle_share(plan, num_clients)
    return PlanSummary(
        server_steps=len(plan.time),
        arrivals=len(plan.dispatch),
        lost=int(fates[LOST]),
        in_flight=int(fates[IN_FLIGHT]),
        mean_staleness=float(plan.staleness.mean()),
        max_staleness=int(plan.staleness.max()),
        mean_idle_share=float(idle.mean()),
        seconds=float(plan.time[-1]),
    )


def idle_share(plan: Plan, num_clients: int, end: float | None = None) -> np.ndarray:
    """float64[num_clients]: the share of virtual time in which each client does not train.

    Communication counts as training, as it is part of a visit, and so do lost visits until the
    client leaves. The time that a client is away counts as idle.

    Args:
      plan: a timeline.
      num_clients: m; those who are never dispatched have 1.
      end: of the time that is looked at, from 0, in seconds; None is the last server step. The
        plan should reach it: nobody trains after what is planned.

    Raises:
      ValueError: for a plan without server steps if there is no `end`, for an `end` that is not
        above 0, or a plan that dispatches more clients.
    """
    if end is None:
        require_server_steps(plan, ", or give end")
        end = float(plan.time[-1])
    if not 0 < end < np.inf:
        raise ValueError(f"end={end} is out of range; give a number of seconds above 0")
    if plan.client.max(initial=-1) >= num_clients:
        raise ValueError(
            f"the plan dispatches client {plan.client.max()}, but num_clients={num_clients}; give "
            "the number that the plan was made for"
        )
    seconds = np.minimum(plan.ended, end) - np.minimum(plan.started, end)
    training = np.bincount(plan.client, seconds, minlength=num_clients)
    return np.maximum(1 - training / end, 0)  # a sum may exceed the whole by rounding


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def require_server_steps(plan: Plan, otherwise: str = "") -> None:
    if not len(plan.time):
        raise ValueError(f"the plan has no server step; plan more arrivals or seconds{otherwise}")
