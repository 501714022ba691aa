"""The columns of a comparison's rows as arrays, one for each method."""

import numpy as np

from fedjax_algos.analysis.statistics import METRIC, finite_quality
from fedjax_algos.core import Row


def column_by_method(rows: list[Row], column: str) -> dict[str, np.ndarray]:
    """The values of one column, by method.

    Args:
      rows: with `method` and `seed`; all methods have the same seeds. Evaluations are the same for
        all seeds of a method, except that the rows of a diverged run end early.
      column: its name.

    Returns:
      float64[seeds, evaluations] for each method; NaN where a row lacks the column, and after the
      end of a diverged run.

    Raises:
      ValueError: for a method that has no rows on a seed.
    """
    seeds = dict.fromkeys(row["seed"] for row in rows)
    curves: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        by_seed = curves.setdefault(row["method"], {seed: [] for seed in seeds})
        by_seed[row["seed"]].append(row.get(column, np.nan))
    for method, by_seed in curves.items():
        longest = max(map(len, by_seed.values()))
        for seed, curve in by_seed.items():
            if not curve:
                raise ValueError(
                    f"method {method!r} has no rows on seed {seed:g}; give the rows of all methods "
                    "on the same seeds"
                )
            curve.extend([np.nan] * (longest - len(curve)))
    return {method: np.array([*by_seed.values()], float) for method, by_seed in curves.items()}


def quality_by_method(rows: list[Row], metric: str = METRIC) -> dict[str, np.ndarray]:
    """The quality of each method, NaN where the model is not finite; see `column_by_method`.

    Args:
      rows: of all methods on the same seeds.
      metric: column of the quality.
    """
    return column_by_method([row | {metric: finite_quality(row, metric)} for row in rows], metric)
