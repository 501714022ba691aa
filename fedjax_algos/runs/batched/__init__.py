"""Batched runs: many runs in one compiled program, which takes their differences as arguments.

`run_batched.py` groups runs that can share a program, `execution.py` computes a group in calls,
`program.py` is what is compiled, and `rows.py` makes the rows of results.
"""

from fedjax_algos.runs.batched.rows import Run
from fedjax_algos.runs.batched.run_batched import BatchedOptions, BatchedResult, run_batched

__all__ = ["BatchedOptions", "BatchedResult", "Run", "run_batched"]
