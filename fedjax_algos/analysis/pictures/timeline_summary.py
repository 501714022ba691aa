"""The numbers of a plan: counts, staleness and idle time."""

from typing import NamedTuple

import numpy as np

from fedjax_algos.asynchrony.plan import IN_FLIGHT, LOST, Plan


class PlanSummary(NamedTuple):
    """The numbers of a plan, up to its last server step.

    Attributes:
      server_steps: their number.
      arrivals: updates that are part of a server step.
      lost: dispatches that were lost.
      in_flight: dispatches in flight at the horizon, or arrived and in no server step.
      mean_staleness: mean staleness of the arrivals.
      max_staleness: largest staleness of an arrival.
      mean_idle_share: mean over clients of the share of the time in which they are idle.
      seconds: simulated seconds of the plan.
    """

    server_steps: int
    arrivals: int
    lost: int
    in_flight: int
    mean_staleness: float
    max_staleness: int
    mean_idle_share: float
    seconds: float


def summarise_plan(plan: Plan, num_clients: int) -> PlanSummary:
    """Counts, staleness (as the planner counts it) and idle time (see `idle_share`) of a plan.

    Args:
      plan: the timeline.
      num_clients: clients that the plan was made for.

    Raises:
      ValueError: for a plan without server steps, or one that dispatches other clients.
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
    """The share of simulated time in which each client does not train, float64[num_clients].

    A dispatch counts as training from its start to its arrival, communication included; a lost
    dispatch until the client leaves. The time in which a client is away counts as idle.

    Args:
      plan: the timeline.
      num_clients: clients that the plan was made for; the share is 1 for those never dispatched.
      end: the end of the time considered, in simulated seconds; None is the last server step. The
        plan should extend to it: after its last event, all clients count as idle.

    Raises:
      ValueError: for a plan without server steps if `end` is None, an `end` that is not above 0, or
        a plan that dispatches other clients.
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
    return np.maximum(1 - training / end, 0)  # rounding can make a sum exceed the whole


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as `1 client` or `2 clients`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def require_server_steps(plan: Plan, alternative: str = "") -> None:
    """Raises ValueError for a plan without server steps; the alternative is another fix."""
    if not len(plan.time):
        raise ValueError(f"the plan has no server step; plan more arrivals or seconds{alternative}")
