"""The quality of each method of a comparison, the costs to reach a target, and paired differences.

The quality is the test accuracy, or another metric that is higher for better models. An evaluation
of a model that is not finite is no best and reaches no target, whatever its quality; see
`analysis.statistics.finite_quality`.
"""

from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.rows import column_by_method, quality_by_method
from fedjax_algos.analysis.statistics import (
    METRIC,
    PREFIX,
    CostToTarget,
    Difference,
    Estimate,
    check_target_metric,
    diverged,
    first_at,
    paired_difference,
    ratio_on_common_seeds,
)
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice


class MethodSummary(NamedTuple):
    """The summary of one method over its seeds.

    Costs are those up to the first evaluation at the target, on the seeds that have one; None if
    the column was not measured.

    Attributes:
      label: the method's label.
      final: the last quality; NaN for a seed that has diverged.
      best: the highest quality of all evaluations, which is chosen on the test data; for a seed
        that has diverged the highest one before.
      rounds: number of rounds.
      upload_bytes: bytes that all clients sent.
      simulated_seconds: time on the virtual clock.
      flops: floating-point operations of all clients.
      seeds: their number.
      seeds_reaching: seeds that reach the target.
      seeds_diverged: seeds whose last model is not finite.
      seeds_without_target: seeds on which the reference has diverged, if no target is given; they
        are neither in the costs nor in `seeds_reaching`, for any method.
      seconds: median over seeds of the wall time of the whole run.
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

    @property
    def seeds_with_target(self) -> int:
        """The number of the seeds that have a target."""
        return self.seeds - len(self.seeds_without_target)


class PairedSummary(NamedTuple):
    """A method against the reference, on the same seeds.

    Ratios are a method's mean cost divided by the reference's, over the common seeds, on which both
    reach the target; None if there are none, or if the column was not measured.

    Attributes:
      label: the method's label.
      final: difference of the last quality.
      best: difference of the highest quality, on the same seeds as that of the last one.
      rounds_ratio: ratio of the rounds to the target.
      upload_bytes_ratio: ratio of the uploads of all clients.
      simulated_seconds_ratio: ratio of the simulated times.
      flops_ratio: ratio of the operations of all clients.
      seeds: number of all seeds.
      seeds_common: number of the common seeds.
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


COSTS = {  # fields of the summaries, and their columns
    "rounds": "round",
    "upload_bytes": "upload_bytes",
    "simulated_seconds": "simulated_seconds",
    "flops": "flops",
}
_QUALITY = "quality"


