"""Orders the training of a plan in waves, each of a fixed number of dispatches.

A dispatch can be trained as soon as its version exists, long before it arrives. So we train nothing
until a server step needs an update that is not trained yet. Then we take all dispatches whose
version exists, and the most urgent ones fill the slots of one wave. With one slot this is immediate
execution. With as many slots as dispatches in flight, the number of waves is the length of the
longest chain of dispatches, each starting from a version that the previous one contributed to.
"""

import heapq
from typing import Literal, NamedTuple

import numpy as np

from fedjax_algos.asynchrony.plan import AGGREGATED, Plan
from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import check_memory

_MAX_CONTRIBUTIONS = 20_000  # at the start of the plan; they decide the number of slots
_MAX_SLOTS_PER_DEVICE = {"sequential": 8, "vmapped": 32}
_MAX_COST_RATIO = {"sequential": 1.02, "vmapped": 1.1}  # to the least cost, for fewer slots


class InFlightRows(NamedTuple):
    """The contents of the rows after some server steps of a plan; -1 for an empty row."""

    steps: np.int32 | np.ndarray  # int32[]: server steps made so far
    versions: np.ndarray  # int32[rows]: versions that a dispatch still starts from
    contributions: np.ndarray  # int32[rows]: trained, but not added yet


class Waves(NamedTuple):
    """NumPy arrays: waves [W], contributions [C] and versions [U + R] of a plan of R runs.

    A wave trains the dispatches in its slots; then arrived updates are added and server steps are
    made until one misses an update. Rows hold versions and updates in the meantime and are reused.
    """

    trained: np.ndarray  # int32[W, slots]: contributions whose dispatches it trains, in order
    filled: np.ndarray  # int32[W]: number of filled slots
    contributions: np.ndarray  # int32[W]: number added after the wave
    steps: np.ndarray  # int32[W]: server steps made after the wave
    update_row: np.ndarray  # int32[C]
    version_row: np.ndarray  # int32[U + R]; `num_version_rows` if no dispatch reads the version
    num_update_rows: int
    num_version_rows: int

    def split_at(self, stops: np.ndarray, ends: np.ndarray) -> "Waves":
        """Splits a wave where a step of `stops` is made inside it; its first part trains."""
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

    def rows_after(self, steps: int, plan: Plan) -> InFlightRows:
        """Returns the contents of the rows after `steps` server steps of the plan, at least one."""
        later = int(np.searchsorted(self.steps, steps)) + 1
        filled = np.arange(self.trained.shape[1]) < self.filled[later:, None]
        untrained = self.trained[later:][filled]
        versions = np.unique(plan.version[plan.dispatch[untrained]])
        versions = versions[versions < steps + plan.num_runs]
        added = step_ends(plan)[steps - 1]
        in_flight = np.setdiff1d(np.arange(added, len(plan.dispatch)), untrained)
        sizes = self.num_version_rows, self.num_update_rows
        rows = InFlightRows(np.int32(steps), *(np.full(size, -1, np.int32) for size in sizes))
        rows.versions[self.version_row[versions]] = versions
        rows.contributions[self.update_row[in_flight]] = in_flight
        return rows


def make_waves(
    plan: Plan, slots: int, *, stateful: bool = False, begun: InFlightRows | None = None
) -> Waves:
    """Makes waves of at most `slots` dispatches, for the rest of the plan if some have `begun`."""
    check_plan(plan, stateful)
    # the table of waves; with many slots there may be few waves, but at least one
    check_memory(f"slots={slots}", slots * 8, "give fewer")
    ends, done = step_ends(plan), np.zeros(len(plan.dispatch), bool)
    added_before = 0
    if begun is not None:
        added_before = int(ends[begun.steps - 1])
        done[:added_before] = True
        done[begun.contributions[begun.contributions >= 0]] = True
    trained, filled = training_order(plan, slots, stateful, done)
    if begun is not None:
        trained, filled = np.insert(trained, 0, 0, axis=0), np.insert(filled, 0, 0)
    numbers, wave = np.arange(len(filled)), np.zeros(len(plan.dispatch), np.int64)
    wave[trained[np.arange(slots) < filled[:, None]]] = np.repeat(numbers, filled)

    added = np.maximum.accumulate(wave)  # the wave after which each contribution is added
    made = added[ends - 1]  # the wave after which each server step is made
    update_row = np.zeros(len(wave), np.int32)
    rows, num_update_rows = _assign_rows(wave[added_before:], added[added_before:])
    update_row[added_before:] = rows

    first_wave = np.concatenate([np.zeros(plan.num_runs, np.int64), made + 1])
    last_wave = np.full(plan.num_versions, -1)
    np.maximum.at(last_wave, plan.version[plan.dispatch[~done]], wave[~done])
    used = np.flatnonzero(last_wave >= 0)
    rows, num_version_rows = _assign_rows(first_wave[used], last_wave[used])
    version_row = np.full(plan.num_versions, num_version_rows, np.int32)
    version_row[used] = rows
    return Waves(
        trained=trained,
        filled=filled,
        contributions=np.searchsorted(added, numbers, "right").astype(np.int32),
        steps=np.searchsorted(made, numbers, "right").astype(np.int32),
        update_row=update_row,
        version_row=version_row,
        num_update_rows=num_update_rows,
        num_version_rows=num_version_rows,
    )


