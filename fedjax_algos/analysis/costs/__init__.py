"""Bytes, FLOPs and memory of a client, as they are computed and as two of the papers count them."""

from fedjax_algos.analysis.costs.flops import Flops, UncountedError
from fedjax_algos.analysis.costs.measured import ClientMemory, count_flops, count_memory

__all__ = ["ClientMemory", "Flops", "UncountedError", "count_flops", "count_memory"]
