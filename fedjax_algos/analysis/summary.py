"""Summarises comparisons: each method's quality, costs to a target, and paired differences.

The quality is the test accuracy, or another metric that is higher for better models. An evaluation
of a model that is not finite never counts as the best and never reaches a target.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.analysis import statistics
from fedjax_algos.analysis.rows import column_by_method, quality_by_method
from fedjax_algos.analysis.statistics import METRIC, PREFIX, CostToTarget, Difference, Estimate
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice


class MethodSummary(NamedTuple):
    """The summary of one method over its seeds.

    The costs `rounds`, `upload_bytes`, `simulated_seconds` and `flops` are summed over all clients
    up to the first evaluation at the target, on the seeds that have a target; None if not measured.

    Attributes:
      label: the method's label.
      final: the last quality; NaN for a seed that has diverged.
      best: the highest quality, chosen on the test data; for a seed that has diverged, the highest
        before.
      final_p_value, best_p_value: p-values of the differences from the method with the highest
        mean; see `statistics.p_values_against_best`.
      seeds: the number of seeds.
      seeds_reaching: the number of seeds that reach the target.
      seeds_diverged: the number of seeds whose last model is not finite.
      seeds_without_target: the seeds where the reference has diverged, if no target is given. The
        costs and `seeds_reaching` of all methods leave them out.
      seconds: median over seeds of the wall time of the whole run.
      epsilon: the largest epsilon of a seed's last row; None for methods that are not private.
    """

    label: str
    final: Estimate
    best: Estimate
    rounds: CostToTarget | None
    upload_bytes: CostToTarget | None
    simulated_seconds: CostToTarget | None
    flops: CostToTarget | None
    seeds: int
    seeds_reaching: int
    seeds_diverged: int
    seeds_without_target: tuple[int, ...]
    seconds: float
    final_p_value: float = math.nan
    best_p_value: float = math.nan
    epsilon: float | None = None

    @property
    def seeds_with_target(self) -> int:
        """Returns the number of seeds that have a target."""
        return self.seeds - len(self.seeds_without_target)


class PairedSummary(NamedTuple):
    """A method against the reference, on the same seeds.

    `rounds_ratio`, `upload_bytes_ratio`, `simulated_seconds_ratio` and `flops_ratio` are a method's
    mean cost to the target divided by the reference's, over the common seeds: both methods reach
    the target there. None without common seeds, or if the column was not measured.

    Attributes:
      label: the method's label.
      final: the difference of the last quality.
      best: the difference of the highest quality, on the same seeds as `final`.
      seeds: the number of all seeds; `seeds_common` counts the common seeds.
    """

    label: str
    final: Difference
    best: Difference
    rounds_ratio: float | None
    upload_bytes_ratio: float | None
    simulated_seconds_ratio: float | None
    flops_ratio: float | None
    seeds: int
    seeds_common: int


# fields of the summaries, and their columns
COSTS = {"rounds": "round"} | {n: n for n in ("upload_bytes", "simulated_seconds", "flops")}


def summarise(
    rows: list[Row],
    target: float | None = None,
    reference: str | None = None,
    *,
    metric: str = METRIC,
) -> list[MethodSummary]:
    """Summarises a comparison, one entry for each method.

    Args:
      rows: the rows of all methods, on the same seeds.
      target: the quality to reach. None: the best quality of the reference on the same seed; a seed
        where the reference has diverged then has no target.
      reference: the label of a method; None: the first.
      metric: column of the quality, such as "test_dice_score".

    Raises:
      ValueError: if no row has the metric or a wall time, for an unknown reference, a metric that
        is lower for better models, or a method without rows on a seed.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    if metric.startswith(PREFIX):
        of_tests = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
        statistics.check_target_metric(metric.removeprefix(PREFIX), of_tests)
    for name in (metric, "wall_seconds"):
        check_choice("column", name, names)
    qualities = quality_by_method(rows, metric)
    reference = next(iter(qualities)) if reference is None else reference
    check_choice("reference", reference, qualities)
    targets = np.full(len(qualities[reference]), target, float)
    if target is None:
        lost = statistics.diverged(qualities[reference])
        targets = np.where(lost, np.nan, _best(qualities[reference]))
    measured = {*COSTS.values(), "wall_seconds", "epsilon"} & names.keys()
    columns = {name: column_by_method(rows, name) for name in measured}
    seeds, has_target = np.array(_seeds(rows), int), ~np.isnan(targets)
    summary, without = [], tuple(seeds[~has_target].tolist())
    for label, quality in qualities.items():
        arrays = {name: column[label] for name, column in columns.items()}
        firsts = [statistics.first_at(*each) for each in zip(quality, targets, strict=True)]
        lost = statistics.diverged(quality)
        costs = {n: _cost(arrays.get(c), firsts, has_target, lost) for n, c in COSTS.items()}
        final, best = (Estimate(tuple(each.tolist())) for each in (quality[:, -1], _best(quality)))
        seconds = float(np.median(np.fmax.reduce(arrays["wall_seconds"], axis=1)))
        epsilon = np.fmax.reduce(arrays.get("epsilon", np.full(1, np.nan)), axis=None)
        spent = None if np.isnan(epsilon) else float(epsilon)
        facts: Any = {
            "seeds": len(seeds),
            "seeds_without_target": without,
            "seconds": seconds,
            "epsilon": spent,
        }
        facts["seeds_reaching"] = sum(index is not None for index in firsts)
        facts["seeds_diverged"] = int(lost.sum())
        summary.append(MethodSummary(label, final, best, **costs, **facts))
    for name in ("final", "best"):
        p_values = statistics.p_values_against_best(compared_values(summary, name))
        fields: Any = ({f"{name}_p_value": p_values[line.label]} for line in summary)
        summary = [line._replace(**field) for line, field in zip(summary, fields, strict=True)]
    return summary


