"""Makes the table of each compiled call from a plan and its waves, and merges plans.

The waves of a merged plan train dispatches of several runs, so they are wider and fewer. No run
reads the results of another one, so each has the same results as alone.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.asynchrony.plan import Plan
from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import check_memory
from fedjax_algos.core import Dispatch
from fedjax_algos.core.checks import check_like
from fedjax_algos.core.trees import take
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.asynchronous.waves import Waves, assign_slots, step_ends
from fedjax_algos.engine.compilation import round_up_size
from fedjax_algos.engine.slots import fill_slots
from fedjax_algos.engine.state import FederatedState

_SLOT_BYTES = 12 * 4  # the least for a slot of a table


class Slot(NamedTuple):
    """A dispatch in a wave."""

    dispatch: Dispatch
    version_row: Any  # int32[]
    update_row: Any  # int32[]: one past the last row for an empty slot
    run: Any = None  # int32[]: the last run for an empty slot; None for a single run


class ServerStep(NamedTuple):
    """A server step."""

    end: Any  # int32[]: end of its contributions
    count: Any  # int32[]: number of its contributions
    group: Any  # int32[]
    version_row: Any  # int32[]: the row of its new version
    run: Any = None  # int32[]; None for a single run


class CallTable(NamedTuple):
    """At most W waves of D devices with S slots each, C contributions and C server steps."""

    num_waves: Any  # int32[]
    reset_metrics: Any  # bool[], or bool[R] for several runs: whether sums of metrics restart at 0
    slots: Slot  # leaves [W, D, S]
    filled: Any  # int32[W, D]
    contributions: Any  # int32[W]: end of the contributions added after the wave
    steps_made: Any  # int32[W]: end of the server steps made after the wave
    update_row: Any  # int32[C]
    staleness: Any  # int32[C]
    steps: ServerStep  # leaves [C]


def call_tables(
    plan: Plan,
    dispatches: Dispatch,
    waves: Waves,
    num_devices: int,
    waves_per_call: int,
    num_clients: int,
    stops: Sequence[int],
    after: int = 0,
) -> Iterator[tuple[int | None, CallTable]]:
    """Yields the calls of a plan `after` a stop: (the stop at its end or None, its table)."""
    size, slots, ends = waves_per_call, waves.trained.shape[1], step_ends(plan)
    own_clients = num_clients // plan.num_runs  # of a run
    ascending = np.unique(stops)
    waves = waves.split_at(ascending, ends)
    name = f"waves_per_call={size} of {slots} slots"
    check_memory(name, size * slots * _SLOT_BYTES, "give fewer waves or slots")
    counts = np.diff(ends, prepend=0)
    # a call adds at most the updates that it trains and the trained updates in rows
    room = np.arange(size * slots + row_counts(waves)[1])
    begin = added = made = 0
    last_run = None  # the run of the last stop
    if after:
        begin = int(np.searchsorted(waves.steps, after)) + 1
        added, made = waves.contributions[begin - 1], waves.steps[begin - 1]
        last_run = None if plan.run is None else plan.run[after - 1]
    for stop in ascending[ascending > after].tolist():
        end = int(np.searchsorted(waves.steps, stop)) + 1
        for start in range(begin, end, size):
            until = min(start + size, end)
            # past its end a table repeats an entry that is never read
            wave = np.minimum(start + np.arange(size), until - 1)
            contribution = np.minimum(added + room, len(plan.dispatch) - 1)
            step = np.minimum(made + room, len(ends) - 1)
            in_waves, filled = _slots(plan, dispatches, waves, num_devices, own_clients, wave)
            run, reset_metrics = None, start == begin
            if plan.run is not None:
                run = plan.run[step]
                reset_metrics = reset_metrics & (np.arange(plan.num_runs) == last_run)
            table = CallTable(
                num_waves=until - start,
                reset_metrics=reset_metrics,
                slots=in_waves,
                filled=filled,
                contributions=waves.contributions[wave] - added,
                steps_made=waves.steps[wave] - made,
                update_row=waves.update_row[contribution],
                staleness=plan.staleness[contribution],
                steps=ServerStep(
                    end=ends[step] - added,
                    count=counts[step],
                    group=plan.group[step],
                    version_row=waves.version_row[step + plan.num_runs],
                    run=run,
                ),
            )
            yield stop if until == end else None, jax.tree.map(narrow, table)
            added, made = waves.contributions[until - 1], waves.steps[until - 1]
        begin, last_run = end, None if plan.run is None else plan.run[stop - 1]


def _slots(plan, dispatches, waves, num_devices, num_clients, wave):
    """Returns the slots of waves, leaves [W, D, S], and the number of filled ones, [W, D]."""
    trained, filled = waves.trained[wave], waves.filled[wave]
    assigned = np.arange(trained.shape[1])[None, None]
    assigned = np.where(assigned < filled[:, None, None], assigned, -1)
    if num_devices > 1:
        steps = plan.num_steps[plan.dispatch[trained]]
        assigned = assign_slots(steps, filled, num_devices)
    real = assigned >= 0
    trained = np.take_along_axis(trained[:, None], assigned, 2)
    ids = plan.dispatch[trained]
    run = np.where(real, plan.client[ids] // num_clients, plan.num_runs - 1)
    slots = Slot(
        fill_slots(take(dispatches, (None, None)), np.where(real, ids, -1), num_clients),
        waves.version_row[plan.version[ids]],
        np.where(real, waves.update_row[trained], row_counts(waves)[1]),
        None if plan.run is None else run,
    )
    return slots, real.sum(-1)


def row_counts(waves: Waves) -> tuple[int, int]:
    """Returns the rows for versions (one is never read) and for updates, rounded up."""
    # With a single row, XLA would compute products outside of the loop that sums contributions, and
    # round them; with several it fuses them with the sum. So slots=1 would give other bits.
    updates = max(waves.num_update_rows, 2)
    return round_up_size(waves.num_version_rows + 1), round_up_size(updates)


def narrow(leaf: Any) -> np.ndarray:
    """Converts integers to an int32 array; other dtypes are kept."""
    leaf = np.asarray(leaf)
    return leaf.astype(np.int32) if leaf.dtype.kind == "i" else leaf


def merge_plans(
    plans: Sequence[Plan], dispatches: Sequence[Dispatch], num_clients: int
) -> tuple[Plan, Dispatch]:
    """Merges the plans of several runs, and their dispatches, which keep the ids of their own run.

    Server steps are ordered by time, and dispatches by the version that they start from. Client i
    of run r is r * num_clients + i in the plan.
    """
    if len(plans) == 1:
        return plans[0], dispatches[0]

    def all_of(name):
        return np.concatenate([getattr(plan, name) for plan in plans])

    def runs_of(name):
        """Returns the run of each entry, and where the entries of each run begin."""
        lengths = [len(getattr(plan, name)) for plan in plans]
        return np.repeat(np.arange(len(plans), dtype=np.int32), lengths), _starts(lengths)

    of_step, first_step = runs_of("time")
    of_dispatch, first_dispatch = runs_of("client")
    of_contribution, _ = runs_of("step")

    steps = np.argsort(all_of("time"), kind="stable")
    step_position = np.argsort(steps).astype(np.int32)
    made_by = np.maximum(all_of("version") - 1, 0) + first_step[of_dispatch]
    version = np.where(all_of("version") == 0, of_dispatch, step_position[made_by] + len(plans))
    # the dispatches of a run keep their order, even if a later one starts from an earlier version
    latest = [np.maximum.accumulate(part) for part in np.split(version, first_dispatch[1:])]
    dispatch_order = np.argsort(np.concatenate(latest), kind="stable")
    step = step_position[all_of("step") + first_step[of_contribution]]
    contributions = np.argsort(step, kind="stable")
    dispatch_position = np.argsort(dispatch_order).astype(np.int32)
    dispatch = dispatch_position[all_of("dispatch") + first_dispatch[of_contribution]]

    unchanged = "number", "num_steps", "full_steps", "started", "ended", "fate"
    merged = Plan(
        **{name: all_of(name)[dispatch_order] for name in unchanged},
        client=(all_of("client") + of_dispatch * num_clients)[dispatch_order],
        version=version[dispatch_order],
        dispatch=dispatch[contributions],
        staleness=all_of("staleness")[contributions],
        step=step[contributions],
        time=all_of("time")[steps],
        group=all_of("group")[steps],
        run=of_step[steps],
    )
    return merged, jax.tree.map(lambda *leaves: np.concatenate(leaves)[dispatch_order], *dispatches)


def merge_data(data: Sequence[FederatedData]) -> FederatedData:
    """Joins the clients of several runs, which share their examples, in the order of the runs."""
    if len(data) == 1:
        return data[0]
    sizes = [each.num_clients for each in data]
    # stored data have no attribute `examples`
    stores = {tuple(map(id, jax.tree.leaves(getattr(each, "examples", ())))) for each in data}
    same = len({*sizes}) == len(stores) == 1 and isinstance(data[0], FederatedData)
    found = f"the runs have {sizes} clients, or different examples"
    fix = "give federate the same arrays of jax.device_put, none in files, and as many clients"
    require(same, f"{found}; {fix}")
    starts = _starts([len(each.indices) for each in data])
    offsets = [np.asarray(each.offsets)[1:] + s for each, s in zip(data, starts, strict=True)]
    return FederatedData(
        data[0].examples,
        jnp.concatenate([each.indices for each in data]),
        jnp.asarray(np.concatenate([[0], *offsets]), jnp.int32),
    )


def merge_states(states: Sequence[FederatedState]) -> FederatedState:
    """Merges initial states: leaves [runs, ...], and one table with the client rows of all runs."""
    if len(states) == 1:
        return states[0]
    fix = "merge runs of the same algorithm, model, number of clients and number of groups"
    for number, state in enumerate(states):
        check_like(f"the state of run {number} does not match run 0: state", state, states[0], fix)
    return _merge_states(tuple(states))


def state_of_run(state: FederatedState, run: int) -> FederatedState:
    """Returns the state of one run of a merged plan, with the rows of its own clients."""
    return _select_run(state, run) if state.seed.ndim else state


@jax.jit
def _merge_states(states):
    tables = [(state.clients, state.dispatched) for state in states]
    clients, dispatched = jax.tree.map(lambda *rows: jnp.concatenate(rows), *tables)
    others = [state._replace(clients=(), dispatched=()) for state in states]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *others)
    return stacked._replace(clients=clients, dispatched=dispatched)


@jax.jit
def _select_run(state, run):
    tables, runs = (state.clients, state.dispatched), state.seed.size
    tables = jax.tree.map(lambda leaf: leaf.reshape(runs, -1, *leaf.shape[1:]), tables)
    return take(state._replace(clients=tables[0], dispatched=tables[1]), run)


def _starts(lengths):
    return np.cumsum([0, *lengths[:-1]])
