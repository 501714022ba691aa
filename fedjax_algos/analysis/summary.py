"""The accuracy of each method of a comparison, the costs to reach a target, and paired differences.

An evaluation of a model that is not finite is no best and reaches no target, whatever its
accuracy; see `analysis.statistics.finite_quality`.
"""

from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.statistics import (
    CostToTarget,
    Difference,
    Estimate,
    diverged,
    finite_quality,
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
      label: of the method.
      final: the last test accuracy; NaN for a seed that has diverged.
      best: the highest test accuracy of all evaluations, which is chosen on the test data; for a
        seed that has diverged the highest one before.
      rounds: up to the first evaluation at the target.
      upload_bytes: of all clients, up to that evaluation.
      simulated_seconds: up to that evaluation.
      flops: of all clients, up to that evaluation.
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
      label: of the method.
      final: difference of the last test accuracy.
      best: difference of the highest test accuracy, on the same seeds as that of the last one.
      rounds_ratio: of the rounds to the target.
      upload_bytes_ratio: of the uploads of all clients.
      simulated_seconds_ratio: of the simulated times.
      flops_ratio: of the operations of all clients.
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


def column_by_method(rows: list[Row], column: str) -> dict[str, np.ndarray]:
    """The values of one column, by method.

    Args:
      rows: with `method` and `seed`; all methods have the same seeds. Evaluations are the same for
        all seeds of a method, except that the rows of a diverged run end early.
      column: its name.

    Returns:
      float64[seeds, evaluations] for each method; NaN where a row lacks the column, and after the
      end of a diverged run.

    Raises:
      ValueError: for a method that has no rows on a seed.
    """
    seeds = dict.fromkeys(row["seed"] for row in rows)
    curves: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        by_seed = curves.setdefault(row["method"], {seed: [] for seed in seeds})
        by_seed[row["seed"]].append(row.get(column, np.nan))
    for method, by_seed in curves.items():
        longest = max(map(len, by_seed.values()))
        for seed, curve in by_seed.items():
            if not curve:
                raise ValueError(
                    f"method {method!r} has no rows on seed {seed:g}; give the rows of all methods "
                    "on the same seeds"
                )
            curve.extend([np.nan] * (longest - len(curve)))
    return {method: np.array([*by_seed.values()], float) for method, by_seed in curves.items()}


COSTS = {  # fields of the summaries, and their columns
    "rounds": "round",
    "upload_bytes": "upload_bytes",
    "simulated_seconds": "simulated_seconds",
    "flops": "flops",
}
_QUALITY = "quality"  # the test accuracy, NaN where the model is not finite


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
    rows: list[Row], target: float | None = None, reference: str | None = None
) -> list[MethodSummary]:
    """Summarises a comparison, one entry for each method.

    Args:
      rows: of all methods on the same seeds.
      target: the test accuracy to reach. If None, it is the best accuracy of the reference, on each
        seed the one of that seed. A seed on which the reference has diverged has no target then:
        its best would be that of a model that is hardly trained.
      reference: the label of a method; None: the first.

    Raises:
      ValueError: if no row has a test accuracy or a wall time, for an unknown reference, and as for
        `column_by_method`.
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
        for label, own in _methods(rows, target, reference).items()
    ]


def summarise_pairs(
    rows: list[Row], target: float | None = None, reference: str | None = None
) -> list[PairedSummary]:
    """Compares each method with the reference on the same seeds, one entry for each other method.

    Args:
      rows: of all methods on the same seeds.
      target: as in `summarise`.
      reference: the label of a method; None: the first.

    Raises:
      ValueError: as for `summarise`.
    """
    methods = _methods(rows, target, reference)
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


def _methods(rows, target, reference) -> dict[str, _Method]:
    """What is measured of each method, by label."""
    measured = set().union(*rows) & {"test_accuracy", *COSTS.values(), "wall_seconds"}
    for name in ("test_accuracy", "wall_seconds"):
        if name not in measured:
            raise ValueError(f"the rows have no {name}; give those that compare or run measured")
    columns = {name: column_by_method(rows, name) for name in measured}
    columns[_QUALITY] = quality_by_method(rows)
    labels = list(columns[_QUALITY])
    reference = labels[0] if reference is None else reference
    check_choice("reference", reference, labels)
    own = {label: {name: each[label] for name, each in columns.items()} for label in labels}
    quality = own[reference][_QUALITY]
    targets = np.full(len(quality), target, float)
    if target is None:
        targets = np.where(diverged(quality), np.nan, _best(quality))
    return {label: _method(own[label], targets) for label in labels}


def quality_by_method(rows: list[Row]) -> dict[str, np.ndarray]:
    """The test accuracy of each method, NaN where the model is not finite; see `column_by_method`.

    Args:
      rows: of all methods on the same seeds.
    """
    return column_by_method([row | {_QUALITY: finite_quality(row)} for row in rows], _QUALITY)


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
