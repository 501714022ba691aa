"""Waves: the order in which a plan is trained, a fixed number of dispatches at a time.

A dispatch can be trained as soon as its version exists, long before it arrives. So nothing is
trained until a server step misses an update; then the dispatches that are needed first, out of all
whose version exists, fill the slots of one wave. With one slot that is immediate execution; with as
many as are in flight the number of waves is the least there is, the longest chain of dispatches of
which each starts from a version that the one before helped to make.
"""

import heapq
from typing import Literal, NamedTuple

import numpy as np

from fedjax_algos.asynchrony.plan import AGGREGATED, Plan

_LOOK = 20_000  # contributions after which the number of slots is chosen
_MOST = {"sequential": 8, "vmapped": 32}  # slots of a device
_SLACK = {"sequential": 1.02, "vmapped": 1.1}  # times the least steps, for fewer slots


class Waves(NamedTuple):
    """NumPy arrays: waves [W], contributions [C] and versions [U + R] of a plan of R runs.

    A wave trains its slots; then what has arrived is added up and server steps are made until one
    misses an update. Rows hold versions and updates in the meantime; they are used again and again.
    """

    trained: np.ndarray  # int32[W, slots]: contributions whose dispatches it trains, in their order
    filled: np.ndarray  # int32[W]: how many of the slots; the others are empty
    contributions: np.ndarray  # int32[W]: contributions that are added when it is over
    steps: np.ndarray  # int32[W]: server steps that are done by then
    update_row: np.ndarray  # int32[C]
    version_row: np.ndarray  # int32[U + R]; `num_version_rows` where nobody starts from the version
    num_update_rows: int
    num_version_rows: int

    def cut(self, stops: np.ndarray, ends: np.ndarray) -> "Waves":
        """The same waves, cut in parts where a server step of `stops` is done in their middle.

        The first part trains, and each part goes on with the server steps where the last one ended.

        Args:
          stops: int[...], ascending: after how many server steps to cut.
          ends: int32[U]: contributions up to and including each server step.
        """
        added = ends[np.asarray(stops) - 1]
        wave = np.searchsorted(self.steps, stops)
        inside = self.contributions[wave] > added
        stops, added, wave = np.asarray(stops)[inside], added[inside], wave[inside]
        source = np.insert(np.arange(len(self.filled)), wave, wave)
        continued = np.diff(source, prepend=-1) == 0
        return self._replace(
            trained=self.trained[source],
            filled=np.where(continued, 0, self.filled[source]),
            contributions=np.insert(self.contributions, wave, added),
            steps=np.insert(self.steps, wave, stops),
        )


def make_waves(plan: Plan, slots: int, *, stateful: bool = False) -> Waves:
    """Waves of at most `slots` dispatches, and rows for versions and updates while they are needed.

    Dispatches that contribute to nothing, lost or not arrived by the end, are not trained.

    Args:
      plan: a timeline.
      slots: dispatches that are trained at once.
      stateful: whether clients keep state; then a client's dispatches are in different waves, in
        their order.

    Raises:
      ValueError: for slots below 1, or a plan that contradicts itself.
    """
    if slots < 1:
        raise ValueError(f"slots={slots} is out of range; give at least 1")
    _check(plan, stateful)
    order, filled = _order(plan, slots, stateful)
    num_waves = len(filled)
    trained = _table(order, filled, slots)
    wave = np.empty(len(order), np.int64)
    wave[order] = np.repeat(np.arange(num_waves), filled)

    added = np.maximum.accumulate(wave)  # the wave that adds each contribution
    made = added[step_ends(plan) - 1]  # the wave that makes each server step
    update_row, num_update_rows = _rows(wave, added)

    start = np.concatenate([np.zeros(plan.num_runs, np.int64), made + 1])
    stop = np.full(plan.num_versions, -1)
    np.maximum.at(stop, plan.version[plan.dispatch], wave)
    used = np.flatnonzero(stop >= 0)
    rows, num_version_rows = _rows(start[used], stop[used])
    version_row = np.full(plan.num_versions, num_version_rows, np.int32)
    version_row[used] = rows
    every = np.arange(num_waves)
    return Waves(
        trained=trained,
        filled=filled,
        contributions=np.searchsorted(added, every, "right").astype(np.int32),
        steps=np.searchsorted(made, every, "right").astype(np.int32),
        update_row=update_row,
        version_row=version_row,
        num_update_rows=num_update_rows,
        num_version_rows=num_version_rows,
    )


