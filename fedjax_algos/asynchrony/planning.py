"""Planners, which dispatch clients on the virtual clock, and checks that algorithms run with them.

`barrier` is the planner of FedAvg and FedAvgM, `immediate` of FedAsync, `buffered` of FedBuff and
`tiers` of FedAT, as FedCompass compares them: Li et al., ICLR 2024,
https://arxiv.org/abs/2309.14675. `plan` defines the order of events at equal times.
"""

import math
from collections.abc import Callable
from typing import Annotated, Protocol

import numpy as np

from fedjax_algos.asynchrony.plan import ARRIVES, LEAVES, REJOINS, STARTS, EventLoop, Plan
from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm
from fedjax_algos.core.options import Count, NumpySeed, Range
from fedjax_algos.core.registry import Registry
from fedjax_algos.participation.systems.system_model import SystemModel, SystemModelWithSpeeds

_NEXT_CLIENT = 16  # the random stream's tag; simulated.py uses 13 to 15


class Planner(Protocol):
    """Makes the plan of a run; factories of planners return one."""

    def __call__(
        self,
        system: SystemModel,
        num_clients: int,
        *,
        arrivals: int | None = None,
        seconds: float | None = None,
    ) -> Plan:
        """Plans a run up to a number of arrivals or of simulated seconds.

        Args:
          system: durations of dispatches, and clients that leave; times away may be `math.inf`.
          num_clients: m, the number of clients, at least 1.
          arrivals: number of updates to receive, without lost ones; the plan ends with the last.
          seconds: simulated seconds; events at exactly this time are included.

        Returns:
          The timeline. Its `trace` is the planner's own record, if it keeps one.

        Raises:
          ValueError: unless exactly one of `arrivals` and `seconds` is given and it is above 0, for
            invalid durations or unavailability, or if clients leave so often that too few arrive.
        """


planners = Registry[Planner]("planner", Callable)


@planners.register
def barrier(*, steps: Count) -> Planner:
    """Rounds of all available clients; the end of a round is a server step.

    A round ends when each of its clients has arrived or left. A client that has left enters the
    first round after it is back. A round without arrivals makes no server step; the next round
    starts as soon as a client is back. Staleness and the plan's group are 0.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    https://arxiv.org/abs/1602.05629, with all clients in each round.

    Args:
      steps: Q, local steps of each dispatch, at least 1.
    """

    def plan(system, num_clients, *, arrivals=None, seconds=None):
        loop = EventLoop(system, num_clients, arrivals, seconds)
        return _rounds(loop, steps, [0] * num_clients)

    return plan


@planners.register
def tiers(*, steps: Count, ratio: Annotated[float, Range(1)] = 2.0) -> Planner:
    """Each tier of similarly fast clients runs its own rounds, as in `barrier`.

    A round starts from the latest global model; tiers that start at the same time share it. Its end
    is a server step whose group is the tier, 0 for the fastest. Clients keep the tier that
    `tiers_of` gives them, even if their speeds change. Staleness is not counted: it is 0.

    Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System
    with Asynchronous Tiers", https://arxiv.org/abs/2010.05958.

    Args:
      steps: Q, local steps of each dispatch, at least 1.
      ratio: upsilon, at least 1: the most that a tier's slowest client may take, as a multiple of
        its fastest client's time.

    Returns:
      A planner. It raises `ValueError` for a system model without `expected_seconds_per_step`.
    """

    def plan(system, num_clients, *, arrivals=None, seconds=None):
        found = f"tiers: {type(system).__name__} does not know the clients' mean speeds"
        fix = "give a system model with expected_seconds_per_step(client)"
        require(isinstance(system, SystemModelWithSpeeds), f"{found}; {fix}")
        loop = EventLoop(system, num_clients, arrivals, seconds)
        return _rounds(loop, steps, tiers_of(system, num_clients, ratio).tolist())

    return plan


def tiers_of(system: SystemModelWithSpeeds, num_clients: int, ratio: float = 2.0) -> np.ndarray:
    """Divides clients into tiers of similar speed.

    In ascending order of their seconds per step t_i, clients are added to a tier while
    t_i <= ratio * t of the tier's fastest client; the next client opens another tier.

    Args:
      system: a system model that knows the clients' t_i.
      num_clients: m, the number of clients.
      ratio: upsilon, at least 1.

    Returns:
      int32[num_clients]: the tier of each client, from 0 for the fastest.
    """
    times = [system.expected_seconds_per_step(client) for client in range(num_clients)]
    result, tier, longest = np.empty(num_clients, np.int32), -1, -math.inf
    for client in sorted(range(num_clients), key=times.__getitem__):
        if times[client] > longest:
            tier += 1
            longest = times[client] * ratio * (1 + 1e-9)  # .01 * (.47 / .01) is less than .47
        result[client] = tier
    return result


@planners.register
def immediate(*, steps: Count, concurrency: Count | None = None, seed: NumpySeed = 0) -> Planner:
    """Each arrival is a server step, and the client is dispatched again at once with the new model.

    Staleness is the number of server steps since the client received its model. A client that has
    left receives the current model when it is back. The plan's group is 0.

    Xie et al., "Asynchronous Federated Optimization", https://arxiv.org/abs/1903.03934.

    Args:
      steps, concurrency, seed: as in `buffered`; this planner is its case with `size=1`.
    """
    return buffered(steps=steps, size=1, concurrency=concurrency, seed=seed)


