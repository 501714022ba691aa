"""What the four papers report of their runs, from the rows of `simulate` and `comparison.run`.

Rows have the columns of `metrics_row`, and `method` and `seed`. An evaluation whose metric or test
loss is not finite belongs to a diverged run: it reaches no target and is no maximum.
"""

from typing import Any

from fedjax_algos.analysis.papers.fedcompass import FirstTime, time_to_target
from fedjax_algos.analysis.papers.fedgbo import Cost, Maximum, maximum_and_cost
from fedjax_algos.analysis.papers.fedlga import Target, rounds_to_target
from fedjax_algos.analysis.papers.ghbm import Final, final_quality
from fedjax_algos.analysis.statistics import METRIC, TOLERANCE
from fedjax_algos.core import Row
from fedjax_algos.core.options import unknown

__all__ = [
    "METRIC",
    "PAPERS",
    "TOLERANCE",
    "WITHOUT_REFERENCE",
    "WITHOUT_TARGET",
    "Cost",
    "Final",
    "FirstTime",
    "Maximum",
    "Target",
    "check_paper",
    "final_quality",
    "maximum_and_cost",
    "of_paper",
    "rounds_to_target",
    "time_to_target",
]

PAPERS = ("fedgbo", "fedlga", "ghbm", "fedcompass")
WITHOUT_TARGET = ("fedgbo", "ghbm")  # it is what the reference reaches
WITHOUT_REFERENCE = ("fedlga",)


def of_paper(
    rows: list[Row],
    paper: str,
    reference: str | None = None,
    target: float | None = None,
    *,
    metric: str = METRIC,
) -> list[Any]:
    """Summarises a comparison as one of the papers does.

    Args:
      rows: of all methods.
      paper: "fedgbo" for `maximum_and_cost`, "fedlga" for `rounds_to_target`, "ghbm" for
        `final_quality`, "fedcompass" for `time_to_target`.
      reference: the method that the others are compared with; None is "fedcompass" for FedCompass
        and "fedavg" for the others. FedLGA has none.
      target: the quality to reach, for FedLGA and FedCompass only.
      metric: column of the quality; higher is better.

    Returns:
      One entry for each method.

    Raises:
      ValueError: as `check_paper`, for a missing target, and as the function of the paper.
    """
    check_paper(paper, reference, target)
    if reference is None:
        reference = "fedcompass" if paper == "fedcompass" else "fedavg"
    if paper == "fedgbo":
        return maximum_and_cost(rows, reference, metric=metric)
    if paper == "ghbm":
        return final_quality(rows, reference, metric=metric)
    if target is None:
        raise ValueError(f"paper={paper} needs target; give a quality such as 0.9")
    if paper == "fedlga":
        return rounds_to_target(rows, target, metric=metric)
    return time_to_target(rows, target, reference, metric=metric)


def check_paper(paper: str | None, reference: str | None, target: float | None) -> None:
    """Raises ValueError for an unknown paper, and for what the summary of a paper does not have.

    Args:
      paper: one of `PAPERS`; None for no paper.
      reference: the one that is given.
      target: likewise.
    """
    if paper is not None and paper not in PAPERS:
        raise ValueError(unknown("paper", paper, PAPERS))
    if reference is not None and paper in WITHOUT_REFERENCE:
        raise ValueError(f"paper={paper} has no reference, but {reference=} is given; leave it out")
    if target is not None and paper in WITHOUT_TARGET:
        raise ValueError(
            f"paper={paper} has no target but what the reference reaches; leave {target=} out"
        )
