"""Figures of metrics, partitions and timelines, and the numbers of a timeline."""

from fedjax_algos.analysis.pictures.axes import AXES, picture_style, save_figure
from fedjax_algos.analysis.pictures.clients import plot_clients
from fedjax_algos.analysis.pictures.curves import BANDS, Style, method_styles
from fedjax_algos.analysis.pictures.metrics import LOG_AXES, draw_metric, plot_metric
from fedjax_algos.analysis.pictures.partitions import plot_partition
from fedjax_algos.analysis.pictures.timelines import (
    PlanSummary,
    draw_staleness,
    draw_timeline,
    idle_share,
    plot_staleness,
    plot_timeline,
    summarise_plan,
)

__all__ = [
    "AXES",
    "BANDS",
    "LOG_AXES",
    "PlanSummary",
    "Style",
    "draw_metric",
    "draw_staleness",
    "draw_timeline",
    "idle_share",
    "method_styles",
    "picture_style",
    "plot_clients",
    "plot_metric",
    "plot_partition",
    "plot_staleness",
    "plot_timeline",
    "save_figure",
    "summarise_plan",
]
