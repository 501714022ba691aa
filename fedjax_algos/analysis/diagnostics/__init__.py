"""Quantities that the papers plot, assume or bound, measured on a state without changing it.

- FedGBO: how far the directions of a cohort's models differ (`cosine_drift`).
- GHBM: client drift, and the error of gradients that are averaged over some rounds.

`Engine.updates` returns the uploads of a cohort, for the first.
"""

from fedjax_algos.analysis.diagnostics.drift import (
    client_deltas,
    client_drift,
    cosine_drift,
    local_models,
)
from fedjax_algos.analysis.diagnostics.gradients import (
    AveragedGradientError,
    averaged_gradient_error,
)

__all__ = [
    "AveragedGradientError",
    "averaged_gradient_error",
    "client_deltas",
    "client_drift",
    "cosine_drift",
    "local_models",
]
