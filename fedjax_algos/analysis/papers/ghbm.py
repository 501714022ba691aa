"""The GHBM paper's: the last rounds' mean quality, and what reaching the reference's cost."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.papers.runs import METRIC, Seeds, check_method, first_at, runs_of
from fedjax_algos.analysis.summary import interval
from fedjax_algos.runs.simulation import Row


class Final(NamedTuple):
    """One method's line of `final_quality`; costs are None where the reference has no quality."""

    label: str
    final: float  # mean over seeds of the last rounds' mean quality; NaN if a seed diverged there
    final_interval: float  # half its 95% confidence interval
    evaluations: int  # in the last rounds, of the seed with the fewest
    rounds: float | None  # r, mean over seeds
    overhead: float  # bytes of a round, relative to the reference's
    total_bytes: float | None  # down and up, of all clients, in r rounds
    bytes_reduction: float | None  # 1 - total_bytes / the reference's
    seconds: float | None  # in r rounds; None too without wall_seconds
    seconds_reduction: float | None  # 1 - seconds / the reference's
    seeds_reaching: int
    seeds_diverged: int


def final_quality(
    rows: list[Row],
    reference: str = "fedavg",
    *,
    last: int = 100,
    budget: int | None = None,
    overheads: Mapping[str, float] | None = None,
    metric: str = METRIC,
) -> list[Final]:
    """Mean quality over the last rounds, and what reaching the reference's would have cost.

    `r` is the round of a seed's first evaluation at the reference's final quality (its mean over
    seeds), the budget T if there is none; a method's cost is that of its whole run times r / T,
    and its reduction `1 - cost / cost of the reference`. The reference is charged the whole run,
    as it is in the paper's Table 3, although single evaluations of it reach its mean before.

    Source: section 5.1 and appendix C.3 of Zaccone et al., "Communication-Efficient Heterogeneous
    Federated Learning with Generalized Heavy-Ball Momentum", TMLR 2025,
    https://arxiv.org/abs/2311.18578. It evaluates in each of the last 100 rounds; here the mean is
    over the evaluations that there are.

    Args:
      rows: of all methods.
      reference: the method whose final quality the others are to reach.
      last: rounds at the end over which the quality is averaged.
      budget: T, the largest round of all if None; later rows are left out.
      overheads: bytes of a method's round relative to the reference's, by label, in place of the
        bytes in its rows; the paper's are 1 for FedAvg, FedAvgM, FedHBM and LocalGHBM, 1.5 for
        GHBM, 2 for SCAFFOLD and 3 for MimeMom.
      metric: column of the quality, higher being better.

    Raises:
      ValueError: for rows that are none or incomplete, an unknown reference, a run without
        evaluations in the last rounds, or overheads that lack a method.
    """
    runs = runs_of(rows, metric)
    check_method("reference", reference, runs)
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
    rounds = {label: _rounds_to(seeds, target, budget) for label, seeds in runs.items()}
    rounds[reference] = float(budget)
    if np.isnan(target):
        rounds = dict.fromkeys(runs)
    traffic = {label: _traffic(seeds) for label, seeds in runs.items()}
    if overheads is not None:
        missing = [label for label in runs if label not in overheads]
        if missing:
            raise ValueError(f"overheads={dict(overheads)} lack {missing[0]!r}; give its factor")
        unit = traffic[reference] / overheads[reference]
        traffic = {label: overheads[label] * unit for label in runs}
    seconds = {label: seeds.per_round("wall_seconds") for label, seeds in runs.items()}

    def cost(label, rates):
        return None if None in (rounds[label], rates[label]) else rounds[label] * rates[label]

    def reduction(label, rates):
        own, full = cost(label, rates), cost(reference, rates)
        return None if own is None or not full else 1 - own / full

    return [
        Final(
            label,
            final=float(finals[label].mean()),
            final_interval=interval(finals[label]),
            evaluations=min(map(len, windows[label])),
            rounds=rounds[label],
            overhead=traffic[label] / traffic[reference],
            total_bytes=cost(label, traffic),
            bytes_reduction=reduction(label, traffic),
            seconds=cost(label, seconds),
            seconds_reduction=reduction(label, seconds),
            seeds_reaching=len(seeds.reaching(target)),
            seeds_diverged=seeds.diverged(),
        )
        for label, seeds in runs.items()
    ]


def _rounds_to(seeds, target, budget):
    """r, the mean over seeds of the rounds to the target, the budget for those that never do."""
    found = ((run.columns["round"], first_at(run.quality, target)) for run in seeds)
    return float(np.mean([budget if first is None else rounds[first] for rounds, first in found]))


def _traffic(seeds):
    """Bytes of all clients, down and up, in a round."""
    found = seeds.per_round("download_bytes", "upload_bytes")
    if not found:
        raise ValueError(
            f"the rows of method {seeds[0].method!r} do not tell the bytes of its rounds; "
            "give rows with download_bytes and upload_bytes, as simulate returns them"
        )
    return found


def _until(run, budget):
    kept = run.columns["round"] <= budget
    columns = {name: values[kept] for name, values in run.columns.items()}
    return run._replace(quality=run.quality[kept], columns=columns)


def _window(run, last, budget):
    """The qualities in the last rounds; the model before the first round is in none."""
    inside = run.quality[run.columns["round"] > max(budget - last, 0)]
    if not len(inside):
        raise ValueError(
            f"method {run.method!r} on seed {run.seed:g} has no evaluation in rounds "
            f"{max(budget - last, 0) + 1} to {budget}; run it to round {budget}, evaluate every "
            f"{last} rounds or more often, or give another budget"
        )
    return inside
