"""Makes the rows of runs, limits them to a budget, and converts their columns to arrays."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.statistics import METRIC
from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import check_memory
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice

BUDGETS = (
    "round", "upload_bytes", "download_bytes", "flops", "simulated_seconds", "wall_seconds",
    "epsilon",
)  # fmt: skip
_ROW_BYTES = 500  # the least memory of an evaluation's row


def check_evaluations(evaluations: int, fix: str) -> None:
    """Raises ValueError if this many rows do not fit into memory; `fix` says what to change."""
    check_memory(f"the rows of {evaluations} evaluations", evaluations * _ROW_BYTES, fix)


class Budget(NamedTuple):
    """A limit on what a run may cost, in a column of its rows."""

    column: str
    most: float

    @classmethod
    def of(cls, text: str) -> "Budget":
        """Parses a text such as `upload_bytes=5e5`; raises ValueError for other texts."""
        column, _, number = text.partition("=")
        check_choice("the column of a budget", column, BUDGETS)
        try:
            most = float(number)
        except ValueError:
            most = np.nan
        message = f"budget={text!r} is not a budget; give {column}=NUMBER, above 0"
        require(0 < most < np.inf, message)
        return cls(column, most)

    def is_used(self, row: Row) -> bool:
        """Returns True if a run has used the budget at an evaluation."""
        return row[self.column] >= self.most

    def within(self, rows: list[Row]) -> list[Row]:
        """Replaces each row beyond the budget by the run's last row within it."""
        known = all(not np.isnan(row.get(self.column, np.nan)) for row in rows)
        require(known, f"the rows have no {self.column}; give a budget of another column")
        replaced: list[Row] = []
        for run in _runs(self.repeat_last(rows)):
            within = [row for row in run if row[self.column] <= self.most]
            replaced += within + within[-1:] * (len(run) - len(within))
        return replaced

    def repeat_last(self, rows: list[Row]) -> list[Row]:
        """Repeats the last row of runs that have used the budget, so that all are as long."""
        runs = _runs(rows)
        most = max(map(len, runs), default=0)
        missing = [(most - len(run)) * self.is_used(run[-1]) for run in runs]
        return [row for run, n in zip(runs, missing, strict=True) for row in run + run[-1:] * n]

    def describe(self, rows: list[Row]) -> list[str]:
        """Writes notes for a table of the rows `within`; they name methods below the budget."""
        used = {row["method"] for row in rows if self.is_used(row)}
        less = [label for label in rows_by_run(rows) if label not in used]
        note = f"All values are of the last evaluation with at most {self.most:g} {self.column}."
        return [note] + [f"Ended before: {', '.join(less)}."] * bool(less)


def _runs(rows):
    return [run for by_seed in rows_by_run(rows).values() for run in by_seed.values()]


def within_budget(rows: list[Row], text: str | None) -> tuple[list[Row], list[str]]:
    """Returns the rows within a budget (None keeps all), and notes for a table."""
    if text is None:
        return rows, []
    budget = Budget.of(text)
    return budget.within(rows), budget.describe(rows)


def metrics_row(
    round_number: int,
    metrics: Mapping[str, float],
    *,
    download_bytes: float,
    upload_bytes: float,
    flops: float,
    wall_seconds: float,
    simulated_seconds: float | None = None,
    arrivals: int | None = None,
    lost: int | None = None,
    excluded_updates: int | None = None,
    participation_gini: float | None = None,
    epsilon: float | None = None,
) -> Row:
    """Makes the row of one evaluation of a run, with its columns in the order of metrics.csv.

    Costs are totals over all clients since the start of the run. Comparisons, sweeps and
    `run_batched` put the columns `method` and `seed` before these.

    Args:
      round_number: column `round`: completed rounds, or server steps on the virtual clock.
      metrics: `train_loss`, the mean over all examples of all local steps since the last row (not
        in the first row), NaN if no update since then was used; `test_loss` and the problem's
        metrics as `test_...`.
      download_bytes: bytes sent to clients.
      upload_bytes: bytes sent by clients.
      flops: operations of the clients, see `count_flops`; NaN if they cannot be counted.
      wall_seconds: real time, including compilation.
      simulated_seconds: time on the virtual clock; None in a synchronous run.
      arrivals: the number of updates that have arrived; None in a synchronous run.
      lost: the number of dispatches whose update did not arrive; None in rounds without failures.
      excluded_updates: the number of non-finite updates left out; None if they are kept.
      participation_gini: the Gini coefficient of the clients' numbers of dispatches; None if
        cohorts are chosen among candidates, because the host does not know the choice.
      epsilon: an upper bound of the epsilon of all rounds so far; None for methods that are not
        private.
    """
    row = {
        "round": round_number,
        "simulated_seconds": simulated_seconds,
        **metrics,
        "arrivals": arrivals,
        "lost": lost,
        "excluded_updates": excluded_updates,
        "participation_gini": participation_gini,
        "epsilon": epsilon,
        "download_bytes": download_bytes,
        "upload_bytes": upload_bytes,
        "flops": flops,
        "wall_seconds": wall_seconds,
    }
    return {name: value for name, value in row.items() if value is not None}


def finite_quality(row: Row, metric: str = METRIC) -> float:
    """Returns the quality of an evaluation; NaN if its model is not finite."""
    # A model of NaN predicts class 0, so its accuracy is finite. The train loss does not tell: it
    # is also NaN if all updates since the last row were left out.
    quality, loss = row.get(metric), row.get("test_loss")
    finite = loss is None or math.isfinite(loss)
    return float(quality) if quality is not None and finite and math.isfinite(quality) else math.nan


def gini(amounts: Sequence[float] | np.ndarray) -> float:
    """Computes the Gini coefficient of float[n] >= 0: 0 if all equal, 1 - 1/n if one has all."""
    ordered, number = np.sort(amounts).astype(float), len(amounts)
    weights = 2 * np.arange(1, number + 1) - number - 1
    return float(weights @ ordered / (number * ordered.sum())) if ordered.any() else 0.0


def rows_by_run(rows: list[Row]) -> dict[str, dict[float, list[Row]]]:
    """Groups rows by method and seed, in their order."""
    runs: dict[str, dict[float, list[Row]]] = {}
    for row in rows:
        runs.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row)
    return runs


def column_by_method(rows: list[Row], column: str) -> dict[str, np.ndarray]:
    """Returns a column by method, float64[seeds, evaluations]; NaN where it was not measured."""
    seeds = dict.fromkeys(row["seed"] for row in rows)
    arrays = {}
    for method, by_seed in rows_by_run(rows).items():
        values = np.full((len(seeds), max(map(len, by_seed.values()))), np.nan)
        for curve, seed in zip(values, seeds, strict=True):
            if seed not in by_seed:
                fix = "give the rows of all methods on the same seeds"
                raise ValueError(f"method {method!r} has no rows on seed {seed:g}; {fix}")
            measured = [row.get(column, np.nan) for row in by_seed[seed]]
            curve[: len(measured)] = np.array(measured, float)
        arrays[method] = values
    return arrays


def quality_by_method(rows: list[Row], metric: str = METRIC) -> dict[str, np.ndarray]:
    """Returns `column_by_method` of a metric, with NaN where the model is not finite."""
    return column_by_method([row | {metric: finite_quality(row, metric)} for row in rows], metric)
