"""The FedCompass paper's summary: the time at which a target is first reached.

Source: Tables 1 and 14 of Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on
Heterogeneous Client Devices Using a Computing Power-Aware Scheduler", ICLR 2024,
https://arxiv.org/abs/2309.14675.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fedjax_algos.analysis.statistics import METRIC
from fedjax_algos.analysis.summary import ratio_on_common_seeds
from fedjax_algos.analysis.tables import Column, SeedCount, percentages
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice
from paper_measures.runs import check_target, runs_of
from paper_measures.tables import BEST, LEFT_OUT, REACHED, marked, reached


class FirstTime(NamedTuple):
    """The result of `time_to_target` for one method.

    Attributes:
      time: mean over the seeds that reach the target; None if fewer than half do.
      relative: the mean time divided by the reference's, over the seeds on which both reach the
        target; None if there are none, or if either time is None.
      seeds_common: the number of these seeds.
      best: mean over seeds of each seed's highest quality.
      best_deviation: standard deviation over seeds (n - 1); NaN for one.
    """

    label: str
    time: float | None
    relative: float | None
    seeds_common: int
    best: float
    best_deviation: float
    seeds_reaching: int
    seeds_diverged: int
    seeds: int


def time_to_target(
    rows: list[Row],
    target: float,
    reference: str = "fedcompass",
    *,
    clock: str = "simulated_seconds",
    metric: str = METRIC,
) -> list[FirstTime]:
    """The time at which a target is first reached, relative to one method, and the best quality.

    None here is a dash in the paper. The paper divides means; here both means are over the common
    seeds, as otherwise the quotient would be of different seeds.
    """
    check_target(target)
    runs = runs_of(rows, metric)
    check_choice("reference", reference, runs)
    for label, seeds in runs.items():
        for run in seeds:
            check_choice(f"method {label!r}: clock", clock, run.columns)
    times = {label: seeds.mean_when_reached(clock, target) for label, seeds in runs.items()}
    ratios = {
        label: _relative(seeds, runs[reference], clock, target) for label, seeds in runs.items()
    }
    return [
        FirstTime(
            label,
            time=times[label],
            relative=None if None in (times[label], times[reference]) else ratios[label][0],
            seeds_common=ratios[label][1],
            best=float(seeds.best().mean()),
            best_deviation=float(seeds.best().std(ddof=1)) if len(seeds) > 1 else float("nan"),
            seeds_reaching=len(seeds.reaching(target)),
            seeds_diverged=seeds.diverged(),
            seeds=len(seeds),
        )
        for label, seeds in runs.items()
    ]


def _relative(seeds, reference, clock, target):
    own, others = (
        each.at_target(clock, target) for each in (seeds.on(reference), reference.on(seeds))
    )
    return ratio_on_common_seeds(own, others)


def columns_of(lines: Sequence[FirstTime]) -> tuple[list[Column], list[str]]:
    """The columns and the notes of the table."""
    columns = [
        Column("simulated time", marked(lines, "time"), unit="s"),
        Column("relative", [line.relative for line in lines], ".2f"),
        Column("common seeds", [SeedCount(line.seeds_common, line.seeds) for line in lines]),
        percentages("best", [line.best for line in lines]),
        percentages("deviation", [line.best_deviation for line in lines]),
        reached(lines),
    ]
    notes = [
        "simulated time: to the target, mean over the seeds that reach it, if half of them do.",
        LEFT_OUT,
        "relative: mean time divided by the reference's, over the common seeds, on which both "
        "reach the target.",
        f"{BEST}; mean and standard deviation over seeds, in %.",
        REACHED,
    ]
    return columns, notes
