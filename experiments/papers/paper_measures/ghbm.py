"""The GHBM paper's summary: the mean quality at the end, and the cost to reach the reference's.

Source: section 5.1, Table 3 and appendix C.3 of Zaccone et al., "Communication-Efficient
Heterogeneous Federated Learning with Generalized Heavy-Ball Momentum", TMLR 2025,
https://arxiv.org/abs/2311.18578.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.statistics import METRIC, Estimate, describe_estimates, first_at
from fedjax_algos.analysis.tables import Column, amounts, percentages
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice
from paper_measures.runs import Seeds, runs_of
from paper_measures.tables import REACHED, marked, reached

# Bytes relative to FedAvg's in Table 3; LocalGHBM's follows from the text. For MimeMom the paper
# has 3, although 5 transfers (3 down, 2 up) are 2.5 times the 2 of FedAvg.
OVERHEADS = {
    "fedavg": 1.0,
    "fedavgm": 1.0,
    "fedhbm": 1.0,
    "localghbm": 1.0,
    "ghbm": 1.5,
    "scaffold": 2.0,
    "mimemom": 3.0,
}


class Final(NamedTuple):
    """The result of `final_quality` for one method.

    Costs are None if the reference's final quality is NaN.

    Attributes:
      final: the last rounds' mean quality; NaN for a seed that diverged.
      evaluations: in the last rounds, of the seed with the fewest.
      rounds: r, mean over seeds.
      overhead: bytes of a round divided by the reference's.
      total_bytes: down and up, of all clients, in r rounds.
      bytes_reduction: 1 - total_bytes / the reference's, both over the seeds that both have.
      seconds: in r rounds; also None without wall_seconds.
      seconds_reduction: 1 - seconds / the reference's, likewise.
      seeds_reaching: if fewer than `seeds`, the others are charged the budget in `rounds`.
    """

    label: str
    final: Estimate
    evaluations: int
    rounds: float | None
    overhead: float
    total_bytes: float | None
    bytes_reduction: float | None
    seconds: float | None
    seconds_reduction: float | None
    seeds_reaching: int
    seeds_diverged: int
    seeds: int


def final_quality(
    rows: list[Row],
    reference: str = "fedavg",
    *,
    last: int = 100,
    budget: int | None = None,
    overheads: Mapping[str, float] | None = None,
    metric: str = METRIC,
) -> list[Final]:
    """The mean quality over the last rounds, and the cost to reach the reference's.

    `r` is the round of a seed's first evaluation at the reference's final quality (its mean over
    seeds), or the budget T if there is none. The cost of a method is that of its whole run times
    r / T, and its reduction is `1 - cost / cost of the reference`. The reference is charged for its
    whole run, as in the paper's Table 3, although single evaluations of it reach its mean earlier.

    The paper evaluates in each of the last 100 rounds; here the mean is over the evaluations in
    the `last` rounds before the budget T, which is the largest round of all if it is not given;
    later rows are ignored. `overheads`, such as `OVERHEADS`, are the bytes of a method's round
    divided by the reference's, by label, and are used instead of the bytes in its rows.
    """
    runs = runs_of(rows, metric)
    check_choice("reference", reference, runs)
    if budget is None:
        budget = int(max(run.columns["round"].max() for each in runs.values() for run in each))
    if last < 1 or budget < 1:
        raise ValueError(f"last={last} and budget={budget} must be at least 1 round")
    runs = {label: Seeds(_until(run, budget) for run in seeds) for label, seeds in runs.items()}
    windows = {
        label: [_window(run, last, budget) for run in seeds] for label, seeds in runs.items()
    }
    finals = {label: np.array([each.mean() for each in windows[label]]) for label in runs}
    target = float(finals[reference].mean())
    charge = partial(_charges, reference, target, budget, overheads)
    charges, reductions = charge(runs), {}
    for label, seeds in runs.items():
        common = {reference: runs[reference].on(seeds), label: seeds.on(runs[reference])}
        if not common[label]:
            reductions[label] = None, None
            continue
        on_common = charge(common)
        reductions[label] = (
            _reduction(on_common[label].bytes, on_common[reference].bytes),
            _reduction(on_common[label].seconds, on_common[reference].seconds),
        )
    return [
        Final(
            label,
            final=Estimate(tuple(finals[label].tolist())),
            evaluations=min(map(len, windows[label])),
            rounds=charges[label].rounds,
            overhead=charges[label].overhead,
            total_bytes=charges[label].bytes,
            bytes_reduction=reductions[label][0],
            seconds=charges[label].seconds,
            seconds_reduction=reductions[label][1],
            seeds_reaching=len(seeds.reaching(target)),
            seeds_diverged=seeds.diverged(),
            seeds=len(seeds),
        )
        for label, seeds in runs.items()
    ]


class _Charge(NamedTuple):
    rounds: float | None
    overhead: float
    bytes: float | None
    seconds: float | None


def _charges(reference, target, budget, overheads, runs):
    """What each method is charged to reach the target, by label."""
    traffic = _bytes_per_round(runs, reference, overheads)
    charges = {}
    for label, seeds in runs.items():
        rounds = None
        if not np.isnan(target):
            rounds = float(budget) if label == reference else _rounds_to(seeds, target, budget)
        seconds = seeds.per_round("wall_seconds")
        known = None not in (rounds, seconds)
        charges[label] = _Charge(
            rounds,
            traffic[label] / traffic[reference],
            None if rounds is None else rounds * traffic[label],
            rounds * seconds if known else None,
        )
    return charges


def _reduction(own, full):
    return None if own is None or not full else 1 - own / full


def _rounds_to(seeds, target, budget):
    """r: the mean over seeds of the rounds to the target; the budget if it is not reached."""
    found = ((run.columns["round"], first_at(run.quality, target)) for run in seeds)
    return float(np.mean([budget if first is None else rounds[first] for rounds, first in found]))


def _bytes_per_round(runs, reference, overheads):
    """Bytes of all clients, down and up, by method."""
    traffic = {}
    for label, seeds in runs.items():
        traffic[label] = seeds.per_round("download_bytes", "upload_bytes")
        if not traffic[label]:
            raise ValueError(
                f"the rows of method {label!r} lack the bytes of its rounds; give rows with "
                "download_bytes and upload_bytes, as simulate returns them"
            )
    if overheads is None:
        return traffic
    missing = [label for label in runs if label not in overheads]
    if missing:
        raise ValueError(f"overheads={dict(overheads)} lack {missing[0]!r}; give its factor")
    unit = traffic[reference] / overheads[reference]
    return {label: overheads[label] * unit for label in runs}


def _until(run, budget):
    within = run.columns["round"] <= budget
    columns = {name: values[within] for name, values in run.columns.items()}
    return run._replace(quality=run.quality[within], columns=columns)


def _window(run, last, budget):
    """The qualities in the last rounds; round 0, before any training, is never among them.

    A run that diverged and ended before them has the quality NaN.
    """
    inside = run.quality[run.columns["round"] > max(budget - last, 0)]
    if not len(inside) and run.has_diverged():
        return np.array([np.nan])
    if not len(inside):
        raise ValueError(
            f"method {run.method!r} on seed {run.seed:g} has no evaluation in rounds "
            f"{max(budget - last, 0) + 1} to {budget}; run it to round {budget}, evaluate every "
            f"{last} rounds or more often, or give another budget"
        )
    return inside


def columns_of(lines: Sequence[Final]) -> tuple[list[Column], list[str]]:
    """The columns and the notes of the table."""
    columns = [
        percentages("final", [line.final for line in lines]),
        Column("rounds", marked(lines, "rounds")),
        Column("overhead", [line.overhead for line in lines]),
        amounts("traffic", marked(lines, "total_bytes"), "B"),
        percentages("traffic saved", [line.bytes_reduction for line in lines]),
        Column("time", marked(lines, "seconds"), ".2f", unit="s"),
        percentages("time saved", [line.seconds_reduction for line in lines]),
        reached(lines),
    ]
    notes = [
        f"final: mean {{quality}} of the last rounds in %, {describe_estimates(lines[0].seeds)}.",
        "rounds, traffic (down and up, of all clients), time: to the reference's final value, "
        "means over seeds; the reference is charged for its whole run.",
        "*: seeds that do not reach it are charged for their whole runs.",
        "overhead: bytes of a round, divided by the reference's.",
        "traffic saved, time saved: share of the reference's, in %, on common seeds.",
        REACHED,
    ]
    return columns, notes
