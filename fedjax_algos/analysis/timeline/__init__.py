"""Figures and numbers of a plan: its timeline, staleness, and the idle time of clients."""

from fedjax_algos.analysis.timeline.plots import (
    draw_staleness,
    draw_timeline,
    plot_staleness,
    plot_timeline,
)
from fedjax_algos.analysis.timeline.summary import PlanSummary, idle_share, summarise_plan

__all__ = [
    "PlanSummary",
    "draw_staleness",
    "draw_timeline",
    "idle_share",
    "plot_staleness",
    "plot_timeline",
    "summarise_plan",
]
