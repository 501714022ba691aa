"""Whole runs: in rounds, on the virtual clock, many in one program, and comparisons of methods."""

from fedjax_algos.runs import comparison, results
from fedjax_algos.runs.loops.checkpoints import Checkpoints, load_state
from fedjax_algos.runs.loops.clock import AsyncResult, simulate_async, simulate_async_seeds
from fedjax_algos.runs.loops.interruption import Interrupted, finish_calls
from fedjax_algos.runs.loops.model_file import load_model, save_model
from fedjax_algos.runs.loops.recorder import DivergenceWarning
from fedjax_algos.runs.loops.run import Run
from fedjax_algos.runs.loops.run_batched import BatchedResult, run_batched
from fedjax_algos.runs.loops.simulation import iterate_rounds, simulate
from fedjax_algos.runs.studies.experiment import Experiment
from fedjax_algos.runs.studies.method import Method, methods_of
from fedjax_algos.runs.studies.settings import Settings
from fedjax_algos.runs.studies.sweeps import Sweep, prepare_sweep, run_sweep, sweep

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
