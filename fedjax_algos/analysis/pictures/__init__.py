"""Figures of metrics, partitions and timelines, and the numbers of a timeline."""

from typing import TYPE_CHECKING

from fedjax_algos.base.lazy import listed

if TYPE_CHECKING:
    from fedjax_algos.analysis.pictures.axes import AXES as AXES
    from fedjax_algos.analysis.pictures.axes import picture_style as picture_style
    from fedjax_algos.analysis.pictures.axes import save_figure as save_figure
    from fedjax_algos.analysis.pictures.curves import BANDS as BANDS
    from fedjax_algos.analysis.pictures.curves import Style as Style
    from fedjax_algos.analysis.pictures.curves import method_styles as method_styles
    from fedjax_algos.analysis.pictures.distributions import draw_staleness as draw_staleness
    from fedjax_algos.analysis.pictures.distributions import plot_clients as plot_clients
    from fedjax_algos.analysis.pictures.distributions import plot_partition as plot_partition
    from fedjax_algos.analysis.pictures.distributions import plot_staleness as plot_staleness
    from fedjax_algos.analysis.pictures.metrics import LOG_AXES as LOG_AXES
    from fedjax_algos.analysis.pictures.metrics import draw_metric as draw_metric
    from fedjax_algos.analysis.pictures.metrics import plot_metric as plot_metric
    from fedjax_algos.analysis.pictures.timelines import PlanSummary as PlanSummary
    from fedjax_algos.analysis.pictures.timelines import draw_timeline as draw_timeline
    from fedjax_algos.analysis.pictures.timelines import idle_share as idle_share
    from fedjax_algos.analysis.pictures.timelines import plot_timeline as plot_timeline
    from fedjax_algos.analysis.pictures.timelines import summarise_plan as summarise_plan
else:
    __all__, __dir__, __getattr__ = listed(__name__)
