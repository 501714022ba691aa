"""Search by a model of the scores so far: optuna's tree-structured Parzen estimator, in batches."""

import math
from collections.abc import Sequence
from typing import Any

from fedjax_algos.runs.tuning.search_space import Interval, SearchSpace

_BATCHES = 4  # of settings that are proposed, and run, together


class ModelBasedSearch:
    """Proposes points of a search space, in batches that share a program.

    The same seed and scores give the same proposals.

    Args:
      space: of one method.
      trials: the number of points, over all batches.
      seed: of the proposals.

    Raises:
      ValueError: if optuna is not installed.
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
        self.space, self.left = space, trials
        self.batch = -(-trials // _BATCHES)
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=self.batch, constant_liar=True
        )
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        self.distributions: dict[str, Any] = {
            name: optuna.distributions.FloatDistribution(*values, log=True)
            if isinstance(values, Interval)
            else optuna.distributions.CategoricalDistribution(values)
            for name, values in space.values.items()
        }
        self.asked: list[Any] = []

    def __repr__(self) -> str:
        return f"ModelBasedSearch({self.space!r}, left={self.left})"

    def ask(self) -> list[dict[str, Any]]:
        """The next points, one or more; a point may come again. Empty at the end."""
        number = min(self.batch, self.left)
        self.left -= number
        self.asked = [self.study.ask(self.distributions) for _ in range(number)]
        return [
            {
                name: values.rounded(trial.params[name])
                if isinstance(values, Interval)
                else trial.params[name]
                for name, values in self.space.values.items()
            }
            for trial in self.asked
        ]

    def tell(self, scores: Sequence[float]) -> None:
        """Adds the scores of the points of the last `ask`.

        Args:
          scores: in the order of these points; NaN counts as 0.
        """
        for trial, score in zip(self.asked, scores, strict=True):
            self.study.tell(trial, score if math.isfinite(score) else 0.0)
