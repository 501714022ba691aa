"""Whole runs: the loop in rounds, the loop on the virtual clock, many runs at once, comparisons."""

from fedjax_algos.runs.async_simulation import simulate_on_clock, simulate_seeds_on_clock
from fedjax_algos.runs.batched import Run, Together, run_together
from fedjax_algos.runs.simulation import simulate
from fedjax_algos.runs.sweeps import sweep

__all__ = [
    "Run",
    "Together",
    "run_together",
    "simulate",
    "simulate_on_clock",
    "simulate_seeds_on_clock",
    "sweep",
]
