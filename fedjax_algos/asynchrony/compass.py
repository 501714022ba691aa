"""FedCompass's schedule: clients get the numbers of steps with which their group arrives together.

What happens to a late client, one that arrives after its group's latest time, is defined in the
docstring of `compass`.

Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client Devices
using a Computing Power-Aware Scheduler", ICLR 2024, https://arxiv.org/abs/2309.14675.
"""

from typing import Annotated, Literal

from fedjax_algos.asynchrony.arrival_groups import CompassServer, Measure, Rules
from fedjax_algos.asynchrony.event_loop import EventLoop
from fedjax_algos.asynchrony.registry import Planner, schedules
from fedjax_algos.core.options import Count, Range


@schedules.register
def compass(
    *,
    min_steps: Count = 20,
    max_steps: Count = 100,
    slack: Annotated[float, Range(1)] = 1.2,
    first_steps: Count | None = None,
    mode: Literal["paper", "code"] = "paper",
    speed_weight: Annotated[float, Range(0, 1, low_open=True)] | None = None,
    measure: Measure | None = None,
) -> Planner:
    """Gives client i Q_i = floor((Ta - t) / S_i) steps, so that it arrives with its group at Ta.

    All clients start with `first_steps`. A first arrival is a server step of its own (FIRST). From
    then on S_i = duration / Q_i is measured at each arrival, and the client is assigned at time t:

    - It joins the group with the largest Q_i in [Qmin, Qmax], the latest such group in a tie.
    - If there is no such group, it creates one that others can join later. Take an existing group
      g that is still expected (t < Ta_g), and its fastest client f: with Qmax more steps after
      Ta_g, f arrives at Ta_g + Qmax S_f. So that f can join the new group, Q_i is
      max_g floor((Ta_g + Qmax S_f - t) / S_i), but at least Qmin and at most Qmax; it is Qmax if
      there is no such g. The new group has Ta = t + Q_i S_i and Tmax = t + lambda Q_i S_i.

    A group is aggregated (AGGREGATE) when all its clients have arrived, or at Tmax if some have.
    Its clients are then assigned in ascending order of S_i, ties in order of arrival.

    A client is late if it arrives after its group's Tmax; the group is closed at Tmax even if none
    of its clients has arrived. A late client makes no server step and is assigned again at once
    with the current model. Its update is kept and is part of the next aggregation of any group; if
    the run ends before that, the update is not used.

    Staleness is counted at arrival. At equal times, arrivals come first, in the order of the
    clients, then timers, then clients that rejoin.

    Where the paper is ambiguous: an aggregated group is closed before its clients are assigned, and
    a timer makes no server step if no client of the group has arrived. `mode="code"` differs from
    the paper as the authors' release does (https://github.com/APPFL/FedCompass): when a group is
    created, the existing groups' Tmax_g takes the place of their Ta_g, and those g are skipped for
    which Q_i would be more than Qmax; S_i is a moving average; staleness is counted at aggregation;
    and the first dispatches have Qmax steps. One thing stays as above: a late update is not
    overwritten by the same client's next one, as it is in that release.

    The paper does not cover clients that leave: here the dispatch is lost, and the server knows it
    at that time. The client is removed from its group; if all others have arrived, the group is
    aggregated at once. A client that rejoins is assigned with its last S_i and the current model,
    or starts with `first_steps` again if it has never arrived.

    Times may be floats or `fractions.Fraction`s, as the system model's are. The latter are exact.
    With floats, times within a millionth of a step of Ta or Tmax count as equal to it.

    Args:
      min_steps: Qmin, at least 1.
      max_steps: Qmax, at least Qmin.
      slack: lambda, at least 1: the latest arrival factor.
      first_steps: local steps of dispatches of clients that have not been measured; None is Qmin,
        or Qmax in code mode.
      mode: "paper" or "code".
      speed_weight: rho in S_i <- (1 - rho) S_i + rho new, above 0 and at most 1; None is 1, or .9
        in code mode.
      measure: a function (client, number, num_steps, seconds of the dispatch) -> new S_i in seconds
        per step; None is seconds / num_steps.

    Returns:
      A planner. The `trace` of its plans is a `CompassTrace`.

    Raises:
      ValueError: if `min_steps` is above `max_steps`.
    """
    if min_steps > max_steps:
        raise ValueError(
            f"compass: min_steps={min_steps} is above max_steps={max_steps}; give at most that"
        )
    code = mode == "code"
    first_steps = first_steps or (max_steps if code else min_steps)
    speed_weight = speed_weight or (0.9 if code else 1)
    rules = Rules(min_steps, max_steps, slack, first_steps, speed_weight, code, measure)

    def plan(system, num_clients, *, arrivals=None, seconds=None):
        return CompassServer(rules, EventLoop(system, num_clients, arrivals, seconds)).run()

    return plan
