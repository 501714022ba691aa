"""The curve of a method: its mean over seeds, and the band around it."""

from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.plots.columns import Limits
from fedjax_algos.analysis.rows import column_by_method
from fedjax_algos.analysis.statistics import (
    MIN_SEEDS_OF_AN_INTERVAL,
    SPREADS,
    choose_spread,
    spread,
)
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice

_MARGIN = 0.08  # above and below the curves, of their height
OUTSIDE = "outside the limits"  # what is said of such a method
BANDS = {  # and how a figure says it
    "none": "",
    **{name: f", band: {text}" for name, text in SPREADS.items()},
    "seeds": ", thin lines: each seed",
}


class Curve(NamedTuple):
    """What is drawn of a method. Values that are not finite are NaN."""

    x: np.ndarray  # float[evaluations], the mean over seeds
    mean: np.ndarray  # float[evaluations]
    low: np.ndarray  # float[evaluations], of the band or the seeds' lines, else the mean
    high: np.ndarray  # float[evaluations], likewise
    lines: list[tuple[np.ndarray, np.ndarray]]  # x and y of each seed, if it is drawn
    lost: int  # seeds whose last value is not finite
    seeds: int


def choose_band(band: str | None, seeds: int) -> str:
    """The band of a figure: the one that is asked for, else the default.

    Args:
      band: one of `BANDS`, or None.
      seeds: number of seeds of the panel with the fewest.

    Raises:
      ValueError: for an unknown band, or an interval of fewer than five seeds.
    """
    if band is None:
        return choose_spread(seeds) if seeds > 1 else "none"
    check_choice("band", band, BANDS)
    if band == "interval" and seeds < MIN_SEEDS_OF_AN_INTERVAL:
        raise ValueError(
            f"band='interval' needs at least {MIN_SEEDS_OF_AN_INTERVAL} seeds, but there are "
            f"{seeds}; choose range or seeds, or run more seeds"
        )
    return band


def curves_of(rows: list[Row], metric: str, x: str, band: str) -> dict[str, Curve]:
    """The curves of all methods of a panel, by label.

    Args:
      rows: of all methods on the same seeds.
      metric: column of the y axis.
      x: column of the x axis.
      band: one of `BANDS`.
    """
    values, positions = column_by_method(rows, metric), column_by_method(rows, x)
    with np.errstate(over="ignore", invalid="ignore"):
        return {label: _curve(positions[label], values[label], band) for label in values}


def _curve(x: np.ndarray, y: np.ndarray, band: str) -> Curve:
    x, y = _finite(x), _finite(y)
    mean = _finite(y.mean(axis=0))
    low = high = mean
    if band in SPREADS:
        low, high = map(_finite, spread(y, band))
    elif band == "seeds":  # fmin and fmax ignore NaN: the other seeds go on
        low, high = np.fmin.reduce(y), np.fmax.reduce(y)
    lines = list(zip(x, y, strict=True)) if band == "seeds" else []
    lost = int(np.isnan(y[:, -1]).sum())
    return Curve(_finite(x.mean(axis=0)), mean, low, high, lines, lost, len(y))


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def fit_y_limits(
    curves: list[Curve], given: Limits, x_limits: Limits, *, logarithmic: bool, whole: bool
) -> Limits:
    """The limits of a y axis: those that are given, else those that the curves need.

    Args:
      curves: of all methods, and of all panels with the same metric.
      given: limits; None for the default.
      x_limits: of the x axis; what is outside does not count.
      logarithmic: whether the y axis is.
      whole: whether the first tenth of a curve counts. Over rounds and costs methods hardly differ
        there, and the axis would be as high as their common start; in simulated time their first
        server steps are at different times, and a curve would begin in the middle of the figure.
    """
    left, right = (
        default if end is None else end
        for end, default in zip(x_limits, (-np.inf, np.inf), strict=True)
    )
    parts = [np.empty(0)]
    for curve in curves:
        visible = (curve.x >= left) & (curve.x <= right)
        visible[: 0 if whole else len(visible) // 10] = False
        least = min(0.0, float(np.fmin.reduce(curve.mean, initial=0.0)))
        low = np.maximum(curve.low, least)  # no accuracy is below 0, although an interval may be
        parts += [values[visible] for values in (curve.mean, low, curve.high)]
    values = np.concatenate(parts)
    values = values[np.isfinite(values) & ((values > 0) | (not logarithmic))]
    if not len(values) or values.min() == values.max():
        return given
    ends = np.array([values.min(), values.max()])
    ends = np.log10(ends) if logarithmic else ends
    ends = ends + _MARGIN * (ends[1] - ends[0]) * np.array([-1, 1])
    low, high = (10**ends if logarithmic else ends).tolist()
    return low if given[0] is None else given[0], high if given[1] is None else given[1]
