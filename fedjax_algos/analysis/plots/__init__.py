"""Figures of metrics over rounds, bytes, operations or time, with one style for each method."""

from fedjax_algos.analysis.labels import SEPARATOR
from fedjax_algos.analysis.plots.columns import AXES, Axis, axes_of
from fedjax_algos.analysis.plots.curves import BANDS
from fedjax_algos.analysis.plots.metric_figure import LOG_AXES, draw_metric, plot_metric
from fedjax_algos.analysis.plots.styles import Style, method_styles
from fedjax_algos.core.pictures import picture_style, save_figure

__all__ = [
    "AXES",
    "BANDS",
    "LOG_AXES",
    "SEPARATOR",
    "Axis",
    "Style",
    "axes_of",
    "draw_metric",
    "method_styles",
    "picture_style",
    "plot_metric",
    "save_figure",
]
