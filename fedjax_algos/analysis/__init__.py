"""Measurements of a run: evaluation, costs, diagnostics, pictures, statistics over seeds."""

from fedjax_algos.analysis import diagnostics, pictures, statistics
from fedjax_algos.analysis.costs import (
    ClientMemory,
    Flops,
    UncountedError,
    count_flops,
    count_memory,
)
from fedjax_algos.analysis.evaluation import (
    ClientSummary,
    make_evaluate,
    make_evaluate_clients,
    summarise_clients,
)
from fedjax_algos.analysis.personal_evaluation import (
    EvaluateOwn,
    EvaluatePersonal,
    make_evaluate_own,
    make_evaluate_personal,
)
from fedjax_algos.analysis.rows import metrics_row
from fedjax_algos.analysis.summary import MethodSummary, PairedSummary, summarise, summarise_pairs

__all__ = [
    "ClientMemory",
    "ClientSummary",
    "EvaluateOwn",
    "EvaluatePersonal",
    "Flops",
    "MethodSummary",
    "PairedSummary",
    "UncountedError",
    "count_flops",
    "count_memory",
    "diagnostics",
    "make_evaluate",
    "make_evaluate_clients",
    "make_evaluate_own",
    "make_evaluate_personal",
    "metrics_row",
    "pictures",
    "statistics",
    "summarise",
    "summarise_clients",
    "summarise_pairs",
]
