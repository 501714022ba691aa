"""Statistics over seeds: estimates, paired differences, the best method, and costs to a target."""

from fedjax_algos.analysis.statistics.best import (
    LEVEL,
    MIN_SEEDS_OF_A_TEST,
    Mark,
    holm,
    mark_best,
    paired_p_value,
)
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
    "LEVEL",
    "MAX_SEEDS_OF_VALUES",
    "METRIC",
    "MIN_SEEDS_OF_AN_INTERVAL",
    "MIN_SEEDS_OF_A_TEST",
    "PREFIX",
    "SPREADS",
    "TOLERANCE",
    "CostToTarget",
    "Difference",
    "Estimate",
    "Mark",
    "check_target_metric",
    "choose_spread",
    "confidence_half_width",
    "describe_costs",
    "describe_estimates",
    "diverged",
    "finite_quality",
    "first_at",
    "holm",
    "mark_best",
    "paired_difference",
    "paired_p_value",
    "ratio_on_common_seeds",
    "records",
    "spread",
]
