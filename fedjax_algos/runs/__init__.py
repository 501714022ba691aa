"""Runs: in rounds, on the virtual clock, many in one program, and comparisons of methods."""

from typing import TYPE_CHECKING

from fedjax_algos.base.lazy import listed

if TYPE_CHECKING:
    from fedjax_algos.runs import comparison as comparison
    from fedjax_algos.runs import results as results
    from fedjax_algos.runs.loops.checkpoints import Checkpoints as Checkpoints
    from fedjax_algos.runs.loops.checkpoints import load_state as load_state
    from fedjax_algos.runs.loops.clock import AsyncResult as AsyncResult
    from fedjax_algos.runs.loops.clock import simulate_async as simulate_async
    from fedjax_algos.runs.loops.clock import simulate_async_seeds as simulate_async_seeds
    from fedjax_algos.runs.loops.interruption import Interrupted as Interrupted
    from fedjax_algos.runs.loops.interruption import finish_calls as finish_calls
    from fedjax_algos.runs.loops.model_file import load_model as load_model
    from fedjax_algos.runs.loops.model_file import save_model as save_model
    from fedjax_algos.runs.loops.recorder import DivergenceWarning as DivergenceWarning
    from fedjax_algos.runs.loops.run import Run as Run
    from fedjax_algos.runs.loops.run_batched import BatchedResult as BatchedResult
    from fedjax_algos.runs.loops.run_batched import run_batched as run_batched
    from fedjax_algos.runs.loops.simulation import iterate_rounds as iterate_rounds
    from fedjax_algos.runs.loops.simulation import simulate as simulate
    from fedjax_algos.runs.studies.experiment import Experiment as Experiment
    from fedjax_algos.runs.studies.method import Method as Method
    from fedjax_algos.runs.studies.method import methods_of as methods_of
    from fedjax_algos.runs.studies.settings import Settings as Settings
    from fedjax_algos.runs.studies.sweeps import Sweep as Sweep
    from fedjax_algos.runs.studies.sweeps import prepare_sweep as prepare_sweep
    from fedjax_algos.runs.studies.sweeps import run_sweep as run_sweep
    from fedjax_algos.runs.studies.sweeps import sweep as sweep
else:
    __all__, __dir__, __getattr__ = listed(__name__)
