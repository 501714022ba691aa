"""Tunes several methods: tries settings on held-out examples of the clients and keeps the best.

A `Trial` is one setting with its scores. `Scores` keeps scores in a file, so that an interrupted
search can resume. `tuned_text` is the file that tuning writes and `compare --config` reads.
"""

import dataclasses
import itertools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import jax
import numpy as np

from fedjax_algos.analysis.rows import rows_by_run
from fedjax_algos.analysis.statistics import metric_column
from fedjax_algos.asynchrony import planners
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import checked_json, parse_json, read_file, write_json
from fedjax_algos.base.limits import MAX_INT32
from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Row
from fedjax_algos.core.options import Count, Proportion, Range, check_choice
from fedjax_algos.data import AnyDataset
from fedjax_algos.engine.asynchronous.executor import Executor, make_executor
from fedjax_algos.engine.placed.devices import default_num_devices
from fedjax_algos.engine.placed.processes import from_first, only_first
from fedjax_algos.runs.loops.clock import simulate_async
from fedjax_algos.runs.studies.experiment import Experiment, prepare
from fedjax_algos.runs.studies.method import methods_of
from fedjax_algos.runs.studies.results_folder import ResultsFolder, write_table
from fedjax_algos.runs.studies.search_space import ModelBasedSearch, SearchSpace, parse_spaces
from fedjax_algos.runs.studies.settings import Settings, refuse
from fedjax_algos.runs.studies.shares import RunName
from fedjax_algos.runs.studies.sweeps import Setting, batched_runs

LAST_SHARE = 0.2  # the last share of a run, whose evaluations make its score
# settings that tuning chooses itself, and settings of a machine
_LEFT_OUT = (
    "seeds", "evaluate_clients", "evaluate_clients_at", "held_out", "personal_steps", "devices",
)  # fmt: skip

Search = Literal["grid", "optuna"]
Halving = Annotated[int, Range(2, MAX_INT32)]


class Stage(NamedTuple):
    """A part of successive halving: runs some settings of each method for some time."""

    settings: int  # of each method
    length: float  # rounds or simulated seconds


class Trial(NamedTuple):
    """A setting of a method, and its scores after `length` rounds or simulated seconds.

    A score is the mean quality on held-out examples in the last fifth of a run; NaN if its model
    was not finite or its last updates were all left out.
    """

    setting: Setting
    length: float
    scores: dict[int, float]  # by seed

    def __repr__(self) -> str:
        return describe(self, setting=self.setting.method.label, score=round(self.score, 4))

    @property
    def score(self) -> float:
        """The mean over seeds; NaN if a run's model was not finite."""
        return float(np.mean([*self.scores.values()]))


