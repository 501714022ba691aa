"""The FedCompass paper's summary: the time at which a target is first reached."""

from typing import NamedTuple

from fedjax_algos.analysis.papers.runs import check_target, runs_of
from fedjax_algos.analysis.statistics import METRIC, ratio_on_common_seeds
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice


class FirstTime(NamedTuple):
    """The result of `time_to_target` for one method.

    Attributes:
      label: of the method.
      time: mean over the seeds that reach the target; None if fewer than half do.
      relative: the mean time divided by that of `relative_to`, over the seeds on which both reach
        the target; None if there are none, or if either time is None.
      seeds_common: the number of these seeds.
      best: mean over seeds of each seed's highest quality.
      best_deviation: standard deviation over seeds (n - 1); NaN for one.
      seeds_reaching: seeds that reach the target.
      seeds_diverged: seeds whose last model is not finite.
      seeds: their number; if more than `seeds_reaching`, `time` leaves some of them out.
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
    relative_to: str,
    *,
    clock: str = "simulated_seconds",
    metric: str = METRIC,
) -> list[FirstTime]:
    """The time at which a target is first reached, relative to one method, and the best quality.

    Source: Tables 1 and 14 of Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on
    Heterogeneous Client Devices Using a Computing Power-Aware Scheduler", ICLR 2024,
    https://arxiv.org/abs/2309.14675. None here is a dash there. The paper divides means; here both
    means are over the common seeds, as otherwise the quotient would be of different seeds.

    Args:
      rows: of all methods.
      target: the quality to reach.
      relative_to: the method whose relative time is 1.
      clock: column of the time since the start.
      metric: column of the quality; higher is better.

    Raises:
      ValueError: for missing or incomplete rows, an unknown method or clock, or a target that is
        not finite.
    """
    check_target(target)
    runs = runs_of(rows, metric)
    check_choice("relative_to", relative_to, runs)
    for label, seeds in runs.items():
        for run in seeds:
            check_choice(f"method {label!r}: clock", clock, run.columns)
    times = {label: seeds.mean_when_reached(clock, target) for label, seeds in runs.items()}
    ratios = {
        label: _relative(seeds, runs[relative_to], clock, target) for label, seeds in runs.items()
    }
    return [
        FirstTime(
            label,
            time=times[label],
            relative=None if None in (times[label], times[relative_to]) else ratios[label][0],
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
