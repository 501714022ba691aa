"""Runs as their evaluations, and what the papers' summaries read off them."""

from typing import NamedTuple

import numpy as np

from fedjax_algos.runs.simulation import Row

METRIC = "test_accuracy"
TOLERANCE = 1e-6  # .9 in float32 is below .9


class Run(NamedTuple):
    """One method on one seed; the columns that a row lacks are NaN there."""

    method: str
    seed: float
    quality: np.ndarray  # float[evaluations], NaN where it diverged
    columns: dict[str, np.ndarray]  # float[evaluations] each


def first_at(quality: np.ndarray, target: float) -> int | None:
    """Index of the first evaluation that reaches the target."""
    hits = np.flatnonzero(quality >= target - TOLERANCE)
    return int(hits[0]) if len(hits) else None


class Seeds(list[Run]):
    """One method's runs."""

    def best(self):
        """float[seeds]: each seed's highest quality."""
        return np.array([np.fmax.reduce(run.quality) for run in self])

    def diverged(self):
        return sum(bool(np.isnan(run.quality).any()) for run in self)

    def reaching(self, target):
        """Those that reach the target."""
        return Seeds(run for run in self if first_at(run.quality, target) is not None)

    def mean_at(self, name, indices):
        """A column's mean at one evaluation of each, None where it is not known."""
        at = zip(self, np.broadcast_to(indices, len(self)), strict=True)
        mean = np.mean([run.columns[name][i] if name in run.columns else np.nan for run, i in at])
        return float(mean) if np.isfinite(mean) else None

    def mean_when_reached(self, name, target):
        """A column's mean at the target over those that reach it, None if that is below half."""
        reaching = self.reaching(target)
        if 2 * len(reaching) < len(self):
            return None
        return reaching.mean_at(name, [first_at(run.quality, target) for run in reaching])

    def per_round(self, *names):
        """Sum of cost columns in a mean round of the whole runs, None where one is not known."""
        *totals, rounds = (self.mean_at(name, -1) for name in (*names, "round"))
        return None if None in totals or not rounds else sum(totals) / rounds


def runs_of(rows: list[Row], metric: str) -> dict[str, Seeds]:
    """The rows that hold an evaluation, by method and seed, in the order in which they come."""
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
    fall = np.flatnonzero(np.diff(columns["round"]) < 0)
    if len(fall):
        raise ValueError(
            f"method {method!r} on seed {seed:g} goes from round {columns['round'][fall[0]]:g} "
            f"back to {columns['round'][fall[0] + 1]:g}; give each run once, and every method a "
            "label of its own"
        )
    # the accuracy of a model of NaNs is that of always answering 0; an absent loss says nothing
    losses = [row.get("test_loss") for row in evaluated]
    sound = np.isfinite(columns[metric]) & [loss is None or np.isfinite(loss) for loss in losses]
    return Run(method, seed, np.where(sound, columns[metric], np.nan), columns)


def check_target(target):
    if not np.isfinite(target):
        raise ValueError(f"target={target} is out of range; give a finite quality, such as 0.9")


def check_method(name, label, runs):
    if label not in runs:
        raise ValueError(f"{name}={label!r} is no method of these rows; choose {' or '.join(runs)}")
