"""The FedLGA paper's summary: rounds and seconds to a target.

Source: Tables IV ("single" is `seconds_per_round`, "total" is `seconds`) and V of Li et al.,
"FedLGA: Toward System-Heterogeneity of Federated Learning via Local Gradient Approximation", 2024,
https://arxiv.org/abs/2112.11989. Means over several seeds are our extension.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fedjax_algos.analysis.statistics import METRIC, Estimate, describe_estimates
from fedjax_algos.analysis.tables import Column, percentages
from fedjax_algos.core import Row
from paper_measures.runs import check_target, runs_of
from paper_measures.tables import BEST, LEFT_OUT, REACHED, marked, reached


class Target(NamedTuple):
    """The result of `rounds_to_target` for one method.

    Attributes:
      rounds: mean over the seeds that reach the target; None if fewer than half do.
      seconds: likewise, since the start; also None without wall_seconds.
      seconds_per_round: of the whole runs, mean over seeds.
      best: each seed's highest quality.
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


def columns_of(lines: Sequence[Target]) -> tuple[list[Column], list[str]]:
    """The columns and the notes of the table."""
    columns = [
        Column("rounds", marked(lines, "rounds")),
        Column("time", marked(lines, "seconds"), ".2f", unit="s"),
        Column("time of a round", [line.seconds_per_round for line in lines], ".3f", unit="s"),
        percentages("best", [line.best for line in lines]),
        reached(lines),
    ]
    notes = [
        "rounds, time: to the target, means over the seeds that reach it, if half of them do.",
        LEFT_OUT,
        f"{BEST}; in %, {describe_estimates(lines[0].seeds)}.",
        REACHED,
    ]
    return columns, notes
