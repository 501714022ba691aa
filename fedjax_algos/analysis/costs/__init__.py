"""FLOPs and memory of a client, counted from the code."""

from fedjax_algos.analysis.costs.flops import Flops, UncountedError
from fedjax_algos.analysis.costs.measured import ClientMemory, count_flops, count_memory

__all__ = ["ClientMemory", "Flops", "UncountedError", "count_flops", "count_memory"]
