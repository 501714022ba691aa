"""Statistics over seeds: estimates, paired differences, and costs to reach a target."""

from fedjax_algos.analysis.statistics.divergence import (
    METRIC,
    PREFIX,
    diverged,
    finite_quality,
)
from fedjax_algos.analysis.statistics.estimates import (
    MAX_SEEDS_OF_VALUES,
    MIN_SEEDS_OF_AN_INTERVAL,
    SPREADS,
    Estimate,
    choose_spread,
    confidence_half_width,
    describe_estimates,
    spread,
)
from fedjax_algos.analysis.statistics.pairs import Difference, paired_difference
from fedjax_algos.analysis.statistics.records import records
from fedjax_algos.analysis.statistics.targets import (
    TOLERANCE,
    CostToTarget,
    check_target_metric,
    describe_costs,
    first_at,
    ratio_on_common_seeds,
)

__all__ = [
    "MAX_SEEDS_OF_VALUES",
    "METRIC",
    "MIN_SEEDS_OF_AN_INTERVAL",
    "PREFIX",
    "SPREADS",
    "TOLERANCE",
    "CostToTarget",
    "Difference",
    "Estimate",
    "check_target_metric",
    "choose_spread",
    "confidence_half_width",
    "describe_costs",
    "describe_estimates",
    "diverged",
    "finite_quality",
    "first_at",
    "paired_difference",
    "ratio_on_common_seeds",
    "records",
    "spread",
]
