"""The loop of a run on the virtual clock: a plan, its execution, and what was measured when."""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from fedjax_algos.cohort import FederatedState
from fedjax_algos.core import Batch, Model, Params, Population
from fedjax_algos.data.store import FederatedData
from fedjax_algos.devices import one_copy
from fedjax_algos.engine import make_engine
from fedjax_algos.evaluation import make_evaluate
from fedjax_algos.executor import Executor
from fedjax_algos.schedules.arrival_groups import CompassTrace
from fedjax_algos.schedules.asynchronous import Planner
from fedjax_algos.schedules.compass import Compass
from fedjax_algos.schedules.plan import LOST, Plan, Weather, plan_visits
from fedjax_algos.schedules.weather import MakeWeather
from fedjax_algos.simulation import Row, flops_of


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
    evaluate: Callable | None = None,
) -> Clocked:
    """Runs an algorithm on the virtual clock.

    The schedule runs ahead and makes a plan; then the plan is executed. All clients take part.

    Args:
      executor: a compiled algorithm, of `make_executor`.
      data: the clients' examples.
      planner: a schedule, such as `schedules.compass()`.
      weather: speeds and absences, such as `schedules.simulated()`; the same for all methods of a
        seed, but for communication, which depends on their bytes.
      seconds: of virtual time.
      seed: of the model, the weather and the clients' batches.
      test: examples to evaluate on, or None for no evaluation.
      evaluations: at so many equal parts of the virtual time, and at the start.
      params: start from these instead of the problem's own initialisation.
      on_evaluation: called with each row as it is measured.
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
    if not seconds > 0 or evaluations < 1:
        raise ValueError(
            f"seconds={seconds} and evaluations={evaluations} are out of range; give more than 0"
        )
    algorithm, counts, data = executor.algorithm, data.counts(), executor.place(data)
    num_clients = data.num_clients
    start = time.perf_counter()
    probe = planner(weather(seed), num_clients, arrivals=1)
    population = Population(num_clients, num_clients, int(counts.sum()))
    first = executor.init(seed, population, params)
    transfer = make_engine(algorithm).transfer(
        first, data, plan_visits(probe, counts, algorithm.local)
    )
    sky = weather(seed, download_bytes=transfer.download, upload_bytes=transfer.upload)
    trace = (
        planner.trace(sky, num_clients, seconds=seconds) if isinstance(planner, Compass) else None
    )
    plan = planner(sky, num_clients, seconds=seconds) if trace is None else trace.plan
    _require_steps(plan, seconds)
    population = population._replace(num_groups=int(plan.group.max()) + 1)
    state = executor.init(seed, population, params)
    visits = plan_visits(plan, counts, algorithm.local)
    flops = flops_of(algorithm, state, data)(visits)
    evaluate = evaluate or make_evaluate(algorithm.problem)
    test = None if test is None else jax.device_put(test)
    history: list[Row] = []

    def measure(now, done, state, metrics):
        row: Row = {"round": done, "simulated_seconds": float(now)}
        row |= {name: float(mean.value()) for name, mean in metrics.items()}
        if test is not None:
            values = evaluate(one_copy(Model(state.server.params, state.statistics)), test)
            row |= {f"test_{name}": float(mean.value()) for name, mean in values.items()}
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
        history.append(row)
        on_evaluation(row)

    times = np.linspace(0, seconds, evaluations + 1)
    done_by = np.searchsorted(plan.time, times, side="right")
    measure(0.0, 0, state, {})
    pending = [(now, int(done)) for now, done in zip(times[1:], done_by[1:], strict=True)]
    while pending and pending[0][1] == 0:  # the initial model still
        measure(pending.pop(0)[0], 0, state, {})
    stops = sorted({done for _, done in pending})
    for done, last, metrics in executor.run(state, data, plan, visits, stops=stops):
        while pending and pending[0][1] == done:
            measure(pending.pop(0)[0], done, last, metrics)
    return Clocked(last, history, plan, trace)


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
