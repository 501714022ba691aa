"""What the four papers report of their runs, from the rows of `simulate` and `comparison.run`.

Rows carry `method` and `seed` beside `round`, a metric and costs that add up since the start. An
evaluation whose metric or test loss is not finite belongs to a run that diverged: it reaches
nothing and is no maximum.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.comparison import interval
from fedjax_algos.simulation import Row

METRIC = "test_accuracy"
TOLERANCE = 1e-6  # .9 in float32 is below .9


class _Run(NamedTuple):
    """One method on one seed; the columns that a row lacks are NaN there."""

    seed: float
    quality: np.ndarray  # float[evaluations], NaN where it diverged
    columns: dict[str, np.ndarray]  # float[evaluations] each

    def first(self, target: float) -> int | None:
        """Index of the first evaluation that reaches the target."""
        hits = np.flatnonzero(_reaches(self.quality, target))
        return int(hits[0]) if len(hits) else None


class Cost(NamedTuple):
    """What was spent up to an evaluation; None for what the rows do not hold."""

    rounds: float
    upload_bytes: float | None  # of all clients
    flops: float | None  # of all clients


class Maximum(NamedTuple):
    """One method's line of `maximum_and_cost`."""

    label: str
    best: float  # the highest mean over seeds of one evaluation; NaN if none is finite
    best_interval: float  # half its 95% confidence interval
    best_of_seeds: float  # mean over seeds of each seed's own highest
    cost: Cost | None  # to `best`
    reference_cost: Cost | None  # to the reference's `best`; None if never
    seeds_diverged: int


def maximum_and_cost(
    rows: list[Row], reference: str = "fedavg", *, metric: str = METRIC
) -> list[Maximum]:
    """The highest quality, the cost to reach it, and the cost to reach the reference's highest.

    The maximum is that of the mean curve over seeds, with its interval there, and costs are those
    of the first evaluation at which the mean curve is as high. The paper does not say so, but its
    costs are whole multiples of the rounds between evaluations, as means of five seeds' own would
    not be. Where a seed has diverged, the mean curve has no value.

    Source: Table IV of Mills et al., "Accelerating Federated Learning with a Global Biased
    Optimiser", 2023, https://arxiv.org/abs/2108.09134.

    Args:
      rows: of all methods.
      reference: the method whose maximum the others are to reach.
      metric: column of the quality, higher being better.

    Raises:
      ValueError: for rows that are none or incomplete, an unknown reference, or seeds of a method
        that were evaluated at different rounds.
    """
    runs = _runs(rows, metric)
    _check_method("reference", reference, runs)
    curves = {label: _mean_curve(label, seeds) for label, seeds in runs.items()}
    target = np.fmax.reduce(curves[reference])
    lines = []
    for label, seeds in runs.items():
        best = np.fmax.reduce(curves[label])
        spread = float("nan")
        if np.isfinite(best):
            spread = interval(np.array([run.quality[np.nanargmax(curves[label])] for run in seeds]))
        lines.append(
            Maximum(
                label,
                best=float(best),
                best_interval=spread,
                best_of_seeds=float(_best_of(seeds).mean()),
                cost=_cost_to(best, curves[label], seeds),
                reference_cost=_cost_to(target, curves[label], seeds),
                seeds_diverged=_diverged(seeds),
            )
        )
    return lines


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
    _check_target(target)
    lines = []
    for label, seeds in _runs(rows, metric).items():
        lines.append(
            Target(
                label,
                rounds=_mean_when_reached(seeds, "round", target),
                seconds=_mean_when_reached(seeds, "wall_seconds", target),
                seconds_per_round=_per_round(seeds, ("wall_seconds",)),
                best=float(_best_of(seeds).mean()),
                seeds_reaching=_reaching(seeds, target),
                seeds_diverged=_diverged(seeds),
            )
        )
    return lines


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
    runs = _runs(rows, metric)
    _check_method("reference", reference, runs)
    if budget is None:
        budget = int(max(run.columns["round"].max() for each in runs.values() for run in each))
    if last < 1 or budget < 1:
        raise ValueError(f"last={last} and budget={budget} must be at least 1 round")
    runs = {label: [_until(run, budget) for run in seeds] for label, seeds in runs.items()}
    windows = {
        label: [_window(label, run, last, budget) for run in seeds] for label, seeds in runs.items()
    }
    finals = {
        label: np.array([window.mean() for window in each]) for label, each in windows.items()
    }
    target = float(finals[reference].mean())
    rounds = {label: _rounds_to(seeds, target, budget) for label, seeds in runs.items()}
    rounds[reference] = None if np.isnan(target) else float(budget)
    traffic = {label: _traffic(label, seeds) for label, seeds in runs.items()}
    if overheads is not None:
        missing = [label for label in runs if label not in overheads]
        if missing:
            raise ValueError(f"overheads={dict(overheads)} lack {missing[0]!r}; give its factor")
        unit = traffic[reference] / overheads[reference]
        traffic = {label: overheads[label] * unit for label in runs}
    seconds = {label: _per_round(seeds, ("wall_seconds",)) for label, seeds in runs.items()}

    def spent(label, rates):
        """The cost in r rounds, and how much less than the reference's it is."""
        cost, full = (_product(rounds[name], rates[name]) for name in (label, reference))
        return cost, None if cost is None or not full else 1 - cost / full

    lines = []
    for label, seeds in runs.items():
        total_bytes, bytes_reduction = spent(label, traffic)
        total_seconds, seconds_reduction = spent(label, seconds)
        lines.append(
            Final(
                label,
                final=float(finals[label].mean()),
                final_interval=interval(finals[label]),
                evaluations=min(len(window) for window in windows[label]),
                rounds=rounds[label],
                overhead=traffic[label] / traffic[reference],
                total_bytes=total_bytes,
                bytes_reduction=bytes_reduction,
                seconds=total_seconds,
                seconds_reduction=seconds_reduction,
                seeds_reaching=_reaching(seeds, target),
                seeds_diverged=_diverged(seeds),
            )
        )
    return lines


