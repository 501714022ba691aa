"""Statistics over seeds: estimates, paired differences, and costs to reach a target."""

from fedjax_algos.analysis.statistics.estimates import (
    MIN_SEEDS_OF_AN_INTERVAL,
    Estimate,
    confidence_half_width,
    describe_estimates,
    describe_spread,
    spread,
)
from fedjax_algos.analysis.statistics.pairs import Difference, paired_difference
from fedjax_algos.analysis.statistics.records import records
from fedjax_algos.analysis.statistics.targets import (
    TOLERANCE,
    CostToTarget,
    first_at,
    ratio_on_common_seeds,
)

__all__ = [
    "MIN_SEEDS_OF_AN_INTERVAL",
    "TOLERANCE",
    "CostToTarget",
    "Difference",
    "Estimate",
    "confidence_half_width",
    "describe_estimates",
    "describe_spread",
    "first_at",
    "paired_difference",
    "ratio_on_common_seeds",
    "records",
    "spread",
]
