"""Quantities that the papers plot, assume or bound, measured on a state that stays as it was.

The FedGBO paper plots how far a cohort's models point apart, the GHBM paper defines client drift
and bounds the error of gradients averaged over some rounds, and the FedLGA paper approximates
updates of complete turns. `Engine.updates` gives the updates for the first and the last.
"""

from fedjax_algos.analysis.diagnostics.approximation import (
    ApproximationError,
    Fallback,
    PartialTurns,
    approximation_error,
    lga_factors,
    partial_turns,
)
from fedjax_algos.analysis.diagnostics.drift import (
    client_drift,
    cosine_drift,
    local_models,
    steps_of,
)
from fedjax_algos.analysis.diagnostics.gradients import (
    AveragedGradientError,
    averaged_gradient_error,
)

__all__ = [
    "ApproximationError",
    "AveragedGradientError",
    "Fallback",
    "PartialTurns",
    "approximation_error",
    "averaged_gradient_error",
    "client_drift",
    "cosine_drift",
    "lga_factors",
    "local_models",
    "partial_turns",
    "steps_of",
]