@planners.register
def buffered(
    *,
    steps: Count,
    size: Count = 10,
    concurrency: Count | None = None,
    seed: NumpySeed = 0,
) -> Planner:
    """Every `size` arrivals make a server step; a client that arrives is dispatched again at once.

    That client receives the current model, or the new one if its update completes a buffer. A
    buffer may hold two updates of one client. Staleness is the number of server steps between a
    client's broadcast and its arrival. Updates in a partial buffer at the horizon have the fate
    IN_FLIGHT. The plan's group is 0.

    With `concurrency`, only that many clients train at the same time: when a dispatch ends or is
    lost, the next client is drawn uniformly among the clients that neither train nor are away,
    including the one that has just arrived. Without it, all clients train, and a client that has
    left receives the current model when it is back.

    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation",
    https://arxiv.org/abs/2106.06639.

    Args:
      steps: Q, local steps of each dispatch, at least 1.
      size: K, at least 1.
      concurrency: number of clients that train at the same time; None is all of them.
      seed: the seed of the draws among idle clients, at least 0.

    Returns:
      A planner. It raises `ValueError` for fewer clients than `concurrency`.
    """

    def plan(system, num_clients, *, arrivals=None, seconds=None):
        loop = EventLoop(system, num_clients, arrivals, seconds)
        num_free = concurrency or num_clients
        fix = f"give 1 to {num_clients}, the number of clients"
        require(num_free <= num_clients, f"concurrency={concurrency} is out of range; {fix}")
        rng = np.random.default_rng([seed, _NEXT_CLIENT])
        idle = list(range(num_clients))[::-1]
        loop.put(0, STARTS, 0)
        for now, event, client in loop.events():
            if event in (ARRIVES, LEAVES):
                num_free += 1
            if event in (ARRIVES, REJOINS):
                idle.append(client)
            while idle and num_free:
                if len(idle) > num_free:
                    chosen = int(rng.random() * len(idle))
                    idle[chosen], idle[-1] = idle[-1], idle[chosen]
                loop.dispatch(idle.pop(), steps, len(loop.arrived) // size, now)
                num_free -= 1
        num_steps = len(loop.arrived) // size
        dispatch = np.array(loop.arrived[: num_steps * size], int)
        step = np.repeat(np.arange(num_steps), size)
        staleness = step - np.array(loop.version)[dispatch]
        time = np.array(loop.ended, float)[dispatch[size - 1 :: size]]
        return loop.plan(dispatch, staleness, step, time, np.zeros(num_steps))

    return plan


def _rounds(loop, steps, tier_of):
    """Plans each tier's rounds; a round ends when all its clients have arrived or left."""
    tiers = range(max(tier_of) + 1)
    # clients for the next round
    waiting = [np.flatnonzero(np.array(tier_of) == tier).tolist() for tier in tiers]
    arrived = [[] for _ in tiers]  # this round's dispatches
    pending = [0 for _ in tiers]  # clients that train in this round
    for tier in tiers:
        loop.put(0, STARTS, tier)
    dispatch, step, times, groups = [], [], [], []
    for now, event, number in loop.events():
        if event == STARTS:
            tier = number
            if not pending[tier]:
                for client in sorted(waiting[tier]):
                    loop.dispatch(client, steps, len(times), now)
                pending[tier] = len(waiting[tier])
                waiting[tier].clear()
            continue
        client, tier = number, tier_of[number]
        if event == ARRIVES:
            arrived[tier].append(loop.current[client])
        if event in (ARRIVES, REJOINS):
            waiting[tier].append(client)
        if event in (ARRIVES, LEAVES):
            pending[tier] -= 1
        if pending[tier]:
            continue
        if arrived[tier]:
            dispatch += arrived[tier]
            step += [len(times)] * len(arrived[tier])
            times.append(now)
            groups.append(tier)
            arrived[tier].clear()
        if waiting[tier]:
            loop.put(now, STARTS, tier)  # after all other events at this time
    return loop.plan(dispatch, np.zeros(len(dispatch)), step, times, groups)


def check_asynchronous(algorithm: Algorithm) -> None:
    """Checks that an algorithm needs no synchronous rounds.

    Args:
      algorithm: its fields `prelude`, `selection`, `traits` and `local` are read.

    Raises:
      ValueError: with the reason, such as rounds that need the answers of the whole cohort at once.
    """
    traits, rounds = algorithm.traits, "; use synchronous rounds"
    bounded = algorithm.local.reverse is not None
    reasons = {
        "local.reverse bounds its local steps; build it with a Local without reverse": bounded,
        f"a round has two exchanges (prelude){rounds}": algorithm.prelude is not None,
        f"candidates report values of one model{rounds}": algorithm.selection is not None,
        f'the server compares updates (reduce="stack"){rounds}': traits.reduce == "stack",
        f"its broadcasts build upon each other (catch_up){rounds}": bool(traits.catch_up),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), "")
    require(not reason, f"the algorithm does not run on the virtual clock: {reason}")


def check_planner(algorithm: Algorithm, planner: str) -> None:
    """Checks that an algorithm runs with a planner.

    Args:
      algorithm: its fields `prelude`, `selection`, `traits` and `local` are read.
      planner: the name of a planner, such as "immediate".

    Raises:
      ValueError: with the reason, if it does not.
    """
    check_asynchronous(algorithm)
    _, allowed, reason = algorithm.traits.asynchrony
    message = f"the algorithm does not run with the planner {planner}: {reason}"
    require(allowed is None or planner in allowed, message)
