"""The FedGBO paper's summary: the highest quality, and the cost to reach it.

Source: Table IV of Mills et al., "Accelerating Federated Learning with a Global Biased Optimiser",
2023, https://arxiv.org/abs/2108.09134.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.statistics import METRIC, Estimate, describe_estimates, first_at
from fedjax_algos.analysis.tables import Column, amounts, percentages
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice
from paper_measures.runs import runs_of


class Cost(NamedTuple):
    """Means over seeds of the costs up to an evaluation; None for columns that the rows lack."""

    rounds: float
    upload_bytes: float | None
    flops: float | None

    def record(self, name: str) -> dict[str, float | None]:
        """The costs as numbers for a file, by column."""
        return {f"{name}_{column}": value for column, value in self._asdict().items()}


class Maximum(NamedTuple):
    """The result of `maximum_and_cost` for one method.

    Attributes:
      best: the quality at the evaluation where its mean over seeds is highest; NaN if no mean is
        finite.
      best_of_seeds: mean over seeds of each seed's highest quality.
      cost: to reach the mean of `best`.
      reference_cost: to reach that of the reference; None if it is never reached.
    """

    label: str
    best: Estimate
    best_of_seeds: float
    cost: Cost | None
    reference_cost: Cost | None
    seeds_diverged: int
    seeds: int


def maximum_and_cost(
    rows: list[Row], reference: str = "fedavg", *, metric: str = METRIC
) -> list[Maximum]:
    """The highest quality, the cost to reach it, and the cost to reach the reference's highest.

    The maximum is that of the mean curve over seeds, with the interval at that evaluation. Costs
    are those of the first evaluation at which the mean curve reaches the value. The paper does not
    say so, but its costs are whole multiples of the rounds between evaluations, which means over
    five seeds' own costs would not be. Where a seed has diverged, the mean curve is NaN.
    """
    runs = runs_of(rows, metric)
    check_choice("reference", reference, runs)
    curves = {label: _mean_curve(seeds) for label, seeds in runs.items()}
    best = {label: float(np.fmax.reduce(curve)) for label, curve in curves.items()}
    best_at = {label: np.argmax(curve == best[label]) for label, curve in curves.items()}
    return [
        Maximum(
            label,
            best=Estimate(tuple(float(run.quality[best_at[label]]) for run in seeds)),
            best_of_seeds=float(seeds.best().mean()),
            cost=_cost_to(best[label], curves[label], seeds),
            reference_cost=_cost_to(best[reference], curves[label], seeds),
            seeds_diverged=seeds.diverged(),
            seeds=len(seeds),
        )
        for label, seeds in runs.items()
    ]


def _mean_curve(seeds):
    """The mean over seeds, float[evaluations]; NaN where a seed has diverged."""
    longest = max(seeds, key=lambda run: len(run.quality))
    curves = np.full((len(seeds), len(longest.quality)), np.nan)
    for run, curve in zip(seeds, curves, strict=True):
        rounds = run.columns["round"]
        expected = longest.columns["round"]
        if run.has_diverged():
            expected = expected[: len(rounds)]
        if not np.array_equal(rounds, expected):
            raise ValueError(
                f"method {run.method!r} was evaluated at different rounds on seeds "
                f"{longest.seed:g} and {run.seed:g}; run both for as long, with one eval_every"
            )
        curve[: len(rounds)] = run.quality
    return curves.mean(axis=0)


def _cost_to(target, curve, seeds):
    index = first_at(curve, target)
    columns = ("round", "upload_bytes", "flops")
    return None if index is None else Cost(*(seeds.mean_at(name, index) for name in columns))


def columns_of(lines: Sequence[Maximum]) -> tuple[list[Column], list[str]]:
    """The columns and the notes of the table."""
    columns = [
        percentages("best", [line.best for line in lines]),
        percentages("best of seeds", [line.best_of_seeds for line in lines]),
    ]
    for heading, costs in (
        ("", [line.cost for line in lines]),
        (" to the reference's", [line.reference_cost for line in lines]),
    ):
        columns += [
            Column(f"rounds{heading}", [cost and cost.rounds for cost in costs], ".10g"),
            amounts(f"upload{heading}", [cost and cost.upload_bytes for cost in costs], "B"),
            amounts(f"flops{heading}", [cost and cost.flops for cost in costs], "FLOP"),
        ]
    notes = [
        "best: the highest mean over seeds of the {quality} in % at one evaluation, chosen on "
        f"test data; {describe_estimates(lines[0].seeds)}.",
        "best of seeds: the mean of each seed's highest, chosen on test data.",
        "rounds, upload, flops (of all clients): to the first evaluation at the best mean, or at "
        "the reference's; means over seeds.",
    ]
    return columns, notes
