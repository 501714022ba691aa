"""Trials: settings of a method that are run and evaluated on what the clients hold out.

`Scores` is the file of the scores so far, from which an interrupted search goes on.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.analysis.statistics import PREFIX
from fedjax_algos.asynchrony import planners, system_of
from fedjax_algos.core import Row
from fedjax_algos.core.files import checked_json, parse_json, read_file, write_json
from fedjax_algos.core.reprs import describe
from fedjax_algos.engine.asynchronous.executor import Executor, make_executor
from fedjax_algos.runs.batched.run_batched import BatchedRuns
from fedjax_algos.runs.batched.sweeps import Setting, batched_runs
from fedjax_algos.runs.clock import simulate_async
from fedjax_algos.runs.experiment import Experiment
from fedjax_algos.runs.saving.checkpoints import Checkpoints

LAST_SHARE = 0.2  # of a run, whose evaluations make its score


class Trial(NamedTuple):
    """A setting of a method, and what it reached in so many rounds or simulated seconds.

    `scores` has by seed the mean quality on the held-out examples over the evaluations in the last
    fifth of the run; NaN for a run whose model was not finite, or whose last updates were all left
    out.
    """

    setting: Setting
    length: float
    scores: dict[int, float]

    def __repr__(self) -> str:
        return describe(self, setting=self.setting.method.label, score=round(self.score, 4))

    @property
    def score(self) -> float:
        """The mean over seeds; NaN if a run's model was not finite."""
        return float(np.mean([*self.scores.values()]))


def best_first(trials: Sequence[Trial]) -> list[Trial]:
    """Trials in the order of their scores; NaN comes last, and equal ones stay in order."""
    return sorted(trials, key=lambda trial: (math.isnan(trial.score), -trial.score))


def run_score(rows: Sequence[Row], target_metric: str = "accuracy") -> float:
    """The score of a run, whose first row is before any training; see `Trial`."""
    losses = [rows[-1].get(name, 0.0) for name in ("test_loss", "train_loss")]
    if not np.isfinite(losses).all():
        return math.nan
    axis = "simulated_seconds" if "simulated_seconds" in rows[-1] else "round"
    start = (1 - LAST_SHARE) * rows[-1][axis]
    return float(np.mean([row[PREFIX + target_metric] for row in rows if row[axis] > start]))


def batched_trials(experiment: Experiment, chosen: Sequence[Setting], rounds: int) -> BatchedRuns:
    """The runs of some settings of one method, which are evaluated on what clients hold out."""
    held_out = held_out_rows(experiment)
    runs = [
        setting.run(seed, data, held_out[seed])
        for setting in chosen
        for seed, data in experiment.data.items()
    ]
    return batched_runs(experiment, chosen[0].method, runs, rounds=rounds)


def held_out_rows(experiment: Experiment) -> dict[int, np.ndarray]:
    """The examples that clients hold out, int32[rows] by seed."""
    assert experiment.client_data is not None
    return {seed: np.asarray(data.indices) for seed, data in experiment.client_data.items()}


def try_in_rounds(
    experiment: Experiment,
    chosen: Sequence[Setting],
    rounds: float,
    on_evaluation: Callable[[Row], None],
    checkpoints: Checkpoints,
) -> dict[str, dict[int, float]]:
    """The scores of the settings of one method, by label and seed; `rounds` is whole."""
    rows: dict[str, dict[int, list[Row]]] = {each.method.label: {} for each in chosen}

    def report(row: Row) -> None:
        rows[row["method"]].setdefault(row["seed"], []).append(row)
        on_evaluation(row)

    batched_trials(experiment, chosen, int(rounds)).run(report, checkpoints=checkpoints)
    metric = experiment.settings.target_metric
    return {
        label: {seed: run_score(by_seed[seed], metric) for seed in experiment.data}
        for label, by_seed in rows.items()
    }


def try_on_the_clock(
    experiment: Experiment,
    executors: dict[Any, Executor],
    setting: Setting,
    seed: int,
    seconds: float,
    on_evaluation: Callable[[Row], None],
) -> float:
    """The score of one setting on one seed on the virtual clock.

    Settings that differ in the client learning rate only share one of the `executors`, which this
    fills.
    """
    settings, method, data = experiment.settings, setting.method, experiment.data[seed]
    factory, hyperparameters = method.factory(settings), tuple(method.hyperparameters.items())
    algorithm = factory(experiment.problem, setting.local, **method.hyperparameters)
    key = method.algorithm, method.wrappers, method.client_optimizer, hyperparameters
    if key not in executors:
        executors[key] = make_executor(
            algorithm, devices=settings.devices or 1, non_finite=settings.non_finite
        )
    rows: list[Row] = []

    def report(row: Row) -> None:
        rows.append(row)
        on_evaluation({"method": method.label, "seed": seed} | row)

    held_out = held_out_rows(experiment)[seed]
    simulate_async(
        executors[key].with_algorithm(algorithm),
        data,
        planners.make(method.planner),
        system_of(settings.system, settings.batch_size),
        seconds=seconds,
        seed=seed,
        test=jax.tree.map(lambda leaf: leaf[held_out], data.examples),
        evaluations=max(1, round(settings.evaluations * seconds / (settings.seconds or seconds))),
        on_evaluation=report,
        evaluate=experiment.evaluate,
    )
    return run_score(rows, settings.target_metric)


class Scores:
    """The scores of runs that have ended, by stage, setting and seed, in a file of JSON."""

    def __init__(self, path: Path):
        self.path, self.scores = path, _read(path) if path.exists() else {}

    def get(self, stage: int, setting: Setting, seed: int) -> float | None:
        """The score of an ended run, NaN if its model was not finite; None for other runs."""
        score = self.scores.get(key := _key(stage, setting.method.label, seed))
        return math.nan if key in self.scores and score is None else score

    def add(self, stage: int, scores: Mapping[str, Mapping[int, float]]) -> None:
        """Writes scores by the setting's label and seed, all of them or none."""
        for label, by_seed in scores.items():
            for seed, score in by_seed.items():
                self.scores[_key(stage, label, seed)] = None if math.isnan(score) else score
        write_json(self.path, self.scores)


def _key(stage: int, label: str, seed: int) -> str:
    return f"stage {stage}, {label}, seed {seed}"


def _read(path: Path) -> dict[str, float | None]:
    fix = "delete it, and the search computes its scores again"
    try:
        scores = checked_json(parse_json(read_file(path)))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); {fix}") from None
    for score in scores.values():
        if not (score is None or (isinstance(score, float) and math.isfinite(score))):
            raise ValueError(f"{path} does not hold the scores of a search; {fix}")
    return scores
