"""The accuracy of each method of a comparison, the costs to reach a target, and paired differences.

An evaluation whose test loss is not finite belongs to a diverged run, so it is no best and reaches
no target: a model of NaN always predicts class 0 and has a finite accuracy.
"""

from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.statistics import (
    CostToTarget,
    Difference,
    Estimate,
    first_at,
    paired_difference,
    ratio_on_common_seeds,
)
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice


class MethodSummary(NamedTuple):
    """The summary of one method over its seeds.

    Costs are those up to the first evaluation at the target; None if the column was not measured.

    Attributes:
      label: of the method.
      final: the last test accuracy.
      best: the highest test accuracy of all evaluations, which is chosen on the test data.
      rounds: up to the first evaluation at the target.
      upload_bytes: of all clients, up to that evaluation.
      simulated_seconds: up to that evaluation.
      flops: of all clients, up to that evaluation.
      seeds: their number.
      seeds_reaching: seeds that reach the target.
      seeds_diverged: seeds whose last test accuracy, test loss or train loss is not finite.
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
    seconds: float


class PairedSummary(NamedTuple):
    """A method against the reference, on the same seeds.

    Ratios are a method's mean cost divided by the reference's, over the common seeds, on which both
    reach the target; None if there are none, or if the column was not measured.

    Attributes:
      label: of the method.
      final: difference of the last test accuracy.
      best: difference of the highest test accuracy.
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
_ENDS = ("test_accuracy", "test_loss", "train_loss")  # not finite at the end of a diverged run


class _Method(NamedTuple):
    """One method on all seeds."""

    final: np.ndarray  # float[seeds], NaN for a seed that has diverged
    best: np.ndarray  # float[seeds]
    costs: dict[str, np.ndarray]  # by column, float[seeds]; infinite where the target is missed
    horizons: dict[str, np.ndarray]  # by column, float[seeds], of the whole runs
    diverged: np.ndarray  # bool[seeds]
    seconds: float


def summarise(
    rows: list[Row], target: float | None = None, reference: str | None = None
) -> list[MethodSummary]:
    """Summarises a comparison, one entry for each method.

    Args:
      rows: of all methods on the same seeds.
      target: the test accuracy to reach. If None, it is the best accuracy of the reference, on each
        seed the one of that seed.
      reference: the label of a method; None: the first.

    Raises:
      ValueError: if no row has a test accuracy or a wall time, for an unknown reference, and as for
        `column_by_method`.
    """
    return [
        MethodSummary(
            label,
            final=Estimate(tuple(own.final.tolist())),
            best=Estimate(tuple(own.best.tolist())),
            **{name: _cost_to_target(own, column) for name, column in COSTS.items()},
            seeds=len(own.final),
            seeds_reaching=int(np.isfinite(own.costs["round"]).sum()),
            seeds_diverged=int(own.diverged.sum()),
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
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    base_label = next(iter(methods)) if reference is None else reference
    base, lines = methods.pop(base_label), []
    for label, own in methods.items():
        ratios = {f"{name}_ratio": _ratio(own, base, column)[0] for name, column in COSTS.items()}
        lines.append(
            PairedSummary(
                label,
                paired_difference(own.final, base.final, seeds),
                paired_difference(own.best, base.best, seeds),
                **ratios,
                seeds=len(seeds),
                seeds_common=_ratio(own, base, "round")[1],
            )
        )
    return lines


def _methods(rows, target, reference) -> dict[str, _Method]:
    """What is measured of each method, by label."""
    wanted = {*_ENDS, *COSTS.values(), "wall_seconds"}
    measured = set().union(*rows) & wanted
    for name in ("test_accuracy", "wall_seconds"):
        if name not in measured:
            raise ValueError(f"the rows have no {name}; give those that compare or run measured")
    columns = {name: column_by_method(rows, name) for name in measured}
    labels = list(columns["test_accuracy"])
    reference = labels[0] if reference is None else reference
    check_choice("reference", reference, labels)
    own = {label: {name: columns[name][label] for name in measured} for label in labels}
    targets = np.full(len(_best(own[reference])), target, float)
    if target is None:
        targets = _best(own[reference])
    return {label: _method(own[label], targets) for label in labels}


def _quality(own):
    """The test accuracy, float[seeds, evaluations]; NaN where the test loss is not finite."""
    accuracy = own["test_accuracy"]
    return np.where(np.isfinite(own.get("test_loss", accuracy)), accuracy, np.nan)


def _best(own):
    """float[seeds]; of a diverged run it is the best one before: fmax ignores NaN."""
    return np.fmax.reduce(_quality(own), axis=1)


def _method(own, targets):
    ends = np.array([own[name][:, -1] for name in _ENDS if name in own])
    diverged = ~np.isfinite(ends).all(axis=0)
    found = [first_at(*each) for each in zip(_quality(own), targets, strict=True)]
    costs, horizons = {}, {}
    for column in COSTS.values():
        if column not in own:
            continue
        whole = np.fmax.reduce(own[column], axis=1)
        at = [np.inf if i is None else own[column][seed, i] for seed, i in enumerate(found)]
        if np.isfinite(whole).all() and not np.isnan(at).any():  # else it was not measured
            costs[column], horizons[column] = np.array(at), whole
    return _Method(
        final=np.where(diverged, np.nan, own["test_accuracy"][:, -1]),
        best=_best(own),
        costs=costs,
        horizons=horizons,
        diverged=diverged,
        seconds=float(np.median(np.fmax.reduce(own["wall_seconds"], axis=1))),
    )


def _ratio(own, reference, column):
    if column not in own.costs or column not in reference.costs:
        return None, 0
    return ratio_on_common_seeds(own.costs[column], reference.costs[column])


def _cost_to_target(own, column):
    if column not in own.costs:
        return None
    costs = own.costs[column]
    censored = np.isinf(costs) & ~own.diverged
    horizon = float(own.horizons[column][censored].min()) if censored.any() else None
    return CostToTarget(tuple(costs.tolist()), horizon)
