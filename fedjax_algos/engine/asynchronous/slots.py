"""The slots of a wave: their number, and the device that trains each of them."""

from typing import Literal

import numpy as np

from fedjax_algos.asynchrony.plan import Plan
from fedjax_algos.engine.asynchronous.waves import check_plan, training_order

_MAX_CONTRIBUTIONS = 20_000  # at the start of the plan, from which the number of slots is chosen
_MAX_SLOTS_PER_DEVICE = {"sequential": 8, "vmapped": 32}
_MAX_COST_RATIO = {"sequential": 1.02, "vmapped": 1.1}  # to the least cost, for fewer slots


def choose_slots(
    plan: Plan,
    layout: Literal["sequential", "vmapped"],
    *,
    devices: int = 1,
    stateful: bool = False,
) -> int:
    """Chooses the number of slots, the same for each device, from the start of the plan.

    The result is the smallest number, on each device a power of two up to 8 (sequential) or 32
    (vmapped), with which all waves together cost at most 2% (sequential) or 10% (vmapped) more than
    with the best number. The cost of a wave is that of `wave_costs`: a vmapped wave is assumed to
    take as long as its longest dispatch.

    Args:
      plan: a timeline.
      layout: of a wave.
      devices: number of devices.
      stateful: whether clients keep state.

    Raises:
      ValueError: for a plan that contradicts itself.
    """
    if layout == "sequential" and devices == 1:
        return 1
    check_plan(plan, stateful)
    if len(plan.step) > _MAX_CONTRIBUTIONS:
        num_steps = max(int(plan.step[_MAX_CONTRIBUTIONS]), 1)
        end = np.searchsorted(plan.step, num_steps)
        plan = plan._replace(
            dispatch=plan.dispatch[:end], step=plan.step[:end], time=plan.time[:num_steps]
        )
    steps, costs = plan.num_steps[plan.dispatch], {}
    for slots_per_device in 2 ** np.arange(_MAX_SLOTS_PER_DEVICE[layout].bit_length()):
        slots = int(slots_per_device) * devices
        trained, filled = training_order(plan, slots, stateful)
        costs[slots] = wave_costs(trained, filled, steps, layout, devices).sum(dtype=np.int64)
    acceptable = _MAX_COST_RATIO[layout] * min(costs.values())
    return next(slots for slots, cost in costs.items() if cost <= acceptable)


def wave_costs(
    trained: np.ndarray, filled: np.ndarray, num_steps: np.ndarray, layout: str, devices: int
) -> np.ndarray:
    """Local steps of the busiest device in each wave: a sum (sequential) or a maximum (vmapped).

    Args:
      trained: int32[W, slots]: contributions, as in `Waves`.
      filled: int32[W].
      num_steps: int[C]: of each contribution.
      layout: "sequential" or "vmapped".
      devices: number of devices, over which the slots of a wave are divided.

    Returns:
      int[W].
    """
    steps = num_steps[trained]
    assigned = assign_slots(steps, filled, devices)
    device_steps = np.take_along_axis(steps[:, None], assigned, 2) * (assigned >= 0)
    costs = device_steps.sum(-1) if layout == "sequential" else device_steps.max(-1)
    return costs.max(-1)


def assign_slots(num_steps: np.ndarray, filled: np.ndarray, devices: int) -> np.ndarray:
    """Assigns the slots of each wave to devices.

    Dispatches are assigned in descending order of their numbers of steps, each to the device with
    the least work among those that have a free slot.

    Args:
      num_steps: int[W, slots].
      filled: int[W]: number of filled slots of each wave.
      devices: number of devices; the number of slots is a multiple of it.

    Returns:
      int32[W, devices, slots / devices]: the slots that each device trains; -1 for none.
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
