"""Figures of metrics, partitions and timelines, and the numbers of a timeline."""

from fedjax_algos.analysis.pictures.axes import AXES, Axis, axes_of, picture_style, save_figure
from fedjax_algos.analysis.pictures.curves import BANDS, Style, method_styles
from fedjax_algos.analysis.pictures.metrics import LOG_AXES, draw_metric, plot_metric
from fedjax_algos.analysis.pictures.partitions import plot_partition
from fedjax_algos.analysis.pictures.timeline_summary import PlanSummary, idle_share, summarise_plan
from fedjax_algos.analysis.pictures.timelines import (
    draw_staleness,
    draw_timeline,
    plot_staleness,
    plot_timeline,
)

__all__ = [
    "AXES",
    "BANDS",
    "LOG_AXES",
    "Axis",
    "PlanSummary",
    "Style",
    "axes_of",
    "draw_metric",
    "draw_staleness",
    "draw_timeline",
    "idle_share",
    "method_styles",
    "picture_style",
    "plot_metric",
    "plot_partition",
    "plot_staleness",
    "plot_timeline",
    "save_figure",
    "summarise_plan",
]