def step_ends(plan: Plan) -> np.ndarray:
    """int32[U]: the number of contributions up to and including each server step."""
    steps = np.arange(len(plan.time))
    return np.searchsorted(plan.step, steps, "right").astype(np.int32)


def training_order(
    plan: Plan, slots: int, stateful: bool, done: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Orders training for `Waves`: each wave has the most urgent dispatches that are not `done`."""
    dispatch, version = plan.dispatch, plan.version[plan.dispatch]
    owner = plan.client[dispatch].astype(np.int64) if stateful else dispatch.astype(np.int64)
    ranked = _by_urgency(dispatch, owner)
    rank = np.argsort(ranked)

    by_version = np.argsort(version, kind="stable")
    by_version = by_version[~done[by_version]]
    newest = np.arange(len(plan.time)) + plan.num_runs - 1  # version before each server step
    num_startable = np.searchsorted(version[by_version], newest, "right").tolist()
    startable = rank[by_version].tolist()
    contribution, owners = ranked.tolist(), owner[ranked].tolist()
    trained = bytearray(done)
    order: list[int] = []  # contributions
    filled: list[int] = []
    ready: list[int] = []  # a heap of ranks
    postponed: list[int] = []
    pushed = 0
    for needed, step in enumerate(plan.step.tolist()):
        while not trained[needed]:
            for entry in [*postponed, *startable[pushed : num_startable[step]]]:
                heapq.heappush(ready, entry)
            pushed, before, postponed = num_startable[step], len(order), []
            busy: set[int] = set()  # owners in this wave
            while ready and len(order) < before + slots:
                entry = heapq.heappop(ready)
                if owners[entry] in busy:
                    postponed.append(entry)
                    continue
                busy.add(owners[entry])
                trained[contribution[entry]] = True
                order.append(contribution[entry])
            filled.append(len(order) - before)
    counts = np.array(filled, np.int32)
    table = np.zeros((len(counts), slots), np.int32)
    table[np.arange(slots) < counts[:, None]] = order
    return table, counts


def _by_urgency(dispatch, owner):
    """Sorts contributions by need; a client's earlier dispatch comes before its later ones."""
    number, count = np.arange(len(dispatch)), len(dispatch)
    by_owner = np.lexsort((dispatch, owner))
    latest = (owner * count + number)[by_owner]
    urgency = np.empty(count, np.int64)
    urgency[by_owner] = np.minimum.accumulate(latest[::-1])[::-1] % count
    return np.lexsort((dispatch, urgency))


def _assign_rows(start, stop):
    """Assigns rows for the waves from `start` to `stop`: int32[...], and the number of rows."""
    by_start, by_stop = np.argsort(start, kind="stable"), np.argsort(stop, kind="stable")
    freed = np.searchsorted(stop[by_stop], start[by_start])
    count = int((np.arange(1, len(start) + 1) - freed).max(initial=0))
    rows = [0] * len(start)
    entries, previous_entries = by_start.tolist(), [None] * count + by_stop.tolist()
    # a queue: first the rows that have never been used, then the freed ones in their order
    for index, (entry, previous) in enumerate(zip(entries, previous_entries, strict=False)):
        rows[entry] = index if index < count else rows[previous]
    return np.array(rows, np.int32), count


def check_plan(plan: Plan, stateful: bool) -> None:
    """Raises ValueError for a plan that contradicts itself or whose order breaks client state."""
    steps, version = len(plan.time), plan.version
    sizes = np.bincount(plan.step, minlength=steps)
    valid = 0 < steps >= len(sizes) and sizes.all() and (np.diff(plan.step) >= 0).all()
    found = f"the contributions must belong to {steps} server steps in ascending order"
    fix = "give each step a contribution, and a plan without a server step a later horizon"
    require(valid, f"{found}; {fix}")
    early = version[plan.dispatch] >= plan.step + plan.num_runs
    dispatch, step = plan.dispatch[early.argmax()], plan.step[early.argmax()]
    found = f"dispatch {dispatch} starts from version {version[dispatch]}, but contributes to"
    require(not early.any(), f"{found} server step {step}, which is made before that version")
    times = np.bincount(plan.dispatch, minlength=len(plan.client))
    wrong = times != (plan.fate == AGGREGATED)
    number = wrong.argmax()
    found = f"dispatch {number} contributes {times[number]} times and has fate {plan.fate[number]}"
    require(not wrong.any(), f"{found}; only fate AGGREGATED ({AGGREGATED}) contributes, once")
    ordered = not stateful or (np.diff(version) >= 0).all()
    found = "clients keep state, but the versions of the plan's dispatches are not ascending"
    require(ordered, f"{found}; order the dispatches by their start")


def choose_slots(
    plan: Plan,
    layout: Literal["sequential", "vmapped"],
    *,
    devices: int = 1,
    stateful: bool = False,
) -> int:
    """Returns the fewest slots, a power of two per device, whose waves cost about the least.

    Only the start of a long plan is considered.
    """
    if layout == "sequential" and devices == 1:
        return 1
    check_plan(plan, stateful)
    if len(plan.step) > _MAX_CONTRIBUTIONS:
        num_steps = max(int(plan.step[_MAX_CONTRIBUTIONS]), 1)
        end = np.searchsorted(plan.step, num_steps)
        dispatch, step, time = plan.dispatch[:end], plan.step[:end], plan.time[:num_steps]
        plan = plan._replace(dispatch=dispatch, step=step, time=time)
    steps, costs = plan.num_steps[plan.dispatch], {}
    done = np.zeros(len(steps), bool)
    for slots_per_device in 2 ** np.arange(_MAX_SLOTS_PER_DEVICE[layout].bit_length()):
        slots = int(slots_per_device) * devices
        trained, filled = training_order(plan, slots, stateful, done)
        costs[slots] = wave_costs(trained, filled, steps, layout, devices).sum(dtype=np.int64)
    acceptable = _MAX_COST_RATIO[layout] * min(costs.values())
    return next(slots for slots, cost in costs.items() if cost <= acceptable)


def wave_costs(
    trained: np.ndarray, filled: np.ndarray, num_steps: np.ndarray, layout: str, devices: int
) -> np.ndarray:
    """Counts local steps of the busiest device, int[W], given each contribution's `num_steps`."""
    steps = num_steps[trained]
    assigned = assign_slots(steps, filled, devices)
    device_steps = np.take_along_axis(steps[:, None], assigned, 2) * (assigned >= 0)
    costs = device_steps.sum(-1) if layout == "sequential" else device_steps.max(-1)
    return costs.max(-1)


def assign_slots(num_steps: np.ndarray, filled: np.ndarray, devices: int) -> np.ndarray:
    """Assigns the slots of each wave, int32[W, devices, slots / devices]; -1 for none.

    The longest dispatch comes first; each goes to the device with the least work and a free slot.
    """
    num_waves, slots = num_steps.shape
    # the empty slots are the last, when loads no longer matter
    keys = np.where(np.arange(slots) < filled[:, None], -num_steps, 1)
    ranked = np.argsort(keys, axis=1, kind="stable")
    load, taken = np.zeros((2, num_waves, devices), np.int64)
    assigned = np.empty((num_waves, devices, slots // devices), np.int32)
    waves = np.arange(num_waves)
    for number, slot in enumerate(ranked.T):
        free_load = np.where(taken < slots // devices, load, np.iinfo(np.int64).max)
        device = free_load.argmin(1)
        assigned[waves, device, taken[waves, device]] = np.where(number < filled, slot, -1)
        load[waves, device] += num_steps[waves, slot]
        taken[waves, device] += 1
    return assigned
