"""The FedLGA paper's: rounds and seconds to a target."""

from typing import NamedTuple

from fedjax_algos.analysis.papers.runs import METRIC, check_target, runs_of
from fedjax_algos.runs.simulation import Row


class Target(NamedTuple):
    """One method's line of `rounds_to_target`."""

    label: str
    rounds: float | None  # mean over the seeds that reach the target; None below half of them
    seconds: float | None  # likewise, from the start of the run; None too without wall_seconds
    seconds_per_round: float | None  # mean over seeds, of the whole run
    best: float  # mean over seeds of each seed's highest quality
    seeds_reaching: int
    seeds_diverged: int


def rounds_to_target(rows: list[Row], target: float, *, metric: str = METRIC) -> list[Target]:
    """Rounds and seconds to the first evaluation at a target.

    `wall_seconds` hold a method's compilation where they come from its first run in a process.

    Source: Tables IV ("single" is `seconds_per_round`, "total" is `seconds`) and V of Li et al.,
    "FedLGA: Towards System-Heterogeneity of Federated Learning via Local Gradient Approximation",
    2023, https://arxiv.org/abs/2112.11989, which says nothing of several seeds.

    Args:
      rows: of all methods.
      target: the quality to reach.
      metric: column of the quality, higher being better.

    Raises:
      ValueError: for rows that are none or incomplete, or a target that is not finite.
    """
    check_target(target)
    return [
        Target(
            label,
            rounds=seeds.mean_when_reached("round", target),
            seconds=seeds.mean_when_reached("wall_seconds", target),
            seconds_per_round=seeds.per_round("wall_seconds"),
            best=float(seeds.best().mean()),
            seeds_reaching=len(seeds.reaching(target)),
            seeds_diverged=seeds.diverged(),
        )
        for label, seeds in runs_of(rows, metric).items()
    ]
