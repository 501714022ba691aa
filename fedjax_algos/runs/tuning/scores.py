"""The file of the scores that a search has so far, from which an interrupted one goes on."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedjax_algos.core.files import (
    checked_json,
    max_text_bytes,
    open_regular,
    parse_json,
    read_bounded,
    write_json,
)
from fedjax_algos.runs.batched.sweeps import Setting
from fedjax_algos.runs.saving.results_folder import ResultsFolder
from fedjax_algos.runs.tuning.trials import Trial


class Scores:
    """The scores of runs that have ended, by stage, setting and seed, in a file of the folder.

    Args:
      folder: of the results.

    Raises:
      ValueError: for a file that is damaged.
    """

    def __init__(self, folder: ResultsFolder):
        self.folder, self.path = folder, folder.path / "scores.json"
        self.scores = _read(self.path) if self.path.exists() else {}

    def get(self, stage: int, setting: Setting, seed: int) -> float | None:
        """The score of an ended run, NaN if its model was not finite; None for other runs."""
        key = _key(stage, setting, seed)
        score = self.scores.get(key)
        return math.nan if key in self.scores and score is None else score

    def add(self, stage: int, trials: Sequence[Trial]) -> None:
        """Writes the scores of trials, all of them or none."""
        for trial in trials:
            for seed, score in trial.scores.items():
                self.scores[_key(stage, trial.setting, seed)] = None if math.isnan(score) else score
        write_json(self.path, self.scores)


def _key(stage: int, setting: Setting, seed: int) -> str:
    return f"stage {stage}, {setting.method.label}, seed {seed}"


def _read(path: Path) -> dict[str, float | None]:
    fix = "delete it, and the search computes its scores again"
    try:
        with open_regular(path) as file:
            scores = checked_json(parse_json(read_bounded(file, max_text_bytes())))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); {fix}") from None
    if not all(map(_is_score, scores.values())):
        raise ValueError(f"{path} does not hold the scores of a search; {fix}")
    return scores


def _is_score(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isfinite(value))
