"""Plans runs on the virtual clock before any training, and counts their costs."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.analysis.rows import check_evaluations, gini
from fedjax_algos.asynchrony.plan import LOST, Plan, plan_dispatches
from fedjax_algos.asynchrony.planning import Planner
from fedjax_algos.base.errors import require
from fedjax_algos.core import Batch, Dispatch, Model, Params, Population
from fedjax_algos.core.checks import as_model, check_callable, check_kind, check_seed, check_whole
from fedjax_algos.core.types import blank_dispatches
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.data.stored import StoredData
from fedjax_algos.engine.asynchronous.executor import Executor
from fedjax_algos.engine.exchange import Transfer, count_transfer
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.participation.sampling import Design
from fedjax_algos.participation.systems.system_model import SystemModelFactory
from fedjax_algos.runs.loops.run import check_data, flop_counter
from fedjax_algos.wrappers import Accountant, Sampling, accountant_of

Evaluations = list[tuple[int, float, int]]  # a run, the time, and the run's own server steps


class Clock(NamedTuple):
    """The arguments of runs on the virtual clock; `simulate_async` documents the fields."""

    planner: Planner
    system: SystemModelFactory
    seconds: float
    test: Batch | None = None
    evaluations: int = 20
    params: Params | Model | None = None
    evaluate: Callable | None = None


class PlannedRun(NamedTuple):
    """A run before its training."""

    clock: Clock
    seed: int
    data: FederatedData | StoredData
    population: Population
    state: FederatedState  # the shapes of the initial state
    plan: Plan
    dispatches: Dispatch
    transfer: Transfer
    flops: np.ndarray  # float64[dispatches]
    planning_seconds: float
    accountant: Accountant | None = None

    def counted(self, now: float, server_steps: int) -> dict[str, Any]:
        """Returns the counted columns at a simulated time, after `server_steps` server steps."""
        ended = self.plan.ended <= now
        arrived = ended & (self.plan.fate != LOST)
        num_ended, num_arrived = int(ended.sum()), int(arrived.sum())
        return {
            "round_number": server_steps,
            "download_bytes": num_ended * self.transfer.download,
            "upload_bytes": num_arrived * self.transfer.upload,
            "flops": float(self.flops[arrived].sum()),
            "simulated_seconds": float(now),
            "arrivals": num_arrived,
            "lost": num_ended - num_arrived,
            "participation_gini": gini(participations(self.plan, self.data.num_clients, now)),
            "epsilon": self.accountant and self._epsilon(self.accountant, now, server_steps),
        }

    def _epsilon(self, accountant, now, server_steps):
        """Returns the epsilon of the client with the most messages, or the most in server steps."""
        if accountant.design.kind != "buffers":
            of_clients = participations(self.plan, self.data.num_clients, now)
            ended = self.plan.ended <= now
            steps = np.bincount(self.plan.client[ended], self.plan.num_steps[ended], minlength=1)
            return accountant.after(0, of_clients, steps)
        used = self.plan.step < server_steps
        clients, steps = self.plan.client[self.plan.dispatch[used]], self.plan.step[used]
        pairs, numbers = np.unique([clients, steps], axis=1, return_counts=True)
        squares = np.bincount(pairs[0], numbers**2, minlength=1)
        return accountant.epsilon(int(squares.max()))


def participations(plan: Plan, num_clients: int, now: float) -> np.ndarray:
    """Returns int[num_clients]: each client's dispatches that have ended by a simulated time."""
    return np.bincount(plan.client[plan.ended <= now], minlength=num_clients)


def plan_runs(
    executor: Executor,
    data: Mapping[int, Any],
    clock: Clock,
    on_plan: Callable[[int], None] = lambda seed: None,
) -> dict[int, PlannedRun]:
    """Checks and plans a run of each seed; calls `on_plan` before each plan."""
    check_kind("executor", executor, Executor, "give make_executor(algorithm)")
    check_kind("data", data, Mapping, "give {seed: data}, or call simulate_async")
    fix = "give a planner, such as asynchrony.compass()"
    check_callable("planner", clock.planner, fix, "system", "clients", arrivals=0, seconds=0)
    fix = "give a system model, such as asynchrony.simulated()"
    check_callable("system", clock.system, fix, "seed", download_bytes=0, upload_bytes=0)
    check_whole("evaluations", clock.evaluations)
    check_whole("the number of seeds", len(data))
    check_evaluations(clock.evaluations * len(data), "give fewer evaluations or seeds")
    for seed, of_seed in data.items():
        check_seed(seed)
        check_data(executor.algorithm.problem, of_seed, clock.test)
    planned = {}
    for seed, of_seed in data.items():
        on_plan(seed)
        planned[seed] = plan_run(executor, of_seed, clock, seed)
    return planned


def plan_run(executor: Executor, data: Any, clock: Clock, seed: int) -> PlannedRun:
    """Plans a run without training; it must make a server step within its simulated seconds."""
    start = time.perf_counter()
    algorithm, counts, num_clients = executor.algorithm, data.counts(), data.num_clients
    population = Population(num_clients, num_clients, int(counts.sum()))
    model = as_model(algorithm.problem, clock.params)
    state = executor.shapes(population, model)
    # the bytes of a dispatch, by its shapes, determine its duration
    transfer = count_transfer(algorithm, state, data, blank_dispatches(1))
    system = clock.system(seed, download_bytes=transfer.download, upload_bytes=transfer.upload)
    plan = clock.planner(system, num_clients, seconds=clock.seconds)
    check_kind("plan", plan, Plan, "return EventLoop(...).plan(...) from the planner")
    if not len(plan.time):
        lost, first = (plan.fate == LOST).sum(), plan.ended.min(initial=np.inf)
        found = f"{lost} dispatches are lost, and the first ends after {first:g} seconds"
        fix = f"give more, or clients that leave less often: {found}"
        raise ValueError(f"seconds={clock.seconds:g} end before the first server step; {fix}")
    sizes = np.bincount(plan.step)
    drawn = num_clients, int(sizes[0]), None, int(counts.min())
    accountant = accountant_of(algorithm, Sampling(Design("buffers"), *drawn))
    if accountant is not None and accountant.design.kind == "buffers":
        require((sizes == sizes[0]).all(), algorithm.traits.asynchrony.reason)
        population = population._replace(cohort_size=int(sizes[0]))
    if plan.group.any():
        population = population._replace(num_groups=int(plan.group.max()) + 1)
        state = executor.shapes(population, model)
    dispatches = plan_dispatches(plan, counts, algorithm.local)
    planned = population, state, plan, dispatches, transfer
    flops = flop_counter(algorithm, state, data)(dispatches)
    seconds = time.perf_counter() - start
    return PlannedRun(clock, seed, data, *planned, flops, seconds, accountant)


def evaluations_by_step(runs: Sequence[PlannedRun], plan: Plan) -> dict[int, Evaluations]:
    """Groups evaluations by the number of server steps of the merged plan before them."""
    clock, at_steps = runs[0].clock, dict[int, Evaluations]()
    times = np.linspace(0, clock.seconds, clock.evaluations + 1)
    run_of = np.zeros(len(plan.time)) if plan.run is None else plan.run
    for number, run in enumerate(runs):
        ends = [0, *(np.flatnonzero(run_of == number) + 1).tolist()]
        own_steps = np.searchsorted(run.plan.time, times, side="right")
        own_steps[0] = 0  # before a step at the time 0
        for now, steps in zip(times, own_steps.tolist(), strict=True):
            at_steps.setdefault(ends[steps], []).append((number, now, steps))
    return at_steps
