"""Several methods on the same seeds, and the summary of what they reached at what cost."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import stats

from fedjax_algos.data import Dataset, FederatedData, Partition
from fedjax_algos.engine import make_engine
from fedjax_algos.evaluation import make_evaluate
from fedjax_algos.settings import Method, Settings
from fedjax_algos.simulation import Row, simulate

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
    engines: dict[str, Any]
    evaluate: Callable


class Reached(NamedTuple):
    """One method's summary; intervals are 95% confidence intervals of the mean over seeds."""

    label: str
    final: float  # mean over seeds of the last test accuracy
    final_interval: float  # half the width
    best: float  # mean over seeds of the best test accuracy
    best_interval: float
    rounds: float | None  # median over seeds, of the rounds to the target; None below half
    upload_bytes: float | None  # likewise
    seeds_reaching: int
    seconds: float  # median over seeds


def prepare(
    settings: Settings, methods: list[Method], dataset: Dataset | None = None
) -> Experiment:
    """Loads the data (unless it is given), splits it and builds all methods.

    Raises:
      ValueError: for settings that are wrong, before anything is trained.
    """
    settings.check()
    dataset = dataset or settings.load()
    dataset = dataset._replace(train=jax.device_put(dataset.train))  # once for all seeds
    problem = settings.problem(dataset)
    engines = {m.label: make_engine(m.build(problem, settings), settings.layout) for m in methods}
    split = {seed: settings.split(dataset, seed) for seed in settings.seeds}
    return Experiment(
        settings,
        methods,
        np.asarray(dataset.train["y"]),
        dataset.notes,
        dataset.test,
        {seed: data for seed, (data, _) in split.items()},
        {seed: partition for seed, (_, partition) in split.items()},
        engines,
        make_evaluate(problem),
    )


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

            _, history = simulate(
                experiment.engines[method.label],
                experiment.data[seed],
                cohort_size=settings.cohort,
                rounds=settings.rounds,
                seed=seed,
                test=experiment.test,
                eval_every=settings.eval_every,
                on_evaluation=report,
                evaluate=experiment.evaluate,
            )
            rows += [names | row for row in history]
    return rows


def curves(rows: list[Row], column: str) -> dict[str, np.ndarray]:
    """A column of each method as an array [seeds, evaluations]."""
    methods = dict.fromkeys(row["method"] for row in rows)
    seeds = dict.fromkeys(row["seed"] for row in rows)
    return {
        method: np.array(
            [
                [row[column] for row in rows if row["method"] == method and row["seed"] == seed]
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
    return float(stats.t.ppf(0.975, len(values) - 1) * spread)


def summarise(rows: list[Row]) -> list[Reached]:
    """One line a method. The target is, for each seed, the first method's best accuracy on it."""
    accuracy = curves(rows, "test_accuracy")
    rounds, uploads = curves(rows, "round"), curves(rows, "upload_bytes")
    seconds = curves(rows, "wall_seconds")
    target = next(iter(accuracy.values())).max(axis=1)
    lines = []
    for label, values in accuracy.items():
        hit = values >= target[:, None]
        first = np.where(hit.any(axis=1), hit.argmax(axis=1), -1)
        reaching = int((first >= 0).sum())

        def median(column, first=first, reaching=reaching):
            if 2 * reaching < len(first):
                return None
            cost = [row[i] if i >= 0 else np.inf for row, i in zip(column, first, strict=True)]
            middle = float(np.quantile(cost, 0.5, method="lower"))
            return middle

        lines.append(
            Reached(
                label,
                float(values[:, -1].mean()),
                interval(values[:, -1]),
                float(values.max(axis=1).mean()),
                interval(values.max(axis=1)),
                median(rounds[label]),
                median(uploads[label]),
                reaching,
                float(np.median(seconds[label][:, -1])),
            )
        )
    return lines
