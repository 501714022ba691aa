"""Counts a client's FLOPs and memory from the code."""

from fedjax_algos.analysis.costs.flops import Flops as Flops
from fedjax_algos.analysis.costs.flops import UncountedError as UncountedError
from fedjax_algos.analysis.costs.measured import ClientMemory as ClientMemory
from fedjax_algos.analysis.costs.measured import count_flops as count_flops
from fedjax_algos.analysis.costs.measured import count_memory as count_memory
