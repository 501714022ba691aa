"""The FedLGA paper's summary: rounds and seconds to a target."""

from typing import NamedTuple

from fedjax_algos.analysis.papers.runs import check_target, runs_of
from fedjax_algos.analysis.statistics import METRIC, Estimate
from fedjax_algos.core import Row


class Target(NamedTuple):
    """The result of `rounds_to_target` for one method.

    Attributes:
      label: of the method.
      rounds: mean over the seeds that reach the target; None if fewer than half do.
      seconds: likewise, since the start; also None without wall_seconds.
      seconds_per_round: of the whole runs, mean over seeds.
      best: each seed's highest quality.
      seeds_reaching: seeds that reach the target.
      seeds_diverged: seeds whose last model is not finite.
      seeds: their number; if more than `seeds_reaching`, `rounds` and `seconds` leave some out.
    """

    label: str
    rounds: float | None
    seconds: float | None
    seconds_per_round: float | None
    best: Estimate
    seeds_reaching: int
    seeds_diverged: int
    seeds: int


def rounds_to_target(rows: list[Row], target: float, *, metric: str = METRIC) -> list[Target]:
    """Rounds and seconds to the first evaluation at a target.

    `wall_seconds` include compilation if the run is the first of its method in the process.

    Source: Tables IV ("single" is `seconds_per_round`, "total" is `seconds`) and V of Li et al.,
    "FedLGA: Toward System-Heterogeneity of Federated Learning via Local Gradient Approximation",
    2024, https://arxiv.org/abs/2112.11989. Means over several seeds are our extension.

    Args:
      rows: of all methods.
      target: the quality to reach.
      metric: column of the quality; higher is better.

    Raises:
      ValueError: for missing or incomplete rows, or a target that is not finite.
    """
    check_target(target)
    return [
        Target(
            label,
            rounds=seeds.mean_when_reached("round", target),
            seconds=seeds.mean_when_reached("wall_seconds", target),
            seconds_per_round=seeds.per_round("wall_seconds"),
            best=Estimate(tuple(seeds.best().tolist())),
            seeds_reaching=len(seeds.reaching(target)),
            seeds_diverged=seeds.diverged(),
            seeds=len(seeds),
        )
        for label, seeds in runs_of(rows, metric).items()
    ]
