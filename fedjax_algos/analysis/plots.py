"""Figures of a metric over rounds, bytes, operations or time."""

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_algos.analysis.statistics import describe_spread, spread
from fedjax_algos.analysis.summary import column_by_method
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice
from fedjax_algos.core.texts import printable

AXES = {  # columns for the x axis, and their labels
    "round": "communication round",
    "upload_bytes": "uploaded megabytes, all clients",
    "download_bytes": "downloaded megabytes, all clients",
    "flops": "computation of all clients, GFLOP",
    "simulated_seconds": "simulated seconds",
    "wall_seconds": "seconds",
}
_SCALES = {"upload_bytes": 1e6, "download_bytes": 1e6, "flops": 1e9}
_CYCLE_LENGTH = 10  # colours of matplotlib's default cycle
_LINE_STYLES = ("-", "--", ":", "-.")  # one for each pass through the colours
_MAX_CHARACTERS = 80  # of a label
_MAX_INSIDE_LEGEND = 6  # methods; a longer legend is placed beside the axes


def plot_metric(
    rows: list[Row], path: Path, *, metric: str = "test_accuracy", x: str = "round"
) -> None:
    """Plots the mean over seeds of a metric for each method, with a band as in `statistics.spread`.

    Args:
      rows: of all methods on the same seeds.
      path: the file to write; its suffix says the format.
      metric: column of the y axis.
      x: column of the x axis, one of `AXES`.

    Raises:
      ValueError: if not all rows have these columns, or for an unknown format.
    """
    # slow to import; no pyplot, so no global state
    from matplotlib.backend_bases import FigureCanvasBase
    from matplotlib.figure import Figure

    check_choice("suffix", path.suffix.lower(), [f".{name}" for name in FigureCanvasBase.filetypes])
    measured = [name for name in rows[0] if all(name in row for row in rows)]
    check_choice("metric", metric, [name for name in measured if name not in ("method", "seed")])
    check_choice("x", x, [name for name in measured if name in AXES])
    values, positions = column_by_method(rows, metric), column_by_method(rows, x)
    legend_beside = len(values) > _MAX_INSIDE_LEGEND
    figure = Figure(figsize=(7.5 + 2 * legend_beside, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for index, (label, by_seed) in enumerate(values.items()):
        style = _LINE_STYLES[index // _CYCLE_LENGTH % len(_LINE_STYLES)]
        mean_x = positions[label].mean(axis=0) / _SCALES.get(x, 1)
        mean = by_seed.mean(axis=0)
        (line,) = axes.plot(mean_x, mean, label=str(index), linewidth=1.6, linestyle=style)
        if len(by_seed) > 1:
            axes.fill_between(mean_x, *spread(by_seed), color=line.get_color(), alpha=0.15, lw=0)
    _limit_y_axis(axes, [by_seed.mean(axis=0) for by_seed in values.values()])
    seeds = len(next(iter(values.values())))
    band = f", band: {describe_spread(seeds)}" if seeds > 1 else ""
    axes.set_xlabel(AXES[x])
    axes.set_ylabel(_shown(metric.replace("_", " ")), parse_math=False)
    axes.set_title(f"mean of {seeds} seed{'s' * (seeds > 1)}{band}", fontsize=10)
    axes.grid(alpha=0.3)
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    legend = axes.legend(frameon=False, **(beside if legend_beside else {}))
    for text, label in zip(legend.get_texts(), values, strict=True):
        text.set(text=_shown(label), parse_math=False)  # as it is, also with $ or _ in front
    figure.savefig(path, dpi=150)


def _shown(text: str) -> str:
    return printable(text, longest=_MAX_CHARACTERS)


def _limit_y_axis(axes, means):
    """Fits the y axis to the means after the first tenth of the run, where methods differ."""
    late = np.concatenate([mean[len(mean) // 10 :] for mean in means])
    late = late[np.isfinite(late)]
    if len(late) and late.max() > late.min():
        margin = 0.08 * (late.max() - late.min())
        axes.set_ylim(late.min() - margin, late.max() + margin)
