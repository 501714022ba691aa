"""The loop of a run on the virtual clock: a plan, its execution, and what was measured when."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedjax_algos.analysis.evaluation import make_evaluate
from fedjax_algos.asynchrony.arrival_groups import CompassTrace
from fedjax_algos.asynchrony.compass import Compass
from fedjax_algos.asynchrony.plan import LOST, Plan, Weather, plan_visits
from fedjax_algos.asynchrony.policies import Planner
from fedjax_algos.asynchrony.system_model import MakeWeather
from fedjax_algos.core import Batch, Model, Params, Population, Visit
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.asynchronous.executor import Executor, Memory
from fedjax_algos.engine.asynchronous.merged_plans import join_data, join_plans, join_states, of_run
from fedjax_algos.engine.asynchronous.waves import Waves
from fedjax_algos.engine.devices import one_copy
from fedjax_algos.engine.engine import Transfer, make_engine
from fedjax_algos.engine.federated_round import FederatedState, tree_bytes
from fedjax_algos.runs.simulation import Row, flops_of


class Clocked(NamedTuple):
    """A finished run: see `simulate_on_clock`."""

    state: FederatedState
    rows: list[Row]
    plan: Plan
    trace: CompassTrace | None


def simulate_on_clock(
    executor: Executor,
    data: FederatedData,
    planner: Planner,
    weather: MakeWeather,
    *,
    seconds: float,
    seed: int = 0,
    test: Batch | None = None,
    evaluations: int = 20,
    params: Params | Model | None = None,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    on_memory: Callable[[Memory], None] = lambda memory: None,
    evaluate: Callable | None = None,
) -> Clocked:
    """Runs an algorithm on the virtual clock.

    The schedule runs ahead and makes a plan; then the plan is executed. All clients take part.

    Args:
      executor: a compiled algorithm, of `make_executor`.
      data: the clients' examples.
      planner: a schedule, such as `asynchrony.compass()`.
      weather: speeds and absences, such as `asynchrony.simulated()`; the same for all methods of a
        seed, but for communication, which depends on their bytes.
      seconds: of virtual time.
      seed: of the model, the weather and the clients' batches.
      test: examples to evaluate on, or None for no evaluation.
      evaluations: at so many equal parts of the virtual time, and at the start.
      params: start from these instead of the problem's own initialisation.
      on_evaluation: called with each row as it is measured.
      on_memory: called before anything is trained, with what will be in flight at most.
      evaluate: what `make_evaluate` returned, to share its compilation.

    Returns:
      The last state; one row an evaluation, `simulate`'s with `simulated_seconds`, the server steps
      (`round`), arrivals and lost visits until then; the plan; and a schedule's own record of it,
      where it keeps one. The model of a row is the last one made at or before its time; bytes and
      flops are those of arrived and lost visits (a lost one has downloaded, and what it computed is
      not counted).

    Raises:
      ValueError: if nothing arrives within `seconds`.
    """
    (clocked,) = simulate_seeds_on_clock(
        executor,
        {seed: data},
        planner,
        weather,
        seconds=seconds,
        test=test,
        evaluations=evaluations,
        params=params,
        on_evaluation=lambda seed, row: on_evaluation(row),
        on_memory=on_memory,
        evaluate=evaluate,
    ).values()
    return clocked


def simulate_seeds_on_clock(
    executor: Executor,
    data: Mapping[int, FederatedData],
    planner: Planner,
    weather: MakeWeather,
    *,
    seconds: float,
    test: Batch | None = None,
    evaluations: int = 20,
    params: Params | Model | None = None,
    on_evaluation: Callable[[int, Row], None] = lambda seed, row: None,
    on_memory: Callable[[Memory], None] = lambda memory: None,
    evaluate: Callable | None = None,
    lockstep_bytes: int | None = None,
) -> dict[int, Clocked]:
    """What `simulate_on_clock` gives for each seed; the seeds can run in lockstep.

    Then their dispatches share waves, which few clients of unlike speeds cannot fill, and compiled
    calls. One after another inside a wave, the results are bit for bit those of each seed alone.

    Args:
      executor, planner, weather, seconds, test, evaluations, params, evaluate: as there.
      data: of each seed. In lockstep all hold the same arrays of examples.
      on_evaluation: called with the seed and each of its rows as it is measured.
      on_memory: called once, before anything is trained, with the most that will be in flight.
      lockstep_bytes: of servers, client rows and what is in flight: as many seeds as fit run in
        lockstep; 0 is one after another. None is 1 GiB where waves are faster than their dispatches
        one after another, on an accelerator or several devices, and else 0.

    Returns:
      By seed, in the order of `data`. In lockstep `wall_seconds` is the time since all began.

    Raises:
      ValueError: if nothing arrives within `seconds`, for no seeds, or data that cannot be joined.
    """
    if not seconds > 0 or evaluations < 1:
        raise ValueError(
            f"seconds={seconds} and evaluations={evaluations} are out of range; give more than 0"
        )
    if not data:
        raise ValueError("there are no seeds; give the data of one at least")
    if lockstep_bytes is None:
        lockstep_bytes = 2**30 if executor.wide else 0
    runs = [
        _plan_run(executor, each, planner, weather, seconds, seed, params)
        for seed, each in data.items()
    ]
    joined = _join(executor, runs, lockstep_bytes)
    on_memory(max((each.memory for each in joined), key=lambda memory: memory.bytes))
    evaluate = evaluate or make_evaluate(executor.algorithm.problem)
    test = None if test is None else jax.device_put(test)

    def tested(state):
        if test is None:
            return {}
        values = evaluate(one_copy(Model(state.server.params, state.statistics)), test)
        return {f"test_{name}": float(mean.value()) for name, mean in values.items()}

    times = np.linspace(0, seconds, evaluations + 1)
    results: dict[int, Clocked] = {}
    for each in joined:
        results |= _execute(executor, each, times, params, tested, on_evaluation)
    return {seed: results[seed] for seed in data}


class _Run(NamedTuple):
    """A run whose timeline is known."""

    seed: int
    data: FederatedData
    population: Population
    state: FederatedState  # the shapes of its first one
    plan: Plan
    trace: CompassTrace | None
    visits: Visit
    transfer: Transfer
    flops: np.ndarray  # float64[dispatches]
    planning_seconds: float


class _Joined(NamedTuple):
    """Runs in lockstep, or one."""

    runs: Sequence[_Run]
    data: FederatedData
    plan: Plan
    visits: Visit
    waves: Waves
    memory: Memory


def _plan_run(executor, data, planner, weather, seconds, seed, params):
    start = time.perf_counter()
    algorithm, counts, num_clients = executor.algorithm, data.counts(), data.num_clients

    def shapes(population):
        return jax.eval_shape(lambda state: state, executor.init(seed, population, params))

    probe = planner(weather(seed), num_clients, arrivals=1)
    population = Population(num_clients, num_clients, int(counts.sum()))
    state = shapes(population)
    transfer = make_engine(algorithm).transfer(
        state, data, plan_visits(probe, counts, algorithm.local)
    )
    sky = weather(seed, download_bytes=transfer.download, upload_bytes=transfer.upload)
    trace = (
        planner.trace(sky, num_clients, seconds=seconds) if isinstance(planner, Compass) else None
    )
    plan = planner(sky, num_clients, seconds=seconds) if trace is None else trace.plan
    _require_steps(plan, seconds)
    if plan.group.any():
        population = population._replace(num_groups=int(plan.group.max()) + 1)
        state = shapes(population)
    visits = plan_visits(plan, counts, algorithm.local)
    flops = flops_of(algorithm, state, data)(visits)
    return _Run(
        seed, data, population, state, plan, trace, visits, transfer, flops,
        time.perf_counter() - start,
    )  # fmt: skip


def _join(executor, runs, most_bytes):
    """All runs, each alone or with those of like states, as many as `most_bytes` allow."""
    alike = {}
    for number, run in enumerate(runs):
        key = number if most_bytes == 0 else tuple(jax.tree.leaves(run.state))
        alike.setdefault(key, []).append(run)
    return [part for group in alike.values() for part in _fit(executor, group, most_bytes)]


def _fit(executor, runs, most_bytes):
    data = join_data([run.data for run in runs])
    plans, visits = [run.plan for run in runs], [run.visits for run in runs]
    plan, visits = join_plans(plans, visits, runs[0].data.num_clients)
    state = jax.eval_shape(lambda *states: join_states(states), *(run.state for run in runs))
    waves = executor.waves(state, plan)
    memory = executor.memory(state, data, visits, waves)
    if len(runs) > 1 and tree_bytes(state) + memory.bytes > most_bytes:
        half = len(runs) // 2
        return [
            part for some in (runs[:half], runs[half:]) for part in _fit(executor, some, most_bytes)
        ]
    return [_Joined(runs, data, plan, visits, waves, memory)]


def _execute(executor, joined, times, params, tested, on_evaluation):
    """Trains what was joined; each seed's result."""
    runs, plan = joined.runs, joined.plan
    start = time.perf_counter() - sum(run.planning_seconds for run in runs)
    data = executor.place(joined.data)
    state = join_states([executor.init(run.seed, run.population, params) for run in runs])
    histories = [[] for _ in runs]

    def measure(number, now, done, state, metrics):
        plan, transfer, flops = runs[number].plan, runs[number].transfer, runs[number].flops
        row = {"round": done, "simulated_seconds": float(now)}
        row |= {name: float(np.ravel(mean.value())[number]) for name, mean in metrics.items()}
        row |= tested(of_run(state._replace(clients=(), origin=()), number))
        lost = (plan.fate == LOST) & (plan.ended <= now)
        arrived = (plan.fate != LOST) & (plan.ended <= now)
        row |= {
            "arrivals": int(arrived.sum()),
            "lost": int(lost.sum()),
            "download_bytes": int((arrived | lost).sum()) * transfer.download,
            "upload_bytes": int(arrived.sum()) * transfer.upload,
            "flops": float(flops[arrived].sum()),
            "wall_seconds": time.perf_counter() - start,
        }
        histories[number].append(row)
        on_evaluation(runs[number].seed, row)

    due = {}  # what is measured after which server step of the joined plan
    for number, run in enumerate(runs):
        own = np.flatnonzero(plan.run == number) if len(runs) > 1 else np.arange(len(plan.time))
        done_by = np.searchsorted(run.plan.time, times, side="right")
        for now, done in zip(times, done_by.tolist(), strict=True):
            if now == 0 or done == 0:
                measure(number, now, 0, state, {})
            else:
                due.setdefault(int(own[done - 1]) + 1, []).append((number, now, done))
    for made, last, metrics in executor.run(
        state, data, plan, joined.visits, stops=sorted(due), waves=joined.waves
    ):
        for number, now, done in due.get(made, ()):
            measure(number, now, done, last, metrics)
    return {
        run.seed: Clocked(of_run(last, number), history, run.plan, run.trace)
        for number, (run, history) in enumerate(zip(runs, histories, strict=True))
    }


def require_steps(planner: Planner, weather: Weather, num_clients: int, seconds: float) -> None:
    """Raises ValueError unless a server step is made within `seconds`."""
    _require_steps(planner(weather, num_clients, seconds=seconds), seconds)


def _require_steps(plan, seconds):
    if not len(plan.time):
        first = plan.ended.min()
        raise ValueError(
            f"seconds={seconds:g} end before the first server step; the first client arrives after "
            f"{first:g} seconds, so give more"
        )
