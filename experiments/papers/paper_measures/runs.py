"""Runs as arrays of their evaluations, and the quantities that the papers' summaries share.

Rows have the columns of `metrics_row`, and `method` and `seed`. An evaluation whose metric or test
loss is not finite belongs to a diverged run: it reaches no target and is no maximum.
"""

from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.rows import finite_quality
from fedjax_algos.analysis.statistics import diverged, first_at
from fedjax_algos.core import Row


class Run(NamedTuple):
    """One method on one seed. Columns are NaN where a row lacks them."""

    method: str
    seed: float
    quality: np.ndarray  # float[evaluations], NaN where the run has diverged
    columns: dict[str, np.ndarray]  # float[evaluations] each

    def has_diverged(self) -> bool:
        """Whether the run has diverged; it may have stopped before the others."""
        return bool(diverged(self.quality))


class Seeds(list[Run]):
    """The runs of one method."""

    def best(self) -> np.ndarray:
        """The highest quality of each seed, float[seeds]."""
        return np.array([np.fmax.reduce(run.quality) for run in self])

    def on(self, others: "Seeds") -> "Seeds":
        """The runs on the seeds of another method, in their order, without those that lack."""
        by_seed = {run.seed: run for run in self}
        return Seeds(by_seed[other.seed] for other in others if other.seed in by_seed)

    def diverged(self) -> int:
        """The number of seeds that have diverged."""
        return sum(bool(diverged(run.quality)) for run in self)

    def reaching(self, target: float) -> "Seeds":
        """The runs that reach the target."""
        return Seeds(run for run in self if first_at(run.quality, target) is not None)

    def mean_at(self, column: str, indices) -> float | None:
        """The mean over seeds of a column at int or int[seeds]; None if it was not measured."""
        at = zip(self, np.broadcast_to(indices, len(self)), strict=True)
        mean = np.mean(
            [run.columns[column][i] if column in run.columns else np.nan for run, i in at]
        )
        return float(mean) if np.isfinite(mean) else None

    def mean_when_reached(self, column: str, target: float) -> float | None:
        """The mean of a column at the target, over the seeds that reach it.

        Seeds that do not reach it are left out, so the mean over all seeds would be larger. It is
        None if fewer than half of the seeds reach the target.
        """
        reaching = self.reaching(target)
        if 2 * len(reaching) < len(self):
            return None
        return reaching.mean_at(column, [first_at(run.quality, target) for run in reaching])

    def at_target(self, column: str, target: float) -> np.ndarray:
        """A column at the target, float[seeds]; infinite for a seed that does not reach it."""
        found = [first_at(run.quality, target) for run in self]
        return np.array(
            [
                np.inf if index is None else run.columns[column][index]
                for run, index in zip(self, found, strict=True)
            ]
        )

    def per_round(self, *columns: str) -> float | None:
        """The sum of cost columns per round, over the whole runs; None if one was not measured."""
        totals = [self.mean_at(name, -1) for name in columns]
        measured = [total for total in totals if total is not None]
        rounds = self.mean_at("round", -1)
        return sum(measured) / rounds if rounds and len(measured) == len(totals) else None


def runs_of(rows: list[Row], metric: str) -> dict[str, Seeds]:
    """The runs of each method, from the rows that hold an evaluation, in their order."""
    if not rows:
        raise ValueError("there are 0 rows; give those that comparison.run returns")
    grouped: dict[str, dict[float, list[Row]]] = {}
    for row in rows:
        missing = [name for name in ("method", "seed", "round") if name not in row]
        if missing:
            raise ValueError(
                f"a row of the columns {', '.join(row)} lacks {missing[0]!r}; add the method and "
                "the seed to what simulate returns, as comparison.run does"
            )
        grouped.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row)
    return {
        method: Seeds(_run(method, seed, own, metric) for seed, own in seeds.items())
        for method, seeds in grouped.items()
    }


def _run(method: str, seed: float, rows: list[Row], metric: str) -> Run:
    evaluated = [row for row in rows if row.get(metric) is not None]
    if not evaluated:
        names = dict.fromkeys(name for row in rows for name in row)
        raise ValueError(
            f"no row of method {method!r} on seed {seed:g} has {metric!r}; run it with test "
            f"examples, or choose a metric out of {', '.join(names)}"
        )
    names = dict.fromkeys(
        name for row in evaluated for name, value in row.items() if not isinstance(value, str)
    )
    columns = {name: np.array([row.get(name) for row in evaluated], float) for name in names}
    decreases = np.flatnonzero(np.diff(columns["round"]) < 0)
    if len(decreases):
        before, after = columns["round"][decreases[0] : decreases[0] + 2]
        raise ValueError(
            f"method {method!r} on seed {seed:g} goes from round {before:g} back to {after:g}; "
            "give each run once, and every method a label of its own"
        )
    quality = np.array([finite_quality(row, metric) for row in evaluated])
    return Run(method, seed, quality, columns)


def check_target(target: float) -> None:
    """Raises ValueError for a target that is not finite."""
    if not np.isfinite(target):
        raise ValueError(f"target={target} is out of range; give a finite quality, such as 0.9")
