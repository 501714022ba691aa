"""Pictures of results."""

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_algos.analysis.summary import curves, interval
from fedjax_algos.runs.simulation import Row

AXES = {
    "round": "communication round",
    "upload_bytes": "uploaded megabytes, all clients",
    "download_bytes": "downloaded megabytes, all clients",
    "flops": "computation of all clients, GFLOP",
    "simulated_seconds": "virtual seconds",
    "wall_seconds": "seconds",
}
_COLOURS = 10  # of matplotlib's cycle
_INSIDE = 6  # methods that a legend inside the picture has room for
_UNITS = {"upload_bytes": 1e6, "download_bytes": 1e6, "flops": 1e9}


def plot_metric(rows: list[Row], path: Path, *, metric: str = "test_accuracy", x: str = "round"):
    """Draws a metric's mean over seeds for each method, with 95% confidence bands.

    Raises:
      ValueError: if not all rows have such a metric.
    """
    from matplotlib.figure import Figure  # slow to import; no pyplot, so no global state

    measured = [name for name in rows[0] if all(name in row for row in rows)]
    for what, name in (("metric", metric), ("x", x)):
        if name not in measured:
            known = [
                n for n in measured if n not in ("method", "seed") and (n in AXES) == (what == "x")
            ]
            raise ValueError(f"{what}={name!r} is unknown; choose from {', '.join(known)}")
    values, positions = curves(rows, metric), curves(rows, x)
    beside = len(values) > _INSIDE
    figure = Figure(figsize=(7.5 + 2 * beside, 4.6), layout="constrained")
    axes = figure.add_subplot()
    styles = ("-", "--", ":", "-.")
    for index, (label, by_seed) in enumerate(values.items()):
        style = styles[index // _COLOURS % len(styles)]  # where colours begin anew
        where = positions[label].mean(axis=0) / _UNITS.get(x, 1)
        mean = by_seed.mean(axis=0)
        (line,) = axes.plot(where, mean, label=label, linewidth=1.6, linestyle=style)
        if len(by_seed) > 1:
            half = np.array([interval(column) for column in by_seed.T])
            axes.fill_between(
                where, mean - half, mean + half, color=line.get_color(), alpha=0.15, lw=0
            )
    _cut_the_start(axes, [by_seed.mean(axis=0) for by_seed in values.values()])
    seeds = len(next(iter(values.values())))
    band = ", band: 95% confidence interval" if seeds > 1 else ""
    axes.set(xlabel=AXES[x], ylabel=metric.replace("_", " "))
    axes.set_title(f"mean of {seeds} seed{'s' * (seeds > 1)}{band}", fontsize=10)
    axes.grid(alpha=0.3)
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)} if beside else {}
    axes.legend(frameon=False, **place)
    figure.savefig(path, dpi=150)


def _cut_the_start(axes, means: list[np.ndarray]) -> None:
    """Limits the y axis to what the means do after a tenth of the run, where methods differ."""
    late = np.concatenate([mean[len(mean) // 10 :] for mean in means])
    late = late[np.isfinite(late)]
    if len(late) and late.max() > late.min():
        margin = 0.08 * (late.max() - late.min())
        axes.set_ylim(late.min() - margin, late.max() + margin)
