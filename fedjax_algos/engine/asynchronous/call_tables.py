"""The tables that the host makes from plan and waves, one for each compiled call."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.asynchrony.plan import Plan
from fedjax_algos.core import Dispatch
from fedjax_algos.core.limits import check_memory
from fedjax_algos.engine.asynchronous.slots import assign_slots
from fedjax_algos.engine.asynchronous.waves import Waves, step_ends
from fedjax_algos.engine.compilation import round_up_size
from fedjax_algos.engine.placement import fill_slots

_SLOT_BYTES = 12 * 4  # of a table, at least


class Slot(NamedTuple):
    """A dispatch in a wave."""

    dispatch: Dispatch
    version_row: Any  # int32[]
    update_row: Any  # int32[]: one past the last row for an empty slot
    run: Any = None  # int32[]: the last run for an empty slot; None for a single run


class ServerStep(NamedTuple):
    """A server step."""

    end: Any  # int32[]: where its contributions end
    count: Any  # int32[]: number of its contributions
    group: Any  # int32[]
    version_row: Any  # int32[]: the row of the version that it makes
    run: Any = None  # int32[]; None for a single run


class CallTable(NamedTuple):
    """What one call does: at most W waves, with room for C contributions and C server steps.

    The slots of a wave are divided over D devices, S for each.
    """

    num_waves: Any  # int32[]
    reset_metrics: Any  # bool[], or bool[R] for several runs: whether sums of metrics restart at 0
    slots: Slot  # leaves [W, D, S]
    filled: Any  # int32[W, D]
    contributions: Any  # int32[W]: where the contributions end that are added after the wave
    steps_made: Any  # int32[W]: where the server steps end that are made after the wave
    update_row: Any  # int32[C]
    staleness: Any  # int32[C]
    steps: ServerStep  # leaves [C]


class CallTables(NamedTuple):
    """Makes the tables of a run."""

    plan: Plan
    dispatches: Dispatch  # of `plan_dispatches`
    waves: Waves  # of `plan`
    num_devices: int
    waves_per_call: int  # at most
    num_clients: int  # of all runs together

    def calls(self, stops: np.ndarray, after: int = 0) -> Iterator[tuple[int | None, CallTable]]:
        """Iterates over the calls: (the stop at which the call ends or None, its table).

        Args:
          stops: int[...], ascending: numbers of server steps at which a call has to end.
          after: the stop at which to begin; 0 for the beginning of the plan.
        """
        plan, size, ends = self.plan, self.waves_per_call, step_ends(self.plan)
        check_memory(
            f"waves_per_call={size} of {self.waves.trained.shape[1]} slots",
            size * self.waves.trained.shape[1] * _SLOT_BYTES,
            "give fewer waves or slots",
        )
        counts = np.diff(ends, prepend=0)
        waves = self.waves.split_at(stops, ends)
        # a call adds at most what it trains, and what was trained before and is in a row
        room = np.arange(size * waves.trained.shape[1] + row_counts(waves)[1])
        begin = added = made = 0
        last_run = None  # the run of the last stop
        if after:
            begin = int(np.searchsorted(waves.steps, after)) + 1
            added, made = waves.contributions[begin - 1], waves.steps[begin - 1]
            last_run = None if plan.run is None else plan.run[after - 1]
        for stop in stops[stops > after].tolist():
            end = int(np.searchsorted(waves.steps, stop)) + 1
            for start in range(begin, end, size):
                until = min(start + size, end)
                # past its end a table repeats an entry, which nothing reads
                wave = np.minimum(start + np.arange(size), until - 1)
                contribution = np.minimum(added + room, len(plan.dispatch) - 1)
                step = np.minimum(made + room, len(ends) - 1)
                slots, filled = self._slots(waves.trained[wave], waves.filled[wave])
                run, reset_metrics = None, start == begin
                if plan.run is not None:
                    run = plan.run[step]
                    reset_metrics = reset_metrics & (np.arange(plan.num_runs) == last_run)
                table = CallTable(
                    num_waves=until - start,
                    reset_metrics=reset_metrics,
                    slots=slots,
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

    def _slots(self, trained, filled):
        """The slots of waves, leaves [W, D, S], and the number of filled ones, [W, D]."""
        plan, waves = self.plan, self.waves
        assigned = np.arange(trained.shape[1])[None, None]
        assigned = np.where(assigned < filled[:, None, None], assigned, -1)
        if self.num_devices > 1:
            steps = plan.num_steps[plan.dispatch[trained]]
            assigned = assign_slots(steps, filled, self.num_devices)
        real = assigned >= 0
        trained = np.take_along_axis(trained[:, None], assigned, 2)
        ids = plan.dispatch[trained]
        dispatches = jax.tree.map(lambda leaf: leaf[None, None], self.dispatches)
        run, clients_per_run = None, self.num_clients // plan.num_runs
        if plan.run is not None:
            run = np.where(real, plan.client[ids] // clients_per_run, plan.num_runs - 1)
        slots = Slot(
            dispatch=fill_slots(dispatches, np.where(real, ids, -1), clients_per_run),
            version_row=waves.version_row[plan.version[ids]],
            update_row=np.where(real, waves.update_row[trained], row_counts(waves)[1]),
            run=run,
        )
        return slots, real.sum(-1)


def row_counts(waves: Waves) -> tuple[int, int]:
    """Numbers of rows on the device, rounded up so that similar plans share a compiled program.

    Args:
      waves: of a plan.

    Returns:
      Rows for versions, including one that is never read, and rows for updates, at least two.
    """
    # From a single row, XLA would compute products outside of the loop that sums contributions, and
    # round them; from several it fuses them with the sum. So slots=1 would give other bits.
    updates = max(waves.num_update_rows, 2)
    return round_up_size(waves.num_version_rows + 1), round_up_size(updates)


def narrow(leaf: Any) -> np.ndarray:
    """Converts integers to int32; other dtypes are kept.

    Args:
      leaf: a number or an array.
    """
    leaf = np.asarray(leaf)
    return leaf.astype(np.int32) if leaf.dtype.kind == "i" else leaf
