"""Tuning: settings of several methods are tried, and the best one of each is kept.

`tuned_text` is the file that tuning writes and `compare --config` reads.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import tomli_w

from fedjax_algos.core import Row
from fedjax_algos.core.limits import MAX_INT32
from fedjax_algos.core.options import Count, Proportion, Range, check_choice
from fedjax_algos.core.reprs import describe
from fedjax_algos.data import AnyDataset
from fedjax_algos.runs.experiment import Experiment, prepare
from fedjax_algos.runs.method import methods_of
from fedjax_algos.runs.saving.files import write_table
from fedjax_algos.runs.saving.results_folder import ResultsFolder
from fedjax_algos.runs.settings import Settings
from fedjax_algos.runs.tuning.model_based import ModelBasedSearch
from fedjax_algos.runs.tuning.search_space import SearchSpace, parse_spaces
from fedjax_algos.runs.tuning.trials import (
    LAST_SHARE,
    Scores,
    Trial,
    batched_trials,
    best_first,
    held_out_rows,
    try_in_rounds,
    try_on_the_clock,
)  # fmt: skip

# settings that tuning chooses itself, and those of a machine
_LEFT_OUT = ("seeds", "evaluate_clients", "held_out", "personal_steps", "devices")

Search = Literal["grid", "optuna"]
Halving = Annotated[int, Range(2, MAX_INT32)]


class Stage(NamedTuple):
    """A part of successive halving: some settings of each method are run for some time."""

    settings: int  # of each method
    length: float  # rounds or simulated seconds


class Tuning(NamedTuple):
    """A search that is ready to run.

    The methods of the `experiment` are those that are tuned, and its `client_data` what clients
    hold out. `spaces` has what is tried of each method, and `stages` one or those of successive
    halving. `trials` is the number of settings of each method; None is all of equal grids.
    """

    experiment: Experiment
    spaces: list[SearchSpace]
    stages: list[Stage]
    trials: int | None
    search: Search = "grid"

    def __repr__(self) -> str:
        return describe(self, spaces=self.spaces, stages=self.stages)

    @property
    def budget(self) -> float:
        """Rounds or simulated seconds of one method, over all its settings and seeds."""
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

    `grid` has texts such as `client_learning_rate=0.1,0.3` and `fedprox:mu=0.001..1`. The seeds of
    the settings should not be those of a later comparison. The share `validation` of each client's
    examples is not trained on; they make the score. So many `trials` are drawn of each method; None
    is all, if all methods have the same number. With `halving`, each stage keeps the best
    1/`halving` of the settings, and runs them `halving` times as long. `search` "grid" tries a grid
    or draws of it; with "optuna", its tree-structured Parzen estimator proposes `trials` settings
    in four batches. `dataset` replaces the one that the settings name.
    """
    if settings.evaluate_clients != "none":
        raise ValueError(
            f"evaluate_clients={settings.evaluate_clients!r} is not for tuning, which holds out "
            "examples by itself; leave it out"
        )
    if search == "optuna" and (trials is None or halving is not None):
        raise ValueError(
            f"search='optuna' with trials={trials} and halving={halving}; give trials=N "
            "(--trials N), and no halving"
        )
    settings.refuse("tuning", "client_state", "examples")
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
    # with the first setting, because an option that is tuned may have no default
    pairs = zip(methods, tried, strict=True)
    firsts = [own[0].method._replace(label=method.label) for method, own in pairs]
    experiment = prepare(settings, firsts, dataset)
    for setting in itertools.chain(*tried):
        setting.method.build(experiment.problem, settings)
    for own in tried if settings.seconds is None else ():
        batched_trials(experiment, own, settings.rounds)  # refuses what does not fit into memory
    if search == "optuna":
        ModelBasedSearch(spaces[0], 1, 0)  # raises if optuna is missing
    number = trials or int(spaces[0].size)
    length, shortest = float(settings.rounds), float(min(settings.eval_every, settings.rounds))
    if settings.seconds is not None:
        length, shortest = settings.seconds, settings.seconds / settings.evaluations
    stages = stages_of(number, length, shortest, halving, settings.seconds is None)
    return Tuning(experiment, spaces, stages, trials, search)