class Tuning(NamedTuple):
    """A search that is ready to run."""

    experiment: Experiment  # its `client_data` are the held-out examples
    spaces: list[SearchSpace]  # of each method
    stages: list[Stage]  # one stage, or several for successive halving
    trials: int | None  # settings of each method; None is all of equal grids
    search: Search = "grid"
    # the runs of the first stage by method, in the order of computation
    runs: Mapping[str, Sequence[RunName]] = types.MappingProxyType({})

    def __repr__(self) -> str:
        return describe(self, spaces=self.spaces, stages=self.stages)

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
    halving: Halving | None = None,
    search: Search = "grid",
) -> Tuning:
    """Loads the data, holds out a share of each client's examples, and checks all settings.

    `grid` has texts such as `client_learning_rate=0.1,0.3` and `fedprox:mu=0.001..1`. A later
    comparison should use other seeds than `settings`. `trials` None is all, if all methods have
    the same number. With `halving`, each stage keeps the best 1/`halving` of the settings and runs
    them `halving` times as long. `search` "optuna" proposes `trials` settings in four batches.
    """
    what = f"evaluate_clients={settings.evaluate_clients!r} is not for tuning, which holds out"
    require(settings.evaluate_clients == "none", f"{what} examples by itself; leave it out")
    given = f"search='optuna' with trials={trials} and halving={halving}"
    fits = search != "optuna" or (trials is not None and halving is None)
    require(fits, f"{given}; give trials=N (--trials N), and no halving")
    refuse(settings, "tuning", "client_state", "examples", "devices_per_client")
    settings = dataclasses.replace(settings, evaluate_clients="held_out", held_out=validation)
    settings.check()
    methods = methods_of(tuple(specs), settings)
    if settings.reference is not None:
        check_choice("reference", settings.reference, [method.label for method in methods])
    spaces = parse_spaces(grid, methods, specs, settings, trials)
    tried = [
        [space.setting(settings, point) for point in space.points(trials, settings.seeds[0])]
        for space in spaces
    ]
    # with the first setting, because a tuned option may have no default
    pairs = zip(methods, tried, strict=True)
    firsts = [own[0].method._replace(label=method.label) for method, own in pairs]
    experiment = prepare(settings, firsts, dataset)
    for setting in itertools.chain(*tried):
        setting.method.build(experiment.problem, settings)
    planned = zip(spaces, experiment.methods, strict=True)
    spaces = [space.planned_by(method.planner) for space, method in planned]
    runs: dict[str, list[RunName]] = {}
    for space, own in zip(spaces, tried, strict=True):
        names = [each.method.label for each in own]
        runs[space.method.label] = [*itertools.product(names, settings.seeds)]
        if settings.seconds is None:  # raises if the runs do not fit into memory
            batched = batched_runs(experiment, own, held_out_rows(experiment))
            runs[space.method.label] = [(run.label, run.seed) for run in batched.in_order]
    if search == "optuna":
        ModelBasedSearch(spaces[0], 1, 0)  # raises if optuna is missing
    number = trials or int(spaces[0].size)
    length, shortest = float(settings.rounds), float(min(settings.eval_every, settings.rounds))
    if settings.seconds is not None:
        length, shortest = settings.seconds, settings.seconds / settings.evaluations
    stages = stages_of(number, length, shortest, halving, settings.seconds is None)
    return Tuning(experiment, spaces, stages, trials, search, runs)


