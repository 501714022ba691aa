"""Tunes several methods: tries settings on held-out examples of the clients and keeps the best.

A `Trial` is a setting with its scores. A file keeps them, so an interrupted search can resume.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import numpy as np

from fedjax_algos.analysis.rows import rows_by_run
from fedjax_algos.analysis.statistics import metric_column
from fedjax_algos.asynchrony import planners
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import checked_json, parse_json, read_file, reading, write_json
from fedjax_algos.base.limits import MAX_INT32
from fedjax_algos.core import Row
from fedjax_algos.core.options import Count, Proportion, Range, check_choice
from fedjax_algos.data import AnyDataset
from fedjax_algos.engine.asynchronous.executor import Executor
from fedjax_algos.engine.placed.processes import from_first, only_first
from fedjax_algos.runs.loops.checkpoints import Checkpoints
from fedjax_algos.runs.loops.clock import simulate_async
from fedjax_algos.runs.studies.experiment import Experiment, engine_of, prepare
from fedjax_algos.runs.studies.folder_content import RunName, write_table
from fedjax_algos.runs.studies.method import Method, methods_of
from fedjax_algos.runs.studies.results_folder import ResultsFolder
from fedjax_algos.runs.studies.search_space import SearchSpace, parse_spaces
from fedjax_algos.runs.studies.settings import Settings, refuse
from fedjax_algos.runs.studies.sweeps import batched_runs

LAST_SHARE = 0.2  # the last share of a run, whose evaluations make its score
# settings that tuning chooses itself, and settings of a machine
_LEFT_OUT = (
    "seeds", "evaluate_clients", "evaluate_clients_at", "held_out", "personal_steps", "devices",
)  # fmt: skip


class TuningStage(NamedTuple):
    """A part of successive halving: runs some settings of each method for some time."""

    settings: int  # of each method
    length: float  # rounds or simulated seconds


class Trial(NamedTuple):
    """A method with some values of its grid, and its scores after a stage.

    A score is the mean quality on held-out examples in the last fifth of a run; None if its model
    was not finite or its last updates were all left out.
    """

    method: Method
    length: float  # rounds or simulated seconds
    scores: dict[int, float | None]  # by seed

    @property
    def score(self) -> float:
        """The mean over seeds; NaN if a run's model was not finite."""
        return float(np.mean(np.array([*self.scores.values()], float)))


class Tuning(NamedTuple):
    """A search that is ready to run; `tried` and `runs` are by the label of the method."""

    experiment: Experiment  # its `client_data` are the held-out examples
    spaces: list[SearchSpace]  # of each method
    tried: dict[str, list[Method]]  # with the values of each setting
    stages: list[TuningStage]  # one stage, or several for successive halving
    runs: dict[str, list[RunName]]  # of the first stage, in the order of computation

    @property
    def budget(self) -> float:
        """The rounds or simulated seconds of one method, over all its settings and seeds."""
        seeds = len(self.experiment.settings.seeds)
        return seeds * sum(stage.settings * stage.length for stage in self.stages)


def prepare_tuning(
    settings: Settings,
    specs: Sequence[str],
    grid: Sequence[str],
    dataset: AnyDataset | None = None,
    *,
    validation: Proportion = 0.2,
    trials: Count | None = None,
    halving: Annotated[int, Range(2, MAX_INT32)] | None = None,
) -> Tuning:
    """Loads the data, holds out a share of each client's examples, and checks all settings.

    `grid` has texts such as `client_learning_rate=0.1,0.3` and `fedprox:mu=0.001..1`. A later
    comparison should use other seeds than `settings`. `trials` None is all, if all methods have
    the same number. With `halving`, each stage keeps the best 1/`halving` of the settings and runs
    them `halving` times as long.
    """
    refuse(settings, "tuning", "client_state", "examples", "devices_per_client", "evaluate_clients")
    settings = dataclasses.replace(settings, evaluate_clients="held_out", held_out=validation)
    settings.check()
    methods = methods_of(tuple(specs), settings)
    labels = [method.label for method in methods]
    if settings.reference is not None:
        check_choice("reference", settings.reference, labels)
    spaces = parse_spaces(grid, methods, specs, settings, trials)
    tried = {space.method.label: space.methods(trials, settings.seeds[0]) for space in spaces}
    experiment = prepare(settings, methods, dataset, searched=tried)
    runs: dict[str, list[RunName]] = {}
    for label, planner in {method.label: method.planner for method in experiment.methods}.items():
        tried[label] = [each._replace(planner=planner) for each in tried[label]]
        runs[label] = [*itertools.product([each.label for each in tried[label]], settings.seeds)]
        if settings.seconds is None:  # raises if the runs do not fit into memory
            batched = batched_runs(experiment, tried[label], held_out_rows(experiment))
            runs[label] = [(run.label, run.seed) for run in batched.in_order]
    length, shortest = float(settings.rounds), float(min(settings.eval_every, settings.rounds))
    if settings.seconds is not None:
        length, shortest = settings.seconds, settings.seconds / settings.evaluations
    number = min(map(len, tried.values()))
    stages = stages_of(number, length, shortest, halving, whole=settings.seconds is None)
    return Tuning(experiment, spaces, tried, stages, runs)


