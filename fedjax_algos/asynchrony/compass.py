"""FedCompass's scheduler: each client gets as many steps as let its group arrive together.

Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client Devices
using a Computing Power-Aware Scheduler", ICLR 2024, https://arxiv.org/abs/2309.14675.
"""

from typing import Annotated, Any, Literal, NamedTuple

from fedjax_algos.asynchrony.arrival_groups import CompassTrace, Measure, Rules, Server
from fedjax_algos.asynchrony.event_loop import EventLoop
from fedjax_algos.asynchrony.plan import Plan, Weather
from fedjax_algos.asynchrony.registry import schedules
from fedjax_algos.core.registry import Range


@schedules
def compass(
    *,
    min_steps: Annotated[int, Range(1)] = 20,
    max_steps: Annotated[int, Range(1)] = 100,
    slack: Annotated[float, Range(1)] = 1.2,
    first_steps: Annotated[int, Range(1)] | None = None,
    mode: Literal["paper", "code"] = "paper",
    speed_weight: Annotated[float, Range(0, 1, low_open=True)] | None = None,
    measure: Measure | None = None,
) -> "Compass":
    """Compass: Q_i = floor((Ta - t) / S_i) steps, so that client i arrives with its group at Ta.

    All clients start with `first_steps`. A first arrival is a server step of its own (FIRST). From
    then on S_i = duration / Q_i is measured at each arrival, and the client is assigned at time t:

    - It joins the group with the largest Q_i in [Qmin, Qmax], the latest such group in a tie.
    - Where there is none it opens one, timed for others to merge into. The fastest client f of a
      group with t < Ta_g would be back from Qmax more steps at Ta_g + Qmax S_f. So Q_i is
      max_g floor((Ta_g + Qmax S_f - t) / S_i), raised to Qmin; or Qmax, if that is less or there
      is no such group. Its Ta = t + Q_i S_i and Tmax = t + lambda Q_i S_i.

    When all of a group have arrived, or at Tmax if some have, the group is aggregated (AGGREGATE),
    and its clients are assigned in order of S_i, ties in order of arrival. Who comes after Tmax is
    late: assigned at once, without a server step, and part of the next aggregation of any group.
    Staleness is counted at arrival. At equal times arrivals, in client order, come before timers,
    and those before clients that rejoin.

    Where the paper is ambiguous: an aggregated group is closed before its clients are assigned, and
    a timer that finds nobody arrived makes no server step. `mode="code"` differs from the paper as
    the authors' release does (https://github.com/APPFL/FedCompass): new groups look at Tmax_g in
    place of Ta_g, groups that would need more than Qmax are passed over, S_i is a moving average,
    staleness is counted at aggregation, and the first visits have Qmax steps. A late update is
    not overwritten by the same client's next one, as it is there.

    Clients that leave, on which the paper is silent: the visit is lost and the server knows it at
    that moment. The client is taken off its group's list; if the others have all arrived, the group
    is aggregated at once. A client that rejoins is assigned with its last S_i and the current
    model, or starts with `first_steps` again if it has never arrived.

    Times may be floats or `fractions.Fraction`s, as the weather's are. The latter are exact. With
    floats, times within a millionth of a step of Ta or Tmax count as equal to it.

    Args:
      min_steps: Qmin.
      max_steps: Qmax.
      slack: lambda, the latest arrival factor.
      first_steps: of visits before a client has been measured; None is Qmin, or Qmax in code mode.
      mode: "paper" or "code".
      speed_weight: rho in S_i <- (1 - rho) S_i + rho new; None is 1, or .9 in code mode.
      measure: (client, visit, num_steps, seconds of the visit) -> new S_i in seconds per step;
        None is seconds / num_steps.

    Returns:
      A `Planner`, whose `trace` has the same arguments and gives the decisions, too.

    Raises:
      ValueError: if `min_steps` is above `max_steps`.
    """
    if min_steps > max_steps:
        raise ValueError(
            f"compass: min_steps={min_steps} is above max_steps={max_steps}; give at most that"
        )
    code = mode == "code"
    if first_steps is None:
        first_steps = max_steps if code else min_steps
    if speed_weight is None:
        speed_weight = 0.9 if code else 1
    rules = Rules(min_steps, max_steps, slack, first_steps, speed_weight, code, measure)
    return Compass(rules)


class Compass(NamedTuple):
    """The planner that `compass` makes; arguments and errors are those of `base.Planner`."""

    rules: Rules

    def __call__(self, weather: Weather, num_clients: int, **horizon: Any) -> Plan:
        """The timeline."""
        return self.trace(weather, num_clients, **horizon).plan

    def trace(
        self,
        weather: Weather,
        num_clients: int,
        *,
        arrivals: int | None = None,
        seconds: float | None = None,
    ) -> CompassTrace:
        """The same timeline with the scheduler's decisions."""
        loop = EventLoop(weather, num_clients, arrivals, seconds)
        return Server(self.rules, loop).run()
