"""Several methods on the same seeds, and the summary of what they reached at what cost."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import special

from fedjax_algos.clock import require_steps, simulate_on_clock
from fedjax_algos.core import Algorithm, Local
from fedjax_algos.data import Dataset, FederatedData, Partition
from fedjax_algos.devices import usual_devices
from fedjax_algos.engine import make_engine
from fedjax_algos.evaluation import make_evaluate
from fedjax_algos.executor import make_executor
from fedjax_algos.keys import model_key
from fedjax_algos.layouts import Choice, choose_layout
from fedjax_algos.schedules import Plan, Synchronous, samplers, schedules, weathers, works
from fedjax_algos.schedules.arrival_groups import CompassTrace
from fedjax_algos.schedules.synchronous import rate_at
from fedjax_algos.settings import Method, Settings
from fedjax_algos.simulation import Row, refuse_repeats, simulate

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
    layout: Choice | None = None  # of rounds, the same for all methods


class Reached(NamedTuple):
    """One method's summary; intervals are 95% confidence intervals of the mean over seeds."""

    label: str
    final: float  # mean over seeds of the last test accuracy
    final_interval: float  # half the width
    best: float  # mean over seeds of the best test accuracy
    best_interval: float
    rounds: float | None  # median over seeds, of the rounds to the target; None below half
    upload_bytes: float | None  # likewise
    simulated_seconds: float | None  # likewise, on the virtual clock; None without one
    flops: float | None  # likewise, of all clients; also None where it was not measured
    seeds_reaching: int
    seeds_diverged: int  # whose last test accuracy or test loss is not finite
    seconds: float  # median over seeds


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
        how = layout.layout, settings.client_state, layout.devices
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
        layout=layout,
    )


def _choose(settings: Settings, algorithm: Algorithm, data_of: dict[int, FederatedData]) -> Choice:
    if settings.layout != "auto":
        return Choice(settings.layout, settings.devices or 1, (), "given")
    seed, data = next(iter(data_of.items()))
    visits = _schedule(settings, algorithm.local, data, seed).visits(1)
    first = jax.tree.map(lambda leaf: leaf[0], visits)
    return choose_layout(
        algorithm, data, first, devices=settings.devices, client_state=settings.client_state
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
    experiment: Experiment, on_evaluation: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """Runs every method on every seed; rows carry `method` and `seed` beside what was measured."""
    rows: list[Row] = []
    settings = experiment.settings
    for method in experiment.methods:
        for seed in settings.seeds:
            names = {"method": method.label, "seed": seed}

            def report(row: Row, names: Row = names) -> None:
                on_evaluation(names | row)

            if settings.seconds is not None:
                _, history, plan, trace = simulate_on_clock(
                    experiment.engines[method.label],
                    experiment.data[seed],
                    schedules.make(method.schedule),
                    weathers.make(settings.weather),
                    seconds=settings.seconds,
                    seed=seed,
                    test=experiment.test,
                    evaluations=settings.evaluations,
                    on_evaluation=report,
                    evaluate=experiment.evaluate,
                )
                experiment.plans.setdefault(method.label, (plan, trace))
                rows += [names | row for row in history]
                continue
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


def curves(rows: list[Row], column: str) -> dict[str, np.ndarray]:
    """A column of each method as an array [seeds, evaluations]; NaN where there is no value."""
    methods = dict.fromkeys(row["method"] for row in rows)
    seeds = dict.fromkeys(row["seed"] for row in rows)
    return {
        method: np.array(
            [
                [
                    row.get(column, np.nan)
                    for row in rows
                    if row["method"] == method and row["seed"] == seed
                ]
                for seed in seeds
            ],
            float,
        )
        for method in methods
    }


def interval(values: np.ndarray) -> float:
    """Half the width of the 95% confidence interval of the mean (Student's t); NaN for one."""
    if len(values) < 2:
        return float("nan")
    spread = values.std(ddof=1) / np.sqrt(len(values))
    return float(special.stdtrit(len(values) - 1, 0.975) * spread)


_SUMMARISED = (
    "test_accuracy",
    "test_loss",
    "round",
    "simulated_seconds",
    "upload_bytes",
    "flops",
    "wall_seconds",
)


def summarise(rows: list[Row], target: float | None = None) -> list[Reached]:
    """One line a method.

    Args:
      rows: of all methods on the same seeds.
      target: the test accuracy to reach; if None, for each seed the first method's best on it.
    """
    columns = {name: curves(rows, name) for name in _SUMMARISED if any(name in row for row in rows)}
    accuracy = columns["test_accuracy"]
    # fmax passes NaN over: a method that diverged had a best before
    bests = {label: np.fmax.reduce(values, axis=1) for label, values in accuracy.items()}
    targets = next(iter(bests.values()))
    if target is not None:
        targets = np.full_like(targets, target)
    lines = []
    for label, values in accuracy.items():
        hit = values >= targets[:, None]
        first = np.where(hit.any(axis=1), hit.argmax(axis=1), -1)

        def median(name, label=label, first=first):
            if name not in columns or 2 * (first >= 0).sum() < len(first):
                return None
            measured = zip(columns[name][label], first, strict=True)
            cost = [row[index] if index >= 0 else np.inf for row, index in measured]
            middle = float(np.quantile(cost, 0.5, method="lower"))
            return middle if np.isfinite(middle) else None

        ends = [
            columns[name][label][:, -1]
            for name in ("test_accuracy", "test_loss")
            if name in columns
        ]
        lines.append(
            Reached(
                label,
                final=float(values[:, -1].mean()),
                final_interval=interval(values[:, -1]),
                best=float(bests[label].mean()),
                best_interval=interval(bests[label]),
                rounds=median("round"),
                upload_bytes=median("upload_bytes"),
                simulated_seconds=median("simulated_seconds"),
                flops=median("flops"),
                seeds_reaching=int((first >= 0).sum()),
                seeds_diverged=int((~np.isfinite(ends).all(axis=0)).sum()),
                seconds=float(np.median(columns["wall_seconds"][label][:, -1])),
            )
        )
    return lines