def stages_of(
    number: int, length: float, shortest: float, halving: int | None, whole: bool = True
) -> list[TuningStage]:
    """Makes stages of `number / halving^k` settings, from at least `shortest` up to `length`."""
    if halving is None:
        return [TuningStage(number, length)]
    left, part, factors = number, length, 0
    while left >= halving and part / halving >= shortest:
        left, part, factors = left // halving, part / halving, factors + 1
    lengths = [length / halving ** (factors - k) for k in range(factors + 1)]
    lengths = [round(part) if whole else part for part in lengths]
    return [TuningStage(number // halving**k, part) for k, part in enumerate(lengths)]


def run_tuning(
    tuning: Tuning,
    folder: ResultsFolder,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    on_start: Callable[[str, TuningStage], None] = lambda label, stage: None,
) -> dict[str, list[list[Trial]]]:
    """Runs all stages; returns each method's trials by label, then by stage, the best first.

    Scores are written as they come, and `trials.csv` at the end, once no share is missing.
    """
    name = "scores.json" if folder.share is None else f"scores-{folder.share.number}.json"
    path = folder.path / name
    results = _run_stages(tuning, folder, path, read_scores(path), on_evaluation, on_start)
    if folder.share is not None:
        if missing_trials(tuning, folder):
            return {}
        results = _run_stages(tuning, folder, path, _scores_of_shares(folder))  # trains nothing
    rows = [
        {
            "method": label,
            "setting": trial.method.label,
            "stage": number,
            "length": trial.length,
            "score": trial.score,
            **{f"score_seed_{n}": math.nan if s is None else s for n, s in trial.scores.items()},
        }
        for label, stages in results.items()
        for number, stage in enumerate(stages, start=1)
        for trial in stage
    ]
    only_first(write_table)(folder.path / "trials.csv", rows)
    return results


def _run_stages(
    tuning: Tuning,
    folder: ResultsFolder,
    path: Path,
    known: dict[str, float | None],
    on_evaluation: Callable[[Row], None] = lambda row: None,
    on_start: Callable[[str, TuningStage], None] = lambda label, stage: None,
) -> dict[str, list[list[Trial]]]:
    """Computes the runs of this process without a `known` score, and returns all trials.

    Writes the scores to `path`: of the runs in a program, all of them or none.
    """
    experiment, settings = tuning.experiment, tuning.experiment.settings
    results: dict[str, list[list[Trial]]] = {label: [] for label in tuning.tried}
    for label, stages in results.items():
        methods = tuning.tried[label]
        executors = {_but_rate(methods[0]): experiment.engines[label]}
        for number, stage in enumerate(tuning.stages, start=1):
            methods = methods[: stage.settings]
            if any(itertools.starmap(folder.takes, tuning.runs[label])):
                on_start(label, stage)
            runs = itertools.product([each.label for each in methods], settings.seeds)
            left = {run for run in runs if folder.takes(*run) and _key(number, *run) not in known}
            saved = folder.checkpoints(label)
            saved = saved._replace(folder=Path(saved.folder, f"stage-{number}"))
            options = methods, executors, stage.length, on_evaluation, saved
            for rows in _rows_of(experiment, left, *options) if left else ():
                for name, by_seed in rows_by_run(rows).items():
                    for seed, history in by_seed.items():
                        score = run_score(history, settings.target_metric)
                        known[_key(number, name, int(seed))] = score
                only_first(write_json)(path, known)
            trials = []
            for method in methods:
                scores = {n: known.get(_key(number, method.label, n)) for n in settings.seeds}
                trials.append(Trial(method, stage.length, scores))
            stages.append(best_first(trials))
            methods = [trial.method for trial in stages[-1]]
    return results


def missing_trials(tuning: Tuning, folder: ResultsFolder) -> list[RunName]:
    """Lists the runs without a score from any share, by the label of their setting."""
    runs, scores = itertools.chain(*tuning.runs.values()), _scores_of_shares(folder)
    return [run for run in runs if _key(1, *run) not in scores]


def _scores_of_shares(folder: ResultsFolder) -> dict[str, float | None]:
    files = sorted(folder.path.glob("scores-*.json"))
    return {key: score for file in files for key, score in read_scores(file).items()}


def tuned_text(tuning: Tuning, results: Mapping[str, Sequence[Sequence[Trial]]]) -> str:
    """Returns a TOML file: the settings, each method's best values, and facts of the tuning."""
    import tomli_w

    settings, best = tuning.experiment.settings, {}
    for label, stages in results.items():
        best[label] = stages[-1][0]
        if math.isnan(best[label].score):
            found = f"{label}: the model of every setting was not finite on some seed"
            raise ValueError(f"{found}; give a grid with smaller learning rates")
    specs = tuple(trial.method.spec for trial in best.values())
    tuned = methods_of(specs, settings)
    shared = {n: v for n, v in vars(settings).items() if n not in _LEFT_OUT and v is not None}
    if settings.reference is not None:  # the chosen values may be part of a label
        shared["reference"] = tuned[list(best).index(settings.reference)].label
    unit = "rounds" if settings.seconds is None else "simulated seconds"
    record = {
        "test_data": "not used",
        "validation": settings.held_out,
        "validation_examples": min(map(len, held_out_rows(tuning.experiment).values())),
        "score": f"mean {settings.target_metric} on the validation examples, which each client "
        "holds out of its training examples, over the evaluations in the last "
        f"{100 * LAST_SHARE:g}% of a run and over the seeds",
        "seeds": list(settings.seeds),
        "settings_of_each_method": tuning.stages[0].settings,
        "budget_of_each_method": f"{tuning.budget:g} {unit} over all settings and seeds",
        "stages": [f"{s.settings} settings for {s.length:g} {unit}" for s in tuning.stages],
        "scores": {label: round(trial.score, 6) for label, trial in best.items()},
    }
    content = {**shared, "methods": list(specs), "tuning": record}
    return tomli_w.dumps(content, multiline_strings=False)


def best_first(trials: Sequence[Trial]) -> list[Trial]:
    """Sorts trials by score, the best first; NaN comes last, and equal scores stay in order."""
    return sorted(trials, key=lambda trial: (math.isnan(trial.score), -trial.score))


def run_score(rows: Sequence[Row], target_metric: str = "accuracy") -> float | None:
    """Computes a run's score, see `Trial`; None if its model was not finite.

    The first row is before any training.
    """
    losses = [rows[-1].get(name, 0.0) for name in ("test_loss", "train_loss")]
    if not np.isfinite(losses).all():
        return None
    axis = "simulated_seconds" if "simulated_seconds" in rows[-1] else "round"
    start = (1 - LAST_SHARE) * rows[-1][axis]
    mean = np.mean([row[metric_column(target_metric)] for row in rows if row[axis] > start])
    return float(mean) if np.isfinite(mean) else None


def held_out_rows(experiment: Experiment) -> dict[int, np.ndarray]:
    """Returns the examples that clients hold out, int32[rows] by seed."""
    assert experiment.client_data is not None
    return {seed: np.asarray(data.indices) for seed, data in experiment.client_data.items()}


def _rows_of(
    experiment: Experiment,
    runs: Collection[RunName],
    methods: Sequence[Method],
    executors: dict[str, Executor],
    length: float,
    on_evaluation: Callable[[Row], None],
    checkpoints: Checkpoints,
) -> Iterator[list[Row]]:
    """Yields the rows of all runs at once in rounds, and of each run on the virtual clock."""
    settings, held_out = experiment.settings, held_out_rows(experiment)
    methods = [method for method in methods if method.label in dict(runs)]
    if settings.seconds is None:
        batched = batched_runs(experiment, methods, held_out, rounds=int(length))
        yield batched.only(runs).run(on_evaluation, checkpoints=checkpoints).rows
        return

    def report(run: Row, row: Row) -> None:
        on_evaluation(run | row)

    for method, (seed, data) in itertools.product(methods, experiment.data.items()):
        if (method.label, seed) not in runs:
            continue
        algorithm = experiment.algorithms[method.label]
        if (key := _but_rate(method)) not in executors:
            executors[key] = engine_of(settings, algorithm)
        arguments = executors[key].with_algorithm(algorithm), data, planners.make(method.planner)
        run: Row = {"method": method.label, "seed": seed}
        result = simulate_async(
            *arguments,
            settings.system_model(),
            seconds=length,
            seed=seed,
            test=jax.tree.map(lambda leaf, rows=held_out[seed]: leaf[rows], data.examples),
            evaluations=max(1, round(settings.evaluations * length / settings.seconds)),
            on_evaluation=partial(report, run),
            evaluate=experiment.evaluate,
        )
        yield [run | row for row in result.rows]


@from_first
def read_scores(path: Path) -> dict[str, float | None]:
    """Reads the scores of ended runs, None if a model was not finite; {} without the file."""
    if not path.exists():
        return {}
    with reading(path, "the scores of a search", "delete it, and the search computes them again"):
        scores = checked_json(parse_json(read_file(path)))
        numbers = [score for score in scores.values() if score is not None]
        valid = all(isinstance(score, float) and math.isfinite(score) for score in numbers)
        require(valid, "it has other values")
    return scores


def _but_rate(method: Method) -> str:
    """Names methods that share an executor: they differ only in the client learning rate."""
    return method._replace(client_learning_rate=1.0).spec


def _key(stage: int, label: str, seed: int) -> str:
    return f"stage {stage}, {label}, seed {seed}"
