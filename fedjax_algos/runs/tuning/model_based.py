"""Search by a model of the scores so far: optuna's tree-structured Parzen estimator, in batches."""

import math
from collections.abc import Sequence
from typing import Any

from fedjax_algos.runs.tuning.search_space import Interval, SearchSpace

_BATCHES = 4  # of settings that are proposed, and run, together
_MAX_PROPOSALS = 20  # for each point, until it differs from the others


class ModelBasedSearch:
    """Proposes points of a search space that differ, in batches that share a program.

    There are `trials` points over all batches. The same seed and scores give the same proposals.
    Where the model repeats itself, as it may with lists, a point is drawn as in a search without a
    model, so that the budget is used up.
    """

    def __init__(self, space: SearchSpace, trials: int, seed: int):
        try:
            import optuna
        except ImportError:
            raise ValueError(
                "search='optuna' needs a package that is not installed; install it with: "
                "pip install 'fedjax_algos[optuna]'"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self.trials, self.seed = space, trials, seed
        self.batch = -(-trials // _BATCHES)
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=self.batch, constant_liar=True
        )
        self.failed = optuna.trial.TrialState.FAIL
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        self.distributions: dict[str, Any] = {
            name: optuna.distributions.FloatDistribution(*values, log=True)
            if isinstance(values, Interval)
            else optuna.distributions.CategoricalDistribution(values)
            for name, values in space.values.items()
        }
        self.points: dict[tuple, dict[str, Any]] = {}  # all that were asked, by their values
        self.asked: list[Any] = []

    def ask(self) -> list[dict[str, Any]]:
        """The next points, one or more, none of which came before. Empty at the end."""
        before = len(self.points)
        self.asked = [self._ask_one() for _ in range(min(self.batch, self.trials - before))]
        return list(self.points.values())[before:]

    def _ask_one(self):
        """A trial of the study whose point is new."""
        for _ in range(_MAX_PROPOSALS):
            trial = self.study.ask(self.distributions)
            if self._add(trial.params):
                return trial
            self.study.tell(trial, state=self.failed)  # the model leaves it out
        drawn = self.space.points(self.trials, self.seed)
        self.study.enqueue_trial(next(point for point in drawn if self._add(point)))
        return self.study.ask(self.distributions)

    def _add(self, params):
        """Keeps the point of a proposal; whether it is new."""
        point = {
            name: known.rounded(params[name]) if isinstance(known, Interval) else params[name]
            for name, known in self.space.values.items()
        }
        is_new = (key := tuple(point.values())) not in self.points
        self.points.setdefault(key, point)
        return is_new

    def tell(self, scores: Sequence[float]) -> None:
        """Adds the scores of the points of the last `ask`, in their order; NaN counts as 0."""
        for trial, score in zip(self.asked, scores, strict=True):
            self.study.tell(trial, score if math.isfinite(score) else 0.0)
