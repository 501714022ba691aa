"""A functional simulator of federated learning in JAX."""

from typing import TYPE_CHECKING

from fedjax_algos.base.lazy import listed

if TYPE_CHECKING:
    from fedjax_algos import algorithms as algorithms
    from fedjax_algos import analysis as analysis
    from fedjax_algos import asynchrony as asynchrony
    from fedjax_algos import core as core
    from fedjax_algos import data as data
    from fedjax_algos import engine as engine
    from fedjax_algos import models as models
    from fedjax_algos import participation as participation
    from fedjax_algos import runs as runs
    from fedjax_algos import wrappers as wrappers
    from fedjax_algos._version import __version__ as __version__
    from fedjax_algos.analysis import count_flops as count_flops
    from fedjax_algos.analysis import count_memory as count_memory
    from fedjax_algos.analysis import diagnostics as diagnostics
    from fedjax_algos.analysis import make_evaluate as make_evaluate
    from fedjax_algos.analysis import make_evaluate_clients as make_evaluate_clients
    from fedjax_algos.analysis import make_evaluate_own as make_evaluate_own
    from fedjax_algos.analysis import make_evaluate_personal as make_evaluate_personal
    from fedjax_algos.analysis import summarise_clients as summarise_clients
    from fedjax_algos.core import Algorithm as Algorithm
    from fedjax_algos.core import Asynchrony as Asynchrony
    from fedjax_algos.core import ClassMean as ClassMean
    from fedjax_algos.core import ClientData as ClientData
    from fedjax_algos.core import Dispatch as Dispatch
    from fedjax_algos.core import Local as Local
    from fedjax_algos.core import Mean as Mean
    from fedjax_algos.core import Model as Model
    from fedjax_algos.core import Population as Population
    from fedjax_algos.core import Prelude as Prelude
    from fedjax_algos.core import Problem as Problem
    from fedjax_algos.core import Report as Report
    from fedjax_algos.core import ReverseMode as ReverseMode
    from fedjax_algos.core import Selection as Selection
    from fedjax_algos.core import Stack as Stack
    from fedjax_algos.core import Step as Step
    from fedjax_algos.core import Traits as Traits
    from fedjax_algos.core import WeightedSum as WeightedSum
    from fedjax_algos.core import client_optimizer as client_optimizer
    from fedjax_algos.core import local_training as local_training
    from fedjax_algos.core import weighted_by as weighted_by
    from fedjax_algos.data import FederatedData as FederatedData
    from fedjax_algos.data import Partition as Partition
    from fedjax_algos.data import federate as federate
    from fedjax_algos.engine import ClientStates as ClientStates
    from fedjax_algos.engine import Engine as Engine
    from fedjax_algos.engine import Executor as Executor
    from fedjax_algos.engine import FederatedState as FederatedState
    from fedjax_algos.engine import PureRound as PureRound
    from fedjax_algos.engine import RowsOnDisk as RowsOnDisk
    from fedjax_algos.engine import client_states as client_states
    from fedjax_algos.engine import keep_compiled as keep_compiled
    from fedjax_algos.engine import make_engine as make_engine
    from fedjax_algos.engine import make_executor as make_executor
    from fedjax_algos.engine import measure_compilation as measure_compilation
    from fedjax_algos.engine import pure_round as pure_round
    from fedjax_algos.participation import differentiable as differentiable
    from fedjax_algos.participation import traced_dispatches as traced_dispatches
    from fedjax_algos.runs import Checkpoints as Checkpoints
    from fedjax_algos.runs import iterate_rounds as iterate_rounds
    from fedjax_algos.runs import load_model as load_model
    from fedjax_algos.runs import load_state as load_state
    from fedjax_algos.runs import save_model as save_model
    from fedjax_algos.runs import simulate as simulate
    from fedjax_algos.runs import simulate_async as simulate_async
    from fedjax_algos.runs import simulate_async_seeds as simulate_async_seeds
    from fedjax_algos.runs import sweep as sweep
else:
    __all__, __dir__, __getattr__ = listed(__name__)