def stages_of(
    number: int, length: float, shortest: float, halving: int | None, whole: bool = True
) -> list[Stage]:
    """Makes stages of `number / halving^k` settings, from at least `shortest` up to `length`."""
    if halving is None:
        return [Stage(number, length)]
    left, part, factors = number, length, 0
    while left >= halving and part / halving >= shortest:
        left, part, factors = left // halving, part / halving, factors + 1
    lengths = [length / halving ** (factors - k) for k in range(factors + 1)]
    return [
        Stage(number // halving**k, round(part) if whole else part)
        for k, part in enumerate(lengths)
    ]


def run_tuning(
    tuning: Tuning,
    folder: ResultsFolder,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    on_start: Callable[[str, Stage], None] = lambda label, stage: None,
) -> dict[str, list[list[Trial]]]:
    """Runs all stages; returns each method's trials by label, then by stage, the best first.

    Scores are written as they come, and `trials.csv` at the end, once no share is missing.
    """
    settings, share = tuning.experiment.settings, folder.share
    name = "scores.json" if share is None else f"scores-{share.number}.json"
    known = Scores(folder.path / name)
    results: dict[str, list[list[Trial]]] = {}
    if share is not None:
        _run_share(tuning, folder, known, on_evaluation, on_start)
        if missing_trials(tuning, folder):
            return results
        known.scores = _scores_of_shares(folder)
    for space in tuning.spaces:
        label, (first, *_), seed = space.method.label, tuning.stages, settings.seeds[0]
        results[label] = stages = list[list[Trial]]()
        try_all = partial(_try_all, tuning.experiment, folder.checkpoints(label), known)
        if tuning.search == "optuna":
            search, trials = ModelBasedSearch(space, first.settings, seed), list[Trial]()
            on_start(label, first)
            for number in itertools.count(1):
                if not (points := search.ask()):
                    break
                asked = [space.setting(settings, point) for point in points]
                new = try_all(asked, number, first.length, on_evaluation)
                search.tell([trial.score for trial in new])
                trials += new
            stages.append(best_first(trials))
        else:
            chosen = [space.setting(settings, p) for p in space.points(tuning.trials, seed)]
            for number, stage in enumerate(tuning.stages, start=1):
                if share is None:
                    on_start(label, stage)
                new = try_all(chosen[: stage.settings], number, stage.length, on_evaluation)
                stages.append(best_first(new))
                chosen = [trial.setting for trial in stages[-1]]
    only_first(write_table)(folder.path / "trials.csv", _table(results))
    return results


def _run_share(tuning, folder, known, on_evaluation, on_start):
    """Computes the runs of a share without a score."""
    settings, (stage, *_) = tuning.experiment.settings, tuning.stages
    for space in tuning.spaces:
        label = space.method.label
        if any(itertools.starmap(folder.takes, tuning.runs[label])):
            points = space.points(tuning.trials, settings.seeds[0])
            chosen = [space.setting(settings, point) for point in points]
            on_start(label, stage)
            some = chosen, 1, stage.length, on_evaluation, folder.takes
            _try_some(tuning.experiment, folder.checkpoints(label), known, *some)


def missing_trials(tuning: Tuning, folder: ResultsFolder) -> list[RunName]:
    """Lists the runs, by the label of their setting, that have no score yet from any share."""
    scores = _scores_of_shares(folder)
    runs = itertools.chain(*tuning.runs.values())
    return [run for run in runs if _key(1, *run) not in scores]


def _scores_of_shares(folder):
    files = sorted(folder.path.glob("scores-*.json"))
    return {key: score for file in files for key, score in Scores(file).scores.items()}


def _try_all(experiment, checkpoints, known, chosen, stage, length, on_evaluation):
    """Returns the trials of some settings of one method; `known` has earlier scores."""
    seeds = list(experiment.data)
    _try_some(experiment, checkpoints, known, chosen, stage, length, on_evaluation)
    return [
        Trial(each, length, {seed: known.get(stage, each, seed) for seed in seeds})
        for each in chosen
    ]


def _try_some(
    experiment, checkpoints, known, chosen, stage, length, on_evaluation, takes=lambda *run: True
):
    """Adds the scores that are not known yet, for runs that `takes` selects."""

    def is_left(setting, seed):
        return takes(setting.method.label, seed) and known.get(stage, setting, seed) is None

    left = [each for each in chosen if any(is_left(each, seed) for seed in experiment.data)]
    if experiment.settings.seconds is None and left:
        beside = checkpoints._replace(folder=checkpoints.folder / f"stage-{stage}")
        known.add(stage, try_in_rounds(experiment, left, length, on_evaluation, beside, takes))
    elif left:
        _try_on_the_clock(experiment, known, stage, left, length, on_evaluation, is_left)


def _table(results):
    return [
        {
            "method": label,
            "setting": trial.setting.method.label,
            "stage": number,
            "length": trial.length,
            "score": trial.score,
            **{f"score_seed_{seed}": score for seed, score in trial.scores.items()},
        }
        for label, stages in results.items()
        for number, stage in enumerate(stages, start=1)
        for trial in stage
    ]


def tuned_text(tuning: Tuning, results: Mapping[str, Sequence[Sequence[Trial]]]) -> str:
    """Returns a TOML file: the settings, each method's best values, and facts of the tuning."""
    import tomli_w

    settings, best = tuning.experiment.settings, {}
    for label, stages in results.items():
        best[label] = stages[-1][0]
        what = f"{label}: the model of every setting was not finite on some seed"
        finite = not math.isnan(best[label].score)
        require(finite, f"{what}; give a grid with smaller learning rates")
    specs = tuple(trial.setting.method.spec for trial in best.values())
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


def run_score(rows: Sequence[Row], target_metric: str = "accuracy") -> float:
    """Computes the score of a run, whose first row is before any training; see `Trial`."""
    losses = [rows[-1].get(name, 0.0) for name in ("test_loss", "train_loss")]
    if not np.isfinite(losses).all():
        return math.nan
    axis = "simulated_seconds" if "simulated_seconds" in rows[-1] else "round"
    start = (1 - LAST_SHARE) * rows[-1][axis]
    return float(np.mean([row[metric_column(target_metric)] for row in rows if row[axis] > start]))


def held_out_rows(experiment: Experiment) -> dict[int, np.ndarray]:
    """Returns the examples that clients hold out, int32[rows] by seed."""
    assert experiment.client_data is not None
    return {seed: np.asarray(data.indices) for seed, data in experiment.client_data.items()}


def try_in_rounds(experiment, chosen, rounds, on_evaluation, checkpoints, takes):
    """Returns the scores of one method's settings, by label and seed; `rounds` is whole."""
    batched = batched_runs(experiment, chosen, held_out_rows(experiment), rounds=int(rounds))
    rows, _ = batched.only(takes).run(on_evaluation, checkpoints=checkpoints)
    metric = experiment.settings.target_metric
    return {
        label: {int(seed): run_score(own, metric) for seed, own in by_seed.items()}
        for label, by_seed in rows_by_run(rows).items()
    }


def _try_on_the_clock(experiment, known, stage, chosen, seconds, on_evaluation, is_left):
    """Adds the scores of settings; settings that differ only in the rate share an executor."""
    settings, held_out = experiment.settings, held_out_rows(experiment)
    share, executors = seconds / (settings.seconds or seconds), dict[str, Executor]()

    def report(run: Row, row: Row) -> None:
        on_evaluation(run | row)

    for setting, (seed, data) in itertools.product(chosen, experiment.data.items()):
        method = setting.method
        if not is_left(setting, seed):
            continue
        algorithm = method.build(experiment.problem, settings)
        key = method._replace(client_learning_rate=1.0).spec
        if key not in executors:
            devices = settings.devices or default_num_devices(alone=1)
            executors[key] = make_executor(
                algorithm, devices=devices, non_finite=settings.non_finite
            )
        result = simulate_async(
            executors[key].with_algorithm(algorithm),
            data,
            planners.make(method.planner),
            settings.system_model(),
            seconds=seconds,
            seed=seed,
            test=jax.tree.map(lambda leaf, rows=held_out[seed]: leaf[rows], data.examples),
            evaluations=max(1, round(settings.evaluations * share)),
            on_evaluation=partial(report, {"method": method.label, "seed": seed}),
            evaluate=experiment.evaluate,
        )
        score = run_score(result.rows, settings.target_metric)
        known.add(stage, {method.label: {seed: score}})


class Scores:
    """The scores of runs that have ended, by stage, setting and seed, in a JSON file."""

    def __init__(self, path: Path):
        self.path, fix = path, "delete it, and the search computes its scores again"
        try:
            self.scores = from_first(_read_scores)(path)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read ({error}); {fix}") from None
        for score in self.scores.values():
            if not (score is None or (isinstance(score, float) and math.isfinite(score))):
                raise ValueError(f"{path} does not hold the scores of a search; {fix}")

    def get(self, stage: int, setting: Setting, seed: int) -> float | None:
        """Returns an ended run's score, NaN if its model was not finite; None for other runs."""
        score = self.scores.get(key := _key(stage, setting.method.label, seed))
        return math.nan if key in self.scores and score is None else score

    def add(self, stage: int, scores: Mapping[str, Mapping[int, float]]) -> None:
        """Writes scores by the setting's label and seed, all of them or none."""
        for label, by_seed in scores.items():
            for seed, score in by_seed.items():
                self.scores[_key(stage, label, seed)] = None if math.isnan(score) else score
        only_first(write_json)(self.path, self.scores)


def _read_scores(path):
    return checked_json(parse_json(read_file(path))) if path.exists() else {}


def _key(stage: int, label: str, seed: int) -> str:
    return f"stage {stage}, {label}, seed {seed}"
