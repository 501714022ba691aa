"""Schedules on the virtual clock in which every visit has the same number of steps.

`barrier` is FedAvg's and FedAvgM's, `immediate` FedAsync's, `buffered` FedBuff's, `tiers` FedAT's,
as FedCompass compares them: Li et al., ICLR 2024, https://arxiv.org/abs/2309.14675.
What comes first at equal times, and when the server learns of a loss, `event_loop` says.
"""

import math
from typing import Annotated, Any

import numpy as np

from fedjax_algos.asynchrony.event_loop import ARRIVES, LEAVES, REJOINS, STARTS, EventLoop
from fedjax_algos.asynchrony.plan import Plan
from fedjax_algos.asynchrony.registry import Planner, schedules
from fedjax_algos.asynchrony.system_model import Forecast
from fedjax_algos.core.registry import Range

Count = Annotated[int, Range(1)]

_NEXT_CLIENT = 16  # a stream of NumPy's generators; those of weather are below


@schedules
def barrier(*, steps: Count) -> Planner:
    """Rounds of all clients, `steps` each: a server step when the last of them has arrived.

    Nobody waits for a client that has left; it enters the first round that starts when it is back
    or later. A round in which nobody arrives makes no server step, and is followed by one of those
    who are back, or of the first to come back. Staleness is 0, and so is the plan's group.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    https://arxiv.org/abs/1602.05629, with all clients.

    Args:
      steps: Q, of each visit.
    """

    def plan(weather, num_clients, *, arrivals=None, seconds=None):
        loop = EventLoop(weather, num_clients, arrivals, seconds)
        return _rounds(loop, steps, [0] * num_clients)

    return plan


@schedules
def tiers(*, steps: Count, ratio: Annotated[float, Range(1)] = 2.0) -> Planner:
    """Clients of like speed run rounds of their own, as in `barrier`, from the latest global model.

    The end of a tier's round is a server step, and its group is the tier, 0 for the fastest. Each
    tier keeps the clients that `tiers_of` gives it, also where their speeds change. Tiers that
    start together start from the same model. Staleness is not counted: it is 0.

    Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System
    with Asynchronous Tiers", https://arxiv.org/abs/2010.05958.

    Args:
      steps: Q, of each visit.
      ratio: upsilon, of the times of a tier's slowest and fastest clients.

    Raises:
      ValueError: when called with a weather without `expected_seconds_per_step`.
    """

    def plan(weather, num_clients, *, arrivals=None, seconds=None):
        if not isinstance(weather, Forecast):
            raise ValueError(
                f"tiers: {type(weather).__name__} does not know clients' mean speeds; give a "
                "weather with expected_seconds_per_step(client), as those of this package"
            )
        loop = EventLoop(weather, num_clients, arrivals, seconds)
        return _rounds(loop, steps, tiers_of(weather, num_clients, ratio).tolist())

    return plan


def tiers_of(weather: Forecast, num_clients: int, ratio: float = 2.0) -> np.ndarray:
    """int32[num_clients]: each client's tier, 0 for the fastest; there are max + 1 of them.

    In order of their seconds per step t_i, clients join a tier while t_i <= ratio * t of its
    fastest; the next one opens another.
    """
    times = [weather.expected_seconds_per_step(client) for client in range(num_clients)]
    result, tier, most = np.empty(num_clients, np.int32), -1, -math.inf
    for client in sorted(range(num_clients), key=times.__getitem__):
        if times[client] > most:
            tier += 1
            most = times[client] * ratio * (1 + 1e-9)  # .01 * (.47 / .01) is less than .47
        result[client] = tier
    return result


@schedules
def immediate(
    *, steps: Count, concurrency: Count | None = None, seed: Annotated[int, Range(0)] = 0
) -> Planner:
    """Each arrival is a server step, and its client goes on at once with the new model.

    Staleness counts the server steps since the client received its model. A client that has left
    gets the model of the moment when it is back. The plan's group is 0.

    Xie et al., "Asynchronous Federated Optimization", https://arxiv.org/abs/1903.03934.

    Args:
      steps: Q, of each visit.
      concurrency: clients that train at once; see `buffered`.
      seed: of the draws among idle clients.

    Raises:
      ValueError: when called with fewer clients than `concurrency`.
    """
    return buffered(steps=steps, size=1, concurrency=concurrency, seed=seed)