class FirstTime(NamedTuple):
    """One method's line of `time_to_target`."""

    label: str
    time: float | None  # mean over the seeds that reach the target; None below half of them
    relative: float | None  # to that of `relative_to`; None where either is
    best: float  # mean over seeds of each seed's highest quality
    best_deviation: float  # standard deviation over seeds (n - 1); NaN for one
    seeds_reaching: int
    seeds_diverged: int


def time_to_target(
    rows: list[Row],
    target: float,
    relative_to: str,
    *,
    clock: str = "simulated_seconds",
    metric: str = METRIC,
) -> list[FirstTime]:
    """The time at which a target is first reached, relative to one method, and the top quality.

    Source: Tables 1 and 14 of Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on
    Heterogeneous Client Devices Using a Computing Power-Aware Scheduler", ICLR 2024,
    https://arxiv.org/abs/2309.14675, whose dash is None here. Relative times are ratios of means.

    Args:
      rows: of all methods.
      target: the quality to reach.
      relative_to: the method whose time is 1.
      clock: column of the time since the start.
      metric: column of the quality, higher being better.

    Raises:
      ValueError: for rows that are none or incomplete, an unknown method or clock, or a target
        that is not finite.
    """
    _check_target(target)
    runs = _runs(rows, metric)
    _check_method("relative_to", relative_to, runs)
    for label, seeds in runs.items():
        if any(clock not in run.columns for run in seeds):
            raise ValueError(
                f"clock={clock!r} is no column of the rows of method {label!r}; choose one out of "
                f"{', '.join(seeds[0].columns)}"
            )
    times = {label: _mean_when_reached(seeds, clock, target) for label, seeds in runs.items()}
    unit = times[relative_to]
    lines = []
    for label, seeds in runs.items():
        time, tops = times[label], _best_of(seeds)
        lines.append(
            FirstTime(
                label,
                time=time,
                relative=None if time is None or not unit else time / unit,
                best=float(tops.mean()),
                best_deviation=float(tops.std(ddof=1)) if len(tops) > 1 else float("nan"),
                seeds_reaching=_reaching(seeds, target),
                seeds_diverged=_diverged(seeds),
            )
        )
    return lines


def of_paper(
    rows: list[Row], paper: str, reference: str | None = None, target: float | None = None
) -> list[Any]:
    """What "fedgbo", "fedlga", "ghbm" or "fedcompass" tells; see the functions above."""
    if paper == "fedgbo":
        return maximum_and_cost(rows, reference or "fedavg")
    if paper == "ghbm":
        return final_quality(rows, reference or "fedavg")
    if target is None:
        raise ValueError(f"paper={paper!r} needs a target; give a test accuracy")
    if paper == "fedlga":
        return rounds_to_target(rows, target)
    return time_to_target(rows, target, reference or "fedcompass")


def _runs(rows: list[Row], metric: str) -> dict[str, list[_Run]]:
    """The rows that hold an evaluation, by method and seed, in the order in which they come."""
    if not rows:
        raise ValueError("there are 0 rows; give those that comparison.run returns")
    grouped: dict[str, dict[float, list[Row]]] = {}
    for row in rows:
        missing = [name for name in ("method", "seed", "round") if name not in row]
        if missing:
            raise ValueError(
                f"a row of the columns {', '.join(row)} lacks {missing[0]!r}; add the method and "
                "the seed to what simulate returns, as comparison.run does"
            )
        grouped.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row)
    return {
        method: [_run(method, seed, own, metric) for seed, own in seeds.items()]
        for method, seeds in grouped.items()
    }


