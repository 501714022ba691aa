"""Which evaluations are of a model that is not finite, and which runs have diverged."""

import math

import numpy as np

from fedjax_algos.core import Row

PREFIX = "test_"  # of the columns of an evaluation on test examples
METRIC = f"{PREFIX}accuracy"  # by which methods are compared, unless another one is named


def finite_quality(row: Row, metric: str = METRIC) -> float:
    """The quality of an evaluation; NaN if its model is not finite.

    A model of NaN always predicts class 0, whose accuracy is finite, so the test loss decides as
    well. The train loss does not: it is also NaN if all updates of some rounds were left out.

    Args:
      row: of the evaluation; the test loss may be missing.
      metric: column of the quality.
    """
    quality, loss = row.get(metric), row.get("test_loss")
    finite = loss is None or math.isfinite(loss)
    return float(quality) if quality is not None and finite and math.isfinite(quality) else math.nan


def diverged(quality: np.ndarray) -> np.ndarray:
    """Whether runs have diverged: the model of the last evaluation is not finite.

    Args:
      quality: float[..., evaluations], as of `finite_quality`; also NaN after the end of a run
        that has stopped before the others.

    Returns:
      bool[...].
    """
    return np.isnan(quality[..., -1])
