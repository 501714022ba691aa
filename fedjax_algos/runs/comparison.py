"""Several methods on the same seeds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.analysis.evaluation import make_evaluate
from fedjax_algos.asynchrony import Plan, schedules, weathers
from fedjax_algos.asynchrony.arrival_groups import CompassTrace
from fedjax_algos.core import Algorithm, Local
from fedjax_algos.core.keys import model_key
from fedjax_algos.data import Dataset, FederatedData, Partition
from fedjax_algos.engine.asynchronous.executor import Memory, make_executor
from fedjax_algos.engine.autotune import Choice, choose_layout
from fedjax_algos.engine.devices import usual_devices
from fedjax_algos.engine.engine import make_engine
from fedjax_algos.runs.async_simulation import require_steps, simulate_seeds_on_clock
from fedjax_algos.runs.settings import Method, Settings
from fedjax_algos.runs.simulation import Row, refuse_repeats, simulate
from fedjax_algos.schedules import Synchronous, samplers, works
from fedjax_algos.schedules.synchronous import rate_at

# Tuned by experiments/tune_compare.py: 27 settings for each method, on seeds that are not shown.
TUNED = (
    "fedavg:weighting=uniform,server_learning_rate=1.5,client_learning_rate=0.32",
    "fedprox:weighting=uniform,mu=0.001,client_learning_rate=0.32",
    "fedgbo:optimizer=sgdm,beta=0.6,client_learning_rate=1",
    "fedgbo:optimizer=rmsprop,beta=0.99,client_learning_rate=0.32",
    "fedgbo:optimizer=adam,beta=0.9,client_learning_rate=1",
)


class Experiment(NamedTuple):
    """Settings made real: each seed's data, and the compiled methods."""

    settings: Settings
    methods: list[Method]
    labels: np.ndarray  # int32[train examples]
    notes: tuple[str, ...]  # what the data set's reader left out
    test: Any
    data: dict[int, FederatedData]
    partitions: dict[int, Partition]
    engines: dict[str, Any]  # an `Engine` each, or an `Executor` on the virtual clock
    evaluate: Callable
    # of each method's first seed, once it has run on the virtual clock
    plans: dict[str, tuple[Plan, CompassTrace | None]]
    in_flight: dict[str, Memory]  # of each method on the virtual clock, known before it runs
    layout: Choice | None = None  # of rounds, the same for all methods


def prepare(
    settings: Settings,
    methods: list[Method],
    dataset: Dataset | None = None,
    layout: Choice | None = None,
) -> Experiment:
    """Loads the data (unless it is given), splits it and builds all methods.

    Where `settings.layout` is "auto", `choose_layout` times the first method's first round, or a
    `layout` that an earlier run recorded is taken.

    Raises:
      ValueError: for settings that are wrong, before anything is trained.
    """
    settings.check()
    on_clock = settings.seconds is not None
    dataset = dataset or settings.load()
    dataset = dataset._replace(train=jax.device_put(dataset.train))  # once for all seeds
    problem = settings.problem(dataset)
    algorithms = {m.label: m.build(problem, settings) for m in methods}
    split = {seed: settings.split(dataset, seed) for seed in settings.seeds}
    data_of = {seed: data for seed, (data, _) in split.items()}
    engines: dict[str, Any]
    if on_clock:
        _rehearse_clock(settings, methods)
        devices = settings.devices or usual_devices()
        engines = {label: make_executor(a, devices=devices) for label, a in algorithms.items()}
    else:
        _rehearse(settings, list(algorithms.values()), data_of)
        if layout is None or settings.layout != "auto":
            layout = _choose(settings, next(iter(algorithms.values())), data_of)
        how = layout.layout, settings.client_state, layout.devices, settings.examples
        engines = {label: make_engine(a, *how) for label, a in algorithms.items()}
    return Experiment(
        settings,
        methods,
        np.asarray(dataset.train["y"]),
        dataset.notes,
        dataset.test,
        data_of,
        {seed: partition for seed, (_, partition) in split.items()},
        engines,
        make_evaluate(problem),
        plans={},
        in_flight={},
        layout=layout,
    )