def compared_values(summary: list[MethodSummary], name: str) -> dict[str, Sequence[float]]:
    """Returns `final` or `best` over seeds, by label; NaN for a method that has diverged."""
    return {m.label: (math.nan,) if m.seeds_diverged else getattr(m, name).values for m in summary}


def summarise_pairs(
    rows: list[Row],
    target: float | None = None,
    reference: str | None = None,
    *,
    metric: str = METRIC,
) -> list[PairedSummary]:
    """Compares each method with the reference on the same seeds, one entry for each other method.

    Args:
      rows, target, reference, metric: as for `summarise`, with its errors.
    """
    summary = {line.label: line for line in summarise(rows, target, reference, metric=metric)}
    seeds = _seeds(rows)
    base, lines = summary.pop(next(iter(summary)) if reference is None else reference), []
    for label, method in summary.items():
        pairs = zip(_final_and_best(method), _final_and_best(base), strict=True)
        final, best = (statistics.paired_difference(*pair, seeds) for pair in pairs)
        found = {name: _ratio(getattr(method, name), getattr(base, name)) for name in COSTS}
        ratios = {f"{name}_ratio": ratio for name, (ratio, _) in found.items()}
        numbers = {"seeds": len(seeds), "seeds_common": found["rounds"][1]}
        lines.append(PairedSummary(label, final, best, **ratios, **numbers))
    return lines


def _seeds(rows):
    return list(dict.fromkeys(row["seed"] for row in rows))


def _best(quality):
    """Returns the best quality, float[seeds]; fmax ignores NaN after a run has diverged."""
    return np.fmax.reduce(quality, axis=1)


def _final_and_best(summary):
    """Returns both qualities, float[seeds] each; NaN for seeds that have diverged."""
    final = np.array(summary.final.values)
    return final, np.where(np.isnan(final), np.nan, summary.best.values)


def _cost(column, firsts, has_target, lost):
    """Returns each seed's cost up to evaluation `firsts[seed]` of float[seeds, evaluations]."""
    if column is None:
        return None
    whole = np.fmax.reduce(column, axis=1)
    at = np.array([np.inf if i is None else column[seed, i] for seed, i in enumerate(firsts)])
    if np.isnan(at).any() or not np.isfinite(whole).all():  # it was not measured
        return None
    horizons = np.where(lost, np.nan, whole)[has_target]
    return CostToTarget(tuple(at[has_target].tolist()), tuple(horizons.tolist()))


def ratio_on_common_seeds(costs: np.ndarray, reference: np.ndarray) -> tuple[float | None, int]:
    """Returns the ratio of mean costs over common seeds (None without any) and their number."""
    # over all its seeds, a method that reaches the target only on easy seeds would look fast
    common = np.isfinite(costs) & np.isfinite(reference)
    total = float(reference[common].sum())
    return (float(costs[common].sum()) / total if total else None), int(common.sum())


def _ratio(cost, reference):
    if cost is None or reference is None:
        return None, 0
    return ratio_on_common_seeds(np.array(cost.costs), np.array(reference.costs))