class _Method(NamedTuple):
    """One method on all seeds."""

    final: np.ndarray  # float[seeds], NaN for a seed that has diverged
    best: np.ndarray  # float[seeds]
    diverged: np.ndarray  # bool[seeds]
    has_target: np.ndarray  # bool[seeds], the same for all methods
    # by column, float[seeds with a target]:
    costs: dict[str, np.ndarray]  # infinite where the target is missed
    horizons: dict[str, np.ndarray]  # of the whole runs; NaN if they have diverged
    seconds: float

    @property
    def best_if_finite(self) -> np.ndarray:
        """The best of seeds that have not diverged, float[seeds]; NaN for the others."""
        return np.where(self.diverged, np.nan, self.best)


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
      target: the quality to reach. If None, it is the best one of the reference on the same seed. A
        seed on which the reference has diverged has no target then: its best would be that of a
        model that is hardly trained.
      reference: the label of a method; None: the first.
      metric: column of the quality, such as "test_dice_score"; see `check_target_metric`.

    Raises:
      ValueError: if no row has the metric or a wall time, for an unknown reference, a metric that
        is lower for better models, or a method without rows on a seed.
    """
    seeds = _seeds(rows)
    return [
        MethodSummary(
            label,
            final=Estimate(tuple(own.final.tolist())),
            best=Estimate(tuple(own.best.tolist())),
            **{name: _cost_to_target(own, column) for name, column in COSTS.items()},
            seeds=len(own.final),
            seeds_reaching=int(np.isfinite(own.costs["round"]).sum()),
            seeds_diverged=int(own.diverged.sum()),
            seeds_without_target=tuple(
                int(seed) for seed, has in zip(seeds, own.has_target, strict=True) if not has
            ),
            seconds=own.seconds,
        )
        for label, own in _methods(rows, target, reference, metric).items()
    ]


def summarise_pairs(
    rows: list[Row],
    target: float | None = None,
    reference: str | None = None,
    *,
    metric: str = METRIC,
) -> list[PairedSummary]:
    """Compares each method with the reference on the same seeds, one entry for each other method.

    Args:
      rows: as in `summarise`, and so are `target`, `reference` and `metric`.
      target: the quality to reach.
      reference: the label of a method.
      metric: column of the quality.

    Raises:
      ValueError: as for `summarise`.
    """
    methods = _methods(rows, target, reference, metric)
    seeds = _seeds(rows)
    base_label = next(iter(methods)) if reference is None else reference
    base, lines = methods.pop(base_label), []
    for label, own in methods.items():
        ratios = {f"{name}_ratio": _ratio(own, base, column)[0] for name, column in COSTS.items()}
        lines.append(
            PairedSummary(
                label,
                paired_difference(own.final, base.final, seeds),
                paired_difference(own.best_if_finite, base.best_if_finite, seeds),
                **ratios,
                seeds=len(seeds),
                seeds_common=_ratio(own, base, "round")[1],
            )
        )
    return lines


def _methods(rows, target, reference, metric) -> dict[str, _Method]:
    """What is measured of each method, by label."""
    names = dict.fromkeys(name for row in rows for name in row)
    if metric != METRIC:
        of_tests = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
        check_target_metric(metric.removeprefix(PREFIX), of_tests)
    for name in (metric, "wall_seconds"):
        if name not in names:
            raise ValueError(f"the rows have no {name}; give those that compare or run measured")
    measured = names.keys() & {*COSTS.values(), "wall_seconds"}
    columns = {name: column_by_method(rows, name) for name in measured}
    columns[_QUALITY] = quality_by_method(rows, metric)
    labels = list(columns[_QUALITY])
    reference = labels[0] if reference is None else reference
    check_choice("reference", reference, labels)
    own = {label: {name: each[label] for name, each in columns.items()} for label in labels}
    quality = own[reference][_QUALITY]
    targets = np.full(len(quality), target, float)
    if target is None:
        targets = np.where(diverged(quality), np.nan, _best(quality))
    return {label: _method(own[label], targets) for label in labels}


def _seeds(rows):
    return list(dict.fromkeys(row["seed"] for row in rows))


def _best(quality):
    """float[seeds]; of a diverged run it is the best one before: fmax ignores NaN."""
    return np.fmax.reduce(quality, axis=1)


def _method(own, targets):
    quality = own[_QUALITY]
    lost, has_target = diverged(quality), ~np.isnan(targets)
    found = [first_at(*each) for each in zip(quality, targets, strict=True)]
    costs, horizons = {}, {}
    for column in COSTS.values():
        if column not in own:
            continue
        whole = np.fmax.reduce(own[column], axis=1)
        at = [np.inf if i is None else own[column][seed, i] for seed, i in enumerate(found)]
        if np.isfinite(whole).all() and not np.isnan(at).any():  # else it was not measured
            costs[column] = np.array(at)[has_target]
            horizons[column] = np.where(lost, np.nan, whole)[has_target]
    return _Method(
        final=quality[:, -1],
        best=_best(quality),
        diverged=lost,
        has_target=has_target,
        costs=costs,
        horizons=horizons,
        seconds=float(np.median(np.fmax.reduce(own["wall_seconds"], axis=1))),
    )


def _ratio(own, reference, column):
    if column not in own.costs or column not in reference.costs:
        return None, 0
    return ratio_on_common_seeds(own.costs[column], reference.costs[column])


def _cost_to_target(own, column):
    if column not in own.costs:
        return None
    return CostToTarget(*(tuple(each[column].tolist()) for each in (own.costs, own.horizons)))