def choose_slots(
    plan: Plan,
    layout: Literal["sequential", "vmapped"],
    *,
    devices: int = 1,
    stateful: bool = False,
) -> int:
    """Slots, the same number for each device, from the start of the plan.

    One after another, a device takes as long as its dispatches do together, and a wave as long as
    its busiest device; mapped, a device takes as long as its longest dispatch as long as it is not
    full. The fewest slots, on each device a power of two up to 32 (one after another: up to 8),
    with which all waves together take at most a tenth (a fiftieth) longer than with the best.
    """
    if layout == "sequential" and devices == 1:
        return 1
    _check(plan, stateful)
    if len(plan.step) > _LOOK:
        some = max(int(plan.step[_LOOK]), 1)
        end = np.searchsorted(plan.step, some)
        plan = plan._replace(
            dispatch=plan.dispatch[:end], step=plan.step[:end], time=plan.time[:some]
        )
    steps, costs = plan.num_steps[plan.dispatch], {}
    for each in 2 ** np.arange(_MOST[layout].bit_length()):
        slots = int(each) * devices
        order, filled = _order(plan, slots, stateful)
        trained = _table(order, filled, slots)
        costs[slots] = wave_costs(trained, filled, steps, layout, devices).sum(dtype=np.int64)
    enough = _SLACK[layout] * min(costs.values())
    return next(slots for slots, cost in costs.items() if cost <= enough)


def wave_costs(
    trained: np.ndarray, filled: np.ndarray, num_steps: np.ndarray, layout: str, devices: int
) -> np.ndarray:
    """int[W]: local steps that each wave's busiest device does, one after another or mapped.

    Args:
      trained: int32[W, slots]: contributions, as in `Waves`.
      filled: int32[W].
      num_steps: int[C]: of each contribution.
      layout: "sequential" or "vmapped".
      devices: over which a wave is shared out.
    """
    steps = num_steps[trained]
    places = share_out(steps, filled, devices)
    there = np.take_along_axis(steps[:, None], places, 2) * (places >= 0)
    each = there.sum(-1) if layout == "sequential" else there.max(-1)
    return each.max(-1)


def share_out(num_steps: np.ndarray, filled: np.ndarray, devices: int) -> np.ndarray:
    """int32[W, devices, slots / devices]: which slots each device trains; -1 for none.

    The longest first, each to the device that has the least to do and room for it.

    Args:
      num_steps: int[W, slots].
      filled: int[W]: how many slots there are in each wave.
      devices: how many; the slots are a multiple.
    """
    num_waves, slots = num_steps.shape
    room = slots // devices
    empty = np.arange(slots) >= filled[:, None]
    ranked = np.argsort(np.where(empty, 1, -num_steps), axis=1, kind="stable")
    load, taken = np.zeros((2, num_waves, devices), np.int64)
    places = np.full((num_waves, devices, room), -1, np.int32)
    every = np.arange(num_waves)
    for number in range(slots):
        slot = ranked[:, number]
        device = np.where(taken < room, load, np.iinfo(np.int64).max).argmin(1)
        real = number < filled
        at = every[real], device[real], taken[every, device][real]
        places[at] = slot[real]
        load[at[:2]] += num_steps[every, slot][real]
        taken[at[:2]] += 1
    return places


def step_ends(plan: Plan) -> np.ndarray:
    """int32[U]: contributions up to and including each server step."""
    steps = np.arange(len(plan.time))
    return np.searchsorted(plan.step, steps, "right").astype(np.int32)


