"""What is measured of a run: evaluation, costs, diagnostics, timelines, papers' summaries."""

from fedjax_algos.analysis.costs import count_flops, count_memory
from fedjax_algos.analysis.evaluation import (
    make_evaluate,
    make_evaluate_clients,
    summarise_clients,
)
from fedjax_algos.analysis.personal_evaluation import make_evaluate_personal

__all__ = [
    "count_flops",
    "count_memory",
    "make_evaluate",
    "make_evaluate_clients",
    "make_evaluate_personal",
    "summarise_clients",
]