@schedules
def buffered(
    *,
    steps: Count,
    size: Count = 10,
    concurrency: Count | None = None,
    seed: Annotated[int, Range(0)] = 0,
) -> Planner:
    """Every `size` arrivals are a server step; who arrives goes on at once with the model of then.

    The client that completes a buffer gets the new model. One client may be in a buffer twice.
    Staleness counts the server steps from the client's broadcast to its arrival. Updates in a
    buffer that is not full at the horizon have the fate IN_FLIGHT. The plan's group is 0.

    With `concurrency`, only so many clients train at once: when a visit ends or is lost, the next
    one is of a client that is drawn uniformly among those neither training nor away, who just
    arrived included. Without, everybody trains, and a client that has left gets the model of the
    moment when it is back.

    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation",
    https://arxiv.org/abs/2106.06639.

    Args:
      steps: Q, of each visit.
      size: K.
      concurrency: clients that train at once; None is all of them.
      seed: of the draws among idle clients.

    Raises:
      ValueError: when called with fewer clients than `concurrency`.
    """

    def plan(weather, num_clients, *, arrivals=None, seconds=None):
        loop = EventLoop(weather, num_clients, arrivals, seconds)
        if concurrency is not None and concurrency > num_clients:
            raise ValueError(
                f"concurrency={concurrency} is out of range; give 1 to {num_clients}, the number "
                "of clients"
            )
        return _buffers(loop, steps, size, concurrency or num_clients, seed)

    return plan


def _buffers(loop: EventLoop, steps: int, size: int, places: int, seed: int) -> Plan:
    """As many clients in flight as there are places; who has arrived is replaced at once."""
    rng = np.random.default_rng([seed, _NEXT_CLIENT])
    idle = list(range(loop.num_clients))[::-1]
    loop.put(0, STARTS, 0)
    for now, event, client in loop.events():
        if event in (ARRIVES, LEAVES):
            places += 1
        if event in (ARRIVES, REJOINS):
            idle.append(client)
        while idle and places:
            if len(idle) > places:
                chosen = int(rng.random() * len(idle))
                idle[chosen], idle[-1] = idle[-1], idle[chosen]
            loop.send(idle.pop(), steps, len(loop.arrived) // size, now)
            places -= 1
    num_steps = len(loop.arrived) // size
    dispatch = np.array(loop.arrived[: num_steps * size], int)
    step = np.repeat(np.arange(num_steps), size)
    staleness = step - np.array(loop.version)[dispatch]
    time = np.array(loop.ended, float)[dispatch[size - 1 :: size]]
    return loop.plan(dispatch, staleness, step, time, np.zeros(num_steps))


def _rounds(loop: EventLoop, steps: int, tier_of: list[int]) -> Plan:
    """Each tier by itself: a round ends when nobody in it is expected any more."""
    num_tiers = max(tier_of) + 1
    waiting: list[list[int]] = [[] for _ in range(num_tiers)]  # clients for the next round
    arrived: list[list[int]] = [[] for _ in range(num_tiers)]  # this round's dispatches
    expected = [0] * num_tiers
    for client, tier in enumerate(tier_of):
        waiting[tier].append(client)
    for tier in range(num_tiers):
        loop.put(0, STARTS, tier)
    dispatch: list[int] = []
    step: list[int] = []
    times: list[Any] = []
    groups: list[int] = []
    for now, event, who in loop.events():
        if event == STARTS:
            if not expected[who]:
                for client in sorted(waiting[who]):
                    loop.send(client, steps, len(times), now)
                expected[who] = len(waiting[who])
                waiting[who].clear()
            continue
        tier = tier_of[who]
        if event == ARRIVES:
            arrived[tier].append(loop.current[who])
        if event in (ARRIVES, REJOINS):
            waiting[tier].append(who)
        if event in (ARRIVES, LEAVES):
            expected[tier] -= 1
        if expected[tier]:
            continue
        if arrived[tier]:
            dispatch += arrived[tier]
            step += [len(times)] * len(arrived[tier])
            times.append(now)
            groups.append(tier)
            arrived[tier].clear()
        if waiting[tier]:
            loop.put(now, STARTS, tier)  # after all else at this time
    return loop.plan(dispatch, np.zeros(len(dispatch)), step, times, groups)