def _order(plan, slots, stateful):
    """Contributions in the order in which their dispatches are trained, and each wave's number."""
    dispatch, version = plan.dispatch, plan.version[plan.dispatch]
    # with state, what a client does first is as urgent as what it does later
    owner = plan.client[dispatch].astype(np.int64) if stateful else dispatch.astype(np.int64)
    number, count = np.arange(len(dispatch)), len(dispatch)
    by_owner = np.lexsort((dispatch, owner))
    latest = (owner * count + number)[by_owner]
    urgency = np.empty(count, np.int64)
    urgency[by_owner] = np.minimum.accumulate(latest[::-1])[::-1] % count
    ranked = np.lexsort((dispatch, urgency))
    rank = np.empty(count, np.int64)
    rank[ranked] = number

    by_version = np.argsort(version, kind="stable")
    newest = np.arange(len(plan.time)) + plan.num_runs - 1  # before each server step
    exist = np.searchsorted(version[by_version], newest, "right").tolist()
    startable = rank[by_version].tolist()
    contribution, owners = ranked.tolist(), owner[ranked].tolist()
    trained, order, filled = bytearray(count), [], []
    ready = []  # a heap of ranks
    pushed = 0
    for needed, step in enumerate(plan.step.tolist()):
        while not trained[needed]:
            for entry in startable[pushed : exist[step]]:
                heapq.heappush(ready, entry)
            pushed = exist[step]
            before, busy, held = len(order), set(), []
            while ready and len(order) < before + slots:
                entry = heapq.heappop(ready)
                if owners[entry] in busy:
                    held.append(entry)
                    continue
                busy.add(owners[entry])
                trained[contribution[entry]] = True
                order.append(contribution[entry])
            for entry in held:
                heapq.heappush(ready, entry)
            filled.append(len(order) - before)
    return np.array(order, np.int32), np.array(filled, np.int32)


def _table(order, filled, slots):
    """int32[W, slots]: the contributions of each wave."""
    within = np.arange(len(order)) - np.repeat(np.cumsum(filled) - filled, filled)
    trained = np.zeros((len(filled), slots), np.int32)
    trained[np.repeat(np.arange(len(filled)), filled), within] = order
    return trained


def _rows(start, stop):
    """The fewest rows for what is kept from wave `start` to wave `stop`: int32[...], how many."""
    begin, end = np.argsort(start, kind="stable"), np.argsort(stop, kind="stable")
    freed = np.searchsorted(stop[end], start[begin])
    count = int((np.arange(1, len(start) + 1) - freed).max())
    rows = [0] * len(start)
    taken, given = begin.tolist(), [None] * count + end.tolist()
    # a queue: first the rows never used, then those given back, in their order
    for index, (entry, earlier) in enumerate(zip(taken, given, strict=False)):
        rows[entry] = index if index < count else rows[earlier]
    return np.array(rows, np.int32), count


def _check(plan, stateful):
    """Raises ValueError for a plan that contradicts itself."""
    if not len(plan.time):
        raise ValueError("the plan has no server step; give it a later horizon")
    sizes = np.bincount(plan.step, minlength=len(plan.time))
    if len(sizes) > len(plan.time) or not sizes.all() or (np.diff(plan.step) < 0).any():
        raise ValueError(
            f"the contributions must go through the server steps 0 to {len(plan.time) - 1} in "
            "order, at least one each"
        )
    early = np.flatnonzero(plan.version[plan.dispatch] >= plan.step + plan.num_runs)
    if len(early):
        dispatch = plan.dispatch[early[0]]
        raise ValueError(
            f"dispatch {dispatch} starts from version {plan.version[dispatch]}, but contributes to "
            f"server step {plan.step[early[0]]}, which is made before that version"
        )
    times = np.bincount(plan.dispatch, minlength=len(plan.client))
    wrong = np.flatnonzero(times != (plan.fate == AGGREGATED))
    if len(wrong):
        raise ValueError(
            f"dispatch {wrong[0]} contributes {times[wrong[0]]} times and has fate "
            f"{plan.fate[wrong[0]]}; AGGREGATED ({AGGREGATED}) ones contribute once, others never"
        )
    if stateful and (np.diff(plan.version) < 0).any():
        raise ValueError(
            "clients keep state, and the plan's versions fall from one dispatch to the next; order "
            "the dispatches by their start"
        )