def stages_of(
    number: int, length: float, shortest: float, halving: int | None, whole: bool = True
) -> list[Stage]:
    """The stages of successive halving: `number / halving^k` settings, each longer than before.

    The first one has at least the `shortest` length and the last one all; lengths may be `whole`
    numbers. There is one stage if `halving` is None.
    """
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
    """Runs all stages: the trials of each method by label, in the order of their scores, by stage.

    Scores are written to the folder as they come, and `trials.csv` at the end. `on_evaluation` is
    called with each row, whose `test_` columns are of held-out examples; `on_start` with the
    method's label and each stage before its trials.
    """
    settings, known = tuning.experiment.settings, Scores(folder.path / "scores.json")
    results: dict[str, list[list[Trial]]] = {}
    for space in tuning.spaces:
        label, stages = space.method.label, list[list[Trial]]()
        try_all = partial(_try_all, tuning.experiment, folder.checkpoints(label), known)
        if tuning.search == "optuna":
            search = ModelBasedSearch(space, tuning.stages[0].settings, settings.seeds[0])
            stages.append([])
            on_start(label, tuning.stages[0])
            for number in itertools.count(1):
                if not (points := search.ask()):
                    break
                asked = [space.setting(settings, point) for point in points]
                new = try_all(asked, number, tuning.stages[0].length, on_evaluation)
                search.tell([trial.score for trial in new])
                stages[0] = best_first([*stages[0], *new])
        else:
            points = space.points(tuning.trials, settings.seeds[0])
            chosen = [space.setting(settings, point) for point in points]
            for number, stage in enumerate(tuning.stages, start=1):
                on_start(label, stage)
                new = try_all(chosen[: stage.settings], number, stage.length, on_evaluation)
                stages.append(best_first(new))
                chosen = [trial.setting for trial in stages[-1]]
        results[label] = stages
    write_table(folder.path / "trials.csv", _table(results))
    return results


def _try_all(experiment, checkpoints, known, chosen, stage, length, on_evaluation):
    """The trials of some settings of one method; what an earlier process ran is `known`."""
    seeds, executors = list(experiment.data), dict[Any, Any]()
    left = [each for each in chosen if None in [known.get(stage, each, seed) for seed in seeds]]
    if experiment.settings.seconds is None and left:
        beside = checkpoints._replace(folder=checkpoints.folder / f"stage-{stage}")
        known.add(stage, try_in_rounds(experiment, left, length, on_evaluation, beside))
    for setting, seed in itertools.product(left, seeds):
        if known.get(stage, setting, seed) is None:
            arguments = experiment, executors, setting, seed, length
            score = try_on_the_clock(*arguments, on_evaluation)
            known.add(stage, {setting.method.label: {seed: score}})
    return [
        Trial(each, length, {seed: known.get(stage, each, seed) for seed in seeds})
        for each in chosen
    ]


def _table(results):
    """One row for each trial."""
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
    """A TOML file with the settings, each method with its best values, and what the tuning saw.

    Raises ValueError for a method of which no setting stayed finite.
    """
    settings, best = tuning.experiment.settings, {}
    for label, stages in results.items():
        best[label] = stages[-1][0]
        if math.isnan(best[label].score):
            raise ValueError(
                f"{label}: the model of every setting was not finite on some seed; give a grid "
                "with smaller learning rates"
            )
    methods = [trial.setting.method for trial in best.values()]
    specs = tuple(method.spec for method in methods)
    tuned = methods_of(specs, settings)
    for method, again in zip(methods, tuned, strict=True):
        assert method.configuration() == again.configuration(), method.spec
    shared = {n: v for n, v in vars(settings).items() if n not in _LEFT_OUT and v is not None}
    if settings.reference is not None:  # the values that were chosen may be part of a label
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
