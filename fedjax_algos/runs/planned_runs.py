"""Planned runs on the virtual clock: what is known of a run before its training, and merging."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.analysis.rows import metrics_row
from fedjax_algos.asynchrony.plan import LOST, Plan, plan_dispatches
from fedjax_algos.asynchrony.planners import Planner
from fedjax_algos.asynchrony.systems.system_model import SystemModelFactory
from fedjax_algos.core import Dispatch, Model, Params, Population, Row
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.data.stored import StoredData
from fedjax_algos.engine.asynchronous.executor import Executor
from fedjax_algos.engine.asynchronous.merged_plans import merge_data, merge_plans, merge_states
from fedjax_algos.engine.asynchronous.protocols import InFlightMemory
from fedjax_algos.engine.asynchronous.waves import Waves
from fedjax_algos.engine.sharded_data import data_shapes
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.engine.transfer import Transfer, count_transfer
from fedjax_algos.runs.windows import flop_counter


class PlannedRun(NamedTuple):
    """A run before its training."""

    seed: int
    data: FederatedData | StoredData
    population: Population
    state: FederatedState  # the shapes of the initial one
    plan: Plan
    dispatches: Dispatch
    transfer: Transfer
    flops: np.ndarray  # float64[dispatches]
    planning_seconds: float

    def row(
        self,
        now: float,
        round_number: int,
        measured: dict[str, float],
        excluded_updates: int | None,
        start: float,
    ) -> Row:
        """The row of an evaluation.

        Args:
          now: simulated seconds.
          round_number: server steps until now.
          measured: metrics.
          excluded_updates: updates that were left out, or None.
          start: of the run, of `time.perf_counter`.
        """
        ended = self.plan.ended <= now
        lost = ended & (self.plan.fate == LOST)
        arrived = ended & (self.plan.fate != LOST)
        num_arrived, num_lost = int(arrived.sum()), int(lost.sum())
        return metrics_row(
            round_number,
            measured,
            simulated_seconds=float(now),
            arrivals=num_arrived,
            lost=num_lost,
            excluded_updates=excluded_updates,
            download_bytes=(num_arrived + num_lost) * self.transfer.download,
            upload_bytes=num_arrived * self.transfer.upload,
            flops=float(self.flops[arrived].sum()),
            wall_seconds=time.perf_counter() - start,
        )


class MergedRuns(NamedTuple):
    """Runs with a merged plan, or a single run."""

    runs: Sequence[PlannedRun]
    data: FederatedData | StoredData
    plan: Plan
    dispatches: Dispatch
    waves: Waves
    memory: InFlightMemory


def plan_run(
    executor: Executor,
    data: FederatedData | StoredData,
    planner: Planner,
    system: SystemModelFactory,
    seconds: float,
    seed: int,
    params: Params | Model | None,
) -> PlannedRun:
    """Plans a run; trains nothing.

    Args:
      executor: a compiled algorithm.
      data: the clients' examples.
      planner: a schedule.
      system: clients' speeds and unavailability.
      seconds: simulated seconds.
      seed: of the run.
      params: replace the problem's own initialisation, or None.

    Raises:
      ValueError: unless a server step is made within `seconds`.
    """
    start = time.perf_counter()
    algorithm, counts, num_clients = executor.algorithm, data.counts(), data.num_clients

    def shapes(population):
        return jax.eval_shape(lambda state: state, executor.init(seed, population, params))

    # the bytes of a dispatch determine its duration; they are counted on a first, short plan
    short_plan = planner(system(seed), num_clients, arrivals=1)
    population = Population(num_clients, num_clients, int(counts.sum()))
    state = shapes(population)
    first = plan_dispatches(short_plan, counts, algorithm.local)
    transfer = count_transfer(algorithm, state, data, first)
    seed_system = system(seed, download_bytes=transfer.download, upload_bytes=transfer.upload)
    plan = planner(seed_system, num_clients, seconds=seconds)
    check_server_steps(plan, seconds)
    if plan.group.any():
        population = population._replace(num_groups=int(plan.group.max()) + 1)
        state = shapes(population)
    dispatches = plan_dispatches(plan, counts, algorithm.local)
    flops = flop_counter(algorithm, state, data)(dispatches)
    planning_seconds = time.perf_counter() - start
    return PlannedRun(
        seed, data, population, state, plan, dispatches, transfer, flops, planning_seconds
    )


def merge_runs(executor: Executor, runs: Sequence[PlannedRun], max_bytes: int) -> list[MergedRuns]:
    """Merges runs with states of equal shapes, as many as `max_bytes` allow.

    Args:
      executor: a compiled algorithm.
      runs: planned runs.
      max_bytes: limit for server states, client rows and what is in flight; 0 merges none.

    Raises:
      ValueError: for data that cannot be merged.
    """
    groups: dict[Any, list[PlannedRun]] = {}
    for number, run in enumerate(runs):
        key = number if max_bytes == 0 else tuple(jax.tree.leaves(run.state))
        groups.setdefault(key, []).append(run)
    return [part for group in groups.values() for part in _merge_within(executor, group, max_bytes)]


def _merge_within(executor, runs, max_bytes):
    """Runs of equal shapes, merged; in halves if they need more than `max_bytes`."""
    data = merge_data([run.data for run in runs])
    plans, dispatches = [run.plan for run in runs], [run.dispatches for run in runs]
    plan, dispatches = merge_plans(plans, dispatches, runs[0].data.num_clients)
    state = jax.eval_shape(lambda *states: merge_states(states), *(run.state for run in runs))
    waves = executor.waves(state, plan)
    memory = executor.memory(state, data_shapes(data), dispatches, waves)
    if len(runs) > 1 and tree_bytes(state) + memory.bytes > max_bytes:
        half = len(runs) // 2
        halves = runs[:half], runs[half:]
        return [part for some in halves for part in _merge_within(executor, some, max_bytes)]
    return [MergedRuns(runs, data, plan, dispatches, waves, memory)]


def check_server_steps(plan: Plan, seconds: float) -> None:
    """Raises ValueError unless a plan makes a server step.

    Args:
      plan: of a run.
      seconds: the simulated seconds of the run.
    """
    if not len(plan.time):
        first = plan.ended.min()
        raise ValueError(
            f"seconds={seconds:g} end before the first server step; the first client arrives after "
            f"{first:g} seconds, so give more"
        )
