"""Figures of metrics over rounds, bytes, operations or time, with one style for each method."""

from fedjax_algos.analysis.plots.columns import AXES
from fedjax_algos.analysis.plots.curves import BANDS
from fedjax_algos.analysis.plots.metric_figure import LOG_AXES, draw_metric, plot_metric
from fedjax_algos.analysis.plots.styles import Style, method_styles

__all__ = [
    "AXES",
    "BANDS",
    "LOG_AXES",
    "Style",
    "draw_metric",
    "method_styles",
    "plot_metric",
]
