"""A functional simulator of federated learning in JAX."""

from fedjax_algos import algorithms, data, diagnostics, models, schedules, summaries
from fedjax_algos._version import __version__
from fedjax_algos.clock import simulate_on_clock, simulate_seeds_on_clock
from fedjax_algos.cohort import FederatedState
from fedjax_algos.core import (
    Algorithm,
    ClientData,
    Local,
    Mean,
    Model,
    Population,
    Prelude,
    Problem,
    Report,
    Stack,
    Visit,
    WeightedSum,
    weighted_by,
)
from fedjax_algos.costs import count_flops, count_memory
from fedjax_algos.data import FederatedData, Partition, federate
from fedjax_algos.engine import Engine, make_engine
from fedjax_algos.evaluation import make_evaluate, make_evaluate_clients, summarise_clients
from fedjax_algos.executor import make_executor
from fedjax_algos.layouts import choose_layout
from fedjax_algos.local import Step, local_training
from fedjax_algos.personal_evaluation import make_evaluate_personal
from fedjax_algos.simulation import simulate

__all__ = [
    "Algorithm",
    "ClientData",
    "Engine",
    "FederatedData",
    "FederatedState",
    "Local",
    "Mean",
    "Model",
    "Partition",
    "Population",
    "Prelude",
    "Problem",
    "Report",
    "Stack",
    "Step",
    "Visit",
    "WeightedSum",
    "__version__",
    "algorithms",
    "choose_layout",
    "count_flops",
    "count_memory",
    "data",
    "diagnostics",
    "federate",
    "local_training",
    "make_engine",
    "make_evaluate",
    "make_evaluate_clients",
    "make_evaluate_personal",
    "make_executor",
    "models",
    "schedules",
    "simulate",
    "simulate_on_clock",
    "simulate_seeds_on_clock",
    "summaries",
    "summarise_clients",
    "weighted_by",
]