def _run(method: str, seed: float, rows: list[Row], metric: str) -> _Run:
    evaluated = [row for row in rows if row.get(metric) is not None]
    if not evaluated:
        names = dict.fromkeys(name for row in rows for name in row)
        raise ValueError(
            f"no row of method {method!r} on seed {seed:g} has {metric!r}; run it with test "
            f"examples, or choose a metric out of {', '.join(names)}"
        )
    names = dict.fromkeys(
        name for row in evaluated for name, value in row.items() if not isinstance(value, str)
    )
    columns = {name: np.array([_number(row.get(name)) for row in evaluated]) for name in names}
    fall = np.flatnonzero(np.diff(columns["round"]) < 0)
    if len(fall):
        raise ValueError(
            f"method {method!r} on seed {seed:g} goes from round {columns['round'][fall[0]]:g} "
            f"back to {columns['round'][fall[0] + 1]:g}; give each run once, and every method a "
            "label of its own"
        )
    finite = np.isfinite(columns[metric])
    if "test_loss" in columns:
        # the accuracy of a model of NaNs is that of always answering 0; an absent loss says nothing
        given = np.array([row.get("test_loss") is not None for row in evaluated])
        finite &= np.isfinite(columns["test_loss"]) | ~given
    return _Run(seed, np.where(finite, columns[metric], np.nan), columns)


def _number(value):
    return float("nan") if value is None else float(value)


def _check_target(target):
    if not np.isfinite(target):
        raise ValueError(f"target={target} is out of range; give a finite quality, such as 0.9")


def _check_method(name, label, runs):
    if label not in runs:
        raise ValueError(f"{name}={label!r} is no method of these rows; choose {' or '.join(runs)}")


def _reaches(quality, target):
    return quality >= target - TOLERANCE


def _mean_curve(label, seeds):
    """float[evaluations]: the mean over seeds, NaN where one has diverged."""
    for run in seeds[1:]:
        if not np.array_equal(run.columns["round"], seeds[0].columns["round"]):
            raise ValueError(
                f"method {label!r} was evaluated at different rounds on seeds {seeds[0].seed:g} "
                f"and {run.seed:g}; run both for as long, with one eval_every"
            )
    return np.mean([run.quality for run in seeds], axis=0)


def _best_of(seeds):
    return np.array([np.fmax.reduce(run.quality) for run in seeds])


def _diverged(seeds):
    return sum(bool(np.isnan(run.quality).any()) for run in seeds)


def _reaching(seeds, target):
    return sum(run.first(target) is not None for run in seeds)


def _at(seeds, name, indices):
    """A column's mean over seeds at one evaluation of each, None where it is not known."""
    if not all(name in run.columns for run in seeds):
        return None
    values = [run.columns[name][index] for run, index in zip(seeds, indices, strict=True)]
    mean = float(np.mean(values))
    return mean if np.isfinite(mean) else None


def _mean_when_reached(seeds, name, target):
    """A column's mean at the target over the seeds that reach it, None if that is below half."""
    reached = [run for run in seeds if run.first(target) is not None]
    if 2 * len(reached) < len(seeds):
        return None
    return _at(reached, name, [run.first(target) for run in reached])


def _cost_to(target, curve, seeds):
    hits = np.flatnonzero(_reaches(curve, target))
    if not len(hits):
        return None
    return Cost(
        *(_at(seeds, name, [hits[0]] * len(seeds)) for name in ("round", "upload_bytes", "flops"))
    )


def _rounds_to(seeds, target, budget):
    """r, the mean over seeds of the rounds to the target, the budget for those that never do."""
    if np.isnan(target):
        return None
    first = [run.first(target) for run in seeds]
    rounds = [
        budget if index is None else run.columns["round"][index]
        for run, index in zip(seeds, first, strict=True)
    ]
    return float(np.mean(rounds))


def _per_round(seeds, names):
    """Sum of cost columns in a mean round of the whole runs, None where one is not known."""
    ends = [len(run.quality) - 1 for run in seeds]
    totals = [_at(seeds, name, ends) for name in names]
    rounds = _at(seeds, "round", ends)
    return None if None in totals or not rounds else sum(totals) / rounds


def _traffic(label, seeds):
    """Bytes of all clients, down and up, in a round."""
    found = _per_round(seeds, ("download_bytes", "upload_bytes"))
    if not found:
        raise ValueError(
            f"the rows of method {label!r} do not tell the bytes of its rounds; give rows with "
            "download_bytes and upload_bytes, as simulate returns them"
        )
    return found


def _until(run, budget):
    kept = run.columns["round"] <= budget
    columns = {name: values[kept] for name, values in run.columns.items()}
    return _Run(run.seed, run.quality[kept], columns)


def _window(label, run, last, budget):
    """The qualities in the last rounds; the model before the first round is in none."""
    rounds = run.columns["round"]
    inside = run.quality[(rounds > max(budget - last, 0)) & (rounds <= budget)]
    if not len(inside):
        raise ValueError(
            f"method {label!r} on seed {run.seed:g} has no evaluation in rounds "
            f"{max(budget - last, 0) + 1} to {budget}; run it to round {budget}, evaluate every "
            f"{last} rounds or more often, or give another budget"
        )
    return inside


def _product(left, right):
    return None if left is None or right is None else left * right