def _choose(settings: Settings, algorithm: Algorithm, data_of: dict[int, FederatedData]) -> Choice:
    if settings.layout != "auto":
        return Choice(settings.layout, settings.devices or 1, (), "given")
    seed, data = next(iter(data_of.items()))
    visits = _schedule(settings, algorithm.local, data, seed).visits(1)
    first = jax.tree.map(lambda leaf: leaf[0], visits)
    return choose_layout(
        algorithm,
        data,
        first,
        devices=settings.devices,
        client_state=settings.client_state,
        examples=settings.examples,
    )


def _schedule(settings: Settings, local: Local, data: FederatedData, seed: int) -> Synchronous:
    return Synchronous(
        data.counts(),
        local,
        cohort_size=settings.cohort_size,
        seed=seed,
        sampler=samplers.make(settings.sampler),
        work=works.make(settings.work),
    )


def _rehearse(
    settings: Settings, algorithms: list[Algorithm], data_of: dict[int, FederatedData]
) -> None:
    """Draws all rates, cohorts and work once, for what would stop a run in its middle."""
    for algorithm in algorithms:
        rate_at(algorithm.local.learning_rate, np.arange(settings.rounds))
    keeping = any(map(_clients_keep_state, algorithms))
    for seed, data in data_of.items():  # methods' local work differs in its rate only
        visits = _schedule(settings, algorithms[0].local, data, seed).visits(settings.rounds)
        if keeping:
            refuse_repeats(visits)


def _rehearse_clock(settings: Settings, methods: list[Method]) -> None:
    """Makes each plan once, for what would stop a run in its middle."""
    for method in methods:
        planner = schedules.make(method.schedule)
        for seed in settings.seeds:
            weather = weathers.make(settings.weather)(seed)
            require_steps(planner, weather, settings.clients, settings.seconds or 0)


def _clients_keep_state(algorithm: Algorithm) -> bool:
    key = jax.eval_shape(model_key, 0)
    params = jax.eval_shape(algorithm.problem.init, key).params
    return bool(jax.tree.leaves(jax.eval_shape(algorithm.client_init, params, key)))


def run(
    experiment: Experiment,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    on_memory: Callable[[str, Memory], None] = lambda label, memory: None,
) -> list[Row]:
    """Runs every method on every seed; rows carry `method` and `seed` beside what was measured.

    On the virtual clock `on_memory` is called before each method, with its label and the most that
    will be in flight; its seeds run in lockstep where that is faster.
    """
    rows: list[Row] = []
    settings = experiment.settings
    for method in experiment.methods:
        if settings.seconds is not None:
            rows += _run_on_clock(experiment, method, settings.seconds, on_evaluation, on_memory)
            continue
        for seed in settings.seeds:
            names = {"method": method.label, "seed": seed}

            def report(row: Row, names: Row = names) -> None:
                on_evaluation(names | row)

            _, history = simulate(
                experiment.engines[method.label],
                experiment.data[seed],
                **settings.loop(),
                seed=seed,
                test=experiment.test,
                on_evaluation=report,
                evaluate=experiment.evaluate,
            )
            rows += [names | row for row in history]
    return rows


def _run_on_clock(
    experiment: Experiment,
    method: Method,
    seconds: float,
    on_evaluation: Callable[[Row], None],
    on_memory: Callable[[str, Memory], None],
) -> list[Row]:
    settings, label = experiment.settings, method.label

    def remember(memory: Memory) -> None:
        experiment.in_flight[label] = memory
        on_memory(label, memory)

    results = simulate_seeds_on_clock(
        experiment.engines[label],
        experiment.data,
        schedules.make(method.schedule),
        weathers.make(settings.weather),
        seconds=seconds,
        test=experiment.test,
        evaluations=settings.evaluations,
        on_evaluation=lambda seed, row: on_evaluation({"method": label, "seed": seed} | row),
        on_memory=remember,
        evaluate=experiment.evaluate,
    )
    first = next(iter(results.values()))
    experiment.plans[label] = first.plan, first.trace
    return [
        {"method": label, "seed": seed} | row
        for seed, result in results.items()
        for row in result.rows
    ]
