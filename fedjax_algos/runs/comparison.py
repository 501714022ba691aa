"""Compares methods on the same seeds, data and settings, also by client."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np

from fedjax_algos.analysis.evaluation import CLIENT_COLUMNS, summarise_clients
from fedjax_algos.analysis.personal_evaluation import EvaluateOwn, make_evaluate_own
from fedjax_algos.analysis.rows import Budget
from fedjax_algos.base.errors import prefix_errors
from fedjax_algos.core import Metrics, Row
from fedjax_algos.engine.asynchronous.executor import InFlightMemory
from fedjax_algos.engine.non_finite import NonFiniteUpdateError
from fedjax_algos.engine.placed.devices import usable_cores
from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.placed.processes import largest
from fedjax_algos.engine.placed_algorithm import initial_model
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.runs.loops.clock import run_planned
from fedjax_algos.runs.loops.interruption import check_interruption
from fedjax_algos.runs.loops.planned_runs import participations
from fedjax_algos.runs.loops.simulation import SynchronousRun
from fedjax_algos.runs.results import client_rows
from fedjax_algos.runs.studies.experiment import Experiment
from fedjax_algos.runs.studies.results_folder import ResultsFolder

# Found by the `tune` command in docs/results.md: 24 settings of each method, without test data and
# on other seeds than `compare` uses.
TUNED = (
    "fedavg:weighting=uniform,server_learning_rate=2,client_learning_rate=0.32",
    "fedprox:weighting=uniform,mu=0.0001,client_learning_rate=0.32",
    "fedgbo:optimizer=sgdm,beta=0.9,client_learning_rate=3.2",
    "fedgbo:optimizer=rmsprop,beta=0.99,client_learning_rate=0.32",
    "fedgbo:optimizer=adam,beta=0.9,client_learning_rate=1",
)


def compile_rounds(experiment: Experiment, folder: ResultsFolder | None = None) -> None:
    """Compiles the rounds of all methods on all cores, so that no run waits for it.

    It does nothing on the virtual clock, and on accelerators: their compilers time kernels.

    Args:
      experiment, folder: as in `run`; a method whose runs have all ended is not compiled.
    """
    rounds, compiling, placed = experiment.rounds, [], None
    if rounds is None or jax.default_backend() != "cpu":
        return
    (seed, data), *_ = experiment.data.items()
    with ThreadPoolExecutor(usable_cores()) as pool:
        for label, engine in experiment.engines.items():
            if folder is not None and not any(folder.misses(label, n) for n in experiment.data):
                continue
            placed = engine.put_data(data) if placed is None else placed
            cohorts = rounds.cohorts(data, engine.algorithm, engine.algorithm.local, seed)
            dispatches = cohorts.dispatches(min(rounds.eval_every, rounds.rounds))
            if lowered := engine.lower_rounds(rounds.population(data), placed, dispatches):
                compiling.append(pool.submit(lowered.compile))
        if compiling and experiment.settings.devices_per_client == 1:
            lowered = initial_model.lower(experiment.problem.init, np.uint32(seed))
            compiling.append(pool.submit(lowered.compile))
    for each in compiling:
        each.result()


def run(
    experiment: Experiment,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    on_memory: Callable[[str, InFlightMemory], None] = lambda label, memory: None,
    folder: ResultsFolder | None = None,
    on_start: Callable[[str, int], None] = lambda label, seed: None,
) -> list[Row]:
    """Runs every method on every seed.

    On the virtual clock, the plans of a method's seeds are merged where that is faster.

    Args:
      experiment: the result of `prepare`; on the virtual clock its `in_flight` is filled.
      on_evaluation: called with each row as it is measured.
      on_memory: called on the virtual clock with the label and the largest memory in flight.
      folder: the folder for rows, last models and checkpoints, from `open_folder` after its
        `begin`. It knows the runs that have already ended and the runs of other processes.
      on_start: called with the label and the first seed of each method, before it is run.

    Returns:
      Rows of `simulate` or `simulate_async`, with `method` (its label) and `seed` in front.

    Raises:
      Interrupted: at an evaluation, if a signal has arrived in `finish_calls`.
    """
    settings, rounds = experiment.settings, experiment.rounds
    budget = None if settings.budget is None else Budget.of(settings.budget)
    histories: dict[tuple[str, int], list[Row]] = {}

    def remember(label: str, memory: InFlightMemory) -> None:
        experiment.in_flight[label] = memory
        on_memory(label, memory)

    def report(label: str, seed: int, row: Row, state: Any = None) -> bool:
        row = {"method": label, "seed": seed} | row
        histories[label, seed].append(row)
        if folder is not None:
            folder.add_row(row)
        on_evaluation(row)
        return budget is not None and bool(largest(budget.is_used(row)))

    for label, engine in experiment.engines.items():
        seeds = [n for n in experiment.data if folder is None or folder.takes(label, n)]
        if not seeds:
            continue
        histories |= {(label, seed): [] for seed in seeds}
        evaluate = partial(_evaluate_clients, experiment, make_evaluate_own(engine.algorithm))
        end_run = partial(_end_run, experiment, folder, evaluate)
        check_interruption()
        on_start(label, seeds[0])
        if rounds is None:
            planned = {seed: experiment.planned[label][seed] for seed in seeds}
            callbacks = partial(report, label), partial(remember, label)
            saved_in = None if folder is None else folder.checkpoints(label)
            with prefix_errors(f"{label}: ", NonFiniteUpdateError):
                results = run_planned(engine, planned, *callbacks, saved_in)
            for seed, (state, rows, plan) in results.items():
                counts = participations(plan, settings.clients, rows[-1]["simulated_seconds"])
                end_run(state, histories[label, seed], counts)
            continue
        for seed in seeds:
            check_interruption()
            if ended := folder and folder.rows_of_ended(label, seed):
                histories[label, seed] = ended
                for row in ended:
                    on_evaluation(row)
                continue
            options: dict[str, Any] = {"checkpoints": folder and folder.checkpoints(label, seed)}
            if settings.evaluate_clients_at == "evaluations":
                options["measure"] = partial(_client_columns, evaluate, seed)
            data = experiment.data[seed]
            with prefix_errors(f"{label}, seed {seed}: ", NonFiniteUpdateError):
                done = SynchronousRun(engine, data, rounds, seed, experiment.evaluate, **options)
                done.run(partial(report, label, seed)).warn()
            counts = done.position.dispatched
            if engine.algorithm.selection is not None:  # the device chooses
                counts = np.full(len(counts), np.nan)
            end_run(done.state, histories[label, seed], counts)
    return [row for history in histories.values() for row in history]


def _end_run(experiment, folder, evaluate, state, history, participations) -> None:
    """Writes a finished run's clients and model, and removes its client state on disk."""
    if folder is None:
        return
    label, seed, end = (history[-1][name] for name in ("method", "seed", "round"))
    if experiment.client_data is not None:
        folder.add_clients(client_rows(label, seed, end, evaluate(seed, state), participations))
    folder.end(label, seed, state.model)
    if isinstance(state.clients, DiskClientState):
        state.clients.files.remove()


def _evaluate_clients(
    experiment: Experiment, evaluate: EvaluateOwn, seed: int, state: FederatedState
) -> Metrics:
    """Evaluates each client's own model after the settings' personal steps."""
    data: Any = experiment.client_data
    steps = experiment.settings.personal_steps or None
    train = experiment.data[seed] if steps else None
    return evaluate(state, data[seed], train=train, num_steps=steps, seed=seed)


def _client_columns(evaluate: Callable, seed: int, state: FederatedState) -> dict[str, float]:
    """Returns the columns of the distribution over clients."""
    summary = summarise_clients(evaluate(seed, state)["accuracy"], "lowest")._asdict()
    return {column: summary[name] for name, column in CLIENT_COLUMNS.items()}
