"""Whole runs: in rounds, on the virtual clock, many in one program, and comparisons of methods."""

from fedjax_algos.runs import comparison, results
from fedjax_algos.runs.batched import BatchedResult, Run, run_batched
from fedjax_algos.runs.batched.sweeps import Sweep, prepare_sweep, run_sweep, sweep
from fedjax_algos.runs.clock import AsyncResult, simulate_async, simulate_async_seeds
from fedjax_algos.runs.experiment import Experiment
from fedjax_algos.runs.method import Method, methods_of
from fedjax_algos.runs.recorder import DivergenceWarning
from fedjax_algos.runs.saving.checkpoints import Checkpoints, load_state
from fedjax_algos.runs.saving.interruption import Interrupted, finish_calls
from fedjax_algos.runs.saving.model_file import load_model, save_model
from fedjax_algos.runs.settings import Settings
from fedjax_algos.runs.simulation import iterate_rounds, simulate

__all__ = [
    "AsyncResult",
    "BatchedResult",
    "Checkpoints",
    "DivergenceWarning",
    "Experiment",
    "Interrupted",
    "Method",
    "Run",
    "Settings",
    "Sweep",
    "comparison",
    "finish_calls",
    "iterate_rounds",
    "load_model",
    "load_state",
    "methods_of",
    "prepare_sweep",
    "results",
    "run_batched",
    "run_sweep",
    "save_model",
    "simulate",
    "simulate_async",
    "simulate_async_seeds",
    "sweep",
]
