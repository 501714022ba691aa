"""Batched runs: many runs in one compiled program, which takes their differences as arguments.

`run_batched.py` groups runs that can share a program and `program.py` is what is compiled.
"""

from fedjax_algos.runs.batched.run_batched import BatchedOptions, BatchedResult, run_batched
from fedjax_algos.runs.run import Run

__all__ = ["BatchedOptions", "BatchedResult", "Run", "run_batched"]
