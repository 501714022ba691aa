"""Bytes, FLOPs and memory of a client: counted from the code, and by the formulas of two papers."""

from fedjax_algos.analysis.costs.flops import Flops, UncountedError
from fedjax_algos.analysis.costs.measured import ClientMemory, count_flops, count_memory
from fedjax_algos.analysis.costs.paper import (
    DERIVED_COSTS,
    GHBM_PAPER_OVERHEADS,
    PUBLISHED_COSTS,
    PaperCosts,
    paper_costs,
    paper_flops,
    paper_macs,
    paper_upload,
)

__all__ = [
    "DERIVED_COSTS",
    "GHBM_PAPER_OVERHEADS",
    "PUBLISHED_COSTS",
    "ClientMemory",
    "Flops",
    "PaperCosts",
    "UncountedError",
    "count_flops",
    "count_memory",
    "paper_costs",
    "paper_flops",
    "paper_macs",
    "paper_upload",
]
