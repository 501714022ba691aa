"""Tuning: the same budget for all methods, on examples that no test set holds."""

from fedjax_algos.runs.tuning.search_space import Interval, SearchSpace, parse_spaces
from fedjax_algos.runs.tuning.trials import Trial
from fedjax_algos.runs.tuning.tuning import Tuning, prepare_tuning, run_tuning, tuned_text

__all__ = [
    "Interval",
    "SearchSpace",
    "Trial",
    "Tuning",
    "parse_spaces",
    "prepare_tuning",
    "run_tuning",
    "tuned_text",
]
