"""What the methods of a comparison reached at what cost, from their rows."""

from typing import NamedTuple

import numpy as np
from scipy import special

from fedjax_algos.runs.simulation import Row


class Reached(NamedTuple):
    """One method's summary; intervals are 95% confidence intervals of the mean over seeds."""

    label: str
    final: float  # mean over seeds of the last test accuracy
    final_interval: float  # half the width
    best: float  # mean over seeds of the best test accuracy
    best_interval: float
    rounds: float | None  # median over seeds, of the rounds to the target; None below half
    upload_bytes: float | None  # likewise
    simulated_seconds: float | None  # likewise, on the virtual clock; None without one
    flops: float | None  # likewise, of all clients; also None where it was not measured
    seeds_reaching: int
    seeds_diverged: int  # whose last test accuracy or test loss is not finite
    seconds: float  # median over seeds


def curves(rows: list[Row], column: str) -> dict[str, np.ndarray]:
    """A column of each method as an array [seeds, evaluations]; NaN where there is no value."""
    methods = dict.fromkeys(row["method"] for row in rows)
    seeds = dict.fromkeys(row["seed"] for row in rows)
    return {
        method: np.array(
            [
                [
                    row.get(column, np.nan)
                    for row in rows
                    if row["method"] == method and row["seed"] == seed
                ]
                for seed in seeds
            ],
            float,
        )
        for method in methods
    }


def interval(values: np.ndarray) -> float:
    """Half the width of the 95% confidence interval of the mean (Student's t); NaN for one."""
    if len(values) < 2:
        return float("nan")
    spread = values.std(ddof=1) / np.sqrt(len(values))
    return float(special.stdtrit(len(values) - 1, 0.975) * spread)


_SUMMARISED = (
    "test_accuracy",
    "test_loss",
    "round",
    "simulated_seconds",
    "upload_bytes",
    "flops",
    "wall_seconds",
)


def summarise(rows: list[Row], target: float | None = None) -> list[Reached]:
    """One line a method.

    Args:
      rows: of all methods on the same seeds.
      target: the test accuracy to reach; if None, for each seed the first method's best on it.
    """
    columns = {name: curves(rows, name) for name in _SUMMARISED if any(name in row for row in rows)}
    accuracy = columns["test_accuracy"]
    # fmax passes NaN over: a method that diverged had a best before
    bests = {label: np.fmax.reduce(values, axis=1) for label, values in accuracy.items()}
    targets = next(iter(bests.values()))
    if target is not None:
        targets = np.full_like(targets, target)
    lines = []
    for label, values in accuracy.items():
        hit = values >= targets[:, None]
        first = np.where(hit.any(axis=1), hit.argmax(axis=1), -1)

        def median(name, label=label, first=first):
            if name not in columns or 2 * (first >= 0).sum() < len(first):
                return None
            measured = zip(columns[name][label], first, strict=True)
            cost = [row[index] if index >= 0 else np.inf for row, index in measured]
            middle = float(np.quantile(cost, 0.5, method="lower"))
            return middle if np.isfinite(middle) else None

        ends = [
            columns[name][label][:, -1]
            for name in ("test_accuracy", "test_loss")
            if name in columns
        ]
        lines.append(
            Reached(
                label,
                final=float(values[:, -1].mean()),
                final_interval=interval(values[:, -1]),
                best=float(bests[label].mean()),
                best_interval=interval(bests[label]),
                rounds=median("round"),
                upload_bytes=median("upload_bytes"),
                simulated_seconds=median("simulated_seconds"),
                flops=median("flops"),
                seeds_reaching=int((first >= 0).sum()),
                seeds_diverged=int((~np.isfinite(ends).all(axis=0)).sum()),
                seconds=float(np.median(columns["wall_seconds"][label][:, -1])),
            )
        )
    return lines
