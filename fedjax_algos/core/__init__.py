"""The types that the whole library shares: problems, clients' data, algorithms, local training."""

from typing import TYPE_CHECKING

from fedjax_algos.base.lazy import listed

if TYPE_CHECKING:
    from fedjax_algos.core.algorithm import Algorithm as Algorithm
    from fedjax_algos.core.algorithm import Asynchrony as Asynchrony
    from fedjax_algos.core.algorithm import Prelude as Prelude
    from fedjax_algos.core.algorithm import Selection as Selection
    from fedjax_algos.core.algorithm import Traits as Traits
    from fedjax_algos.core.algorithm import Weighting as Weighting
    from fedjax_algos.core.algorithm import stateless as stateless
    from fedjax_algos.core.algorithm import weighted_by as weighted_by
    from fedjax_algos.core.client_data import ClientData as ClientData
    from fedjax_algos.core.client_data import batches_per_epoch as batches_per_epoch
    from fedjax_algos.core.example_noise import ExampleNoise as ExampleNoise
    from fedjax_algos.core.local_steps import Step as Step
    from fedjax_algos.core.local_steps import Train as Train
    from fedjax_algos.core.local_steps import Trained as Trained
    from fedjax_algos.core.local_steps import local_training as local_training
    from fedjax_algos.core.optimizers import client_optimizer as client_optimizer
    from fedjax_algos.core.optimizers import client_optimizers as client_optimizers
    from fedjax_algos.core.options import Batches as Batches
    from fedjax_algos.core.options import Row as Row
    from fedjax_algos.core.types import Array as Array
    from fedjax_algos.core.types import Batch as Batch
    from fedjax_algos.core.types import Broadcast as Broadcast
    from fedjax_algos.core.types import ClassMean as ClassMean
    from fedjax_algos.core.types import ClientState as ClientState
    from fedjax_algos.core.types import Contribution as Contribution
    from fedjax_algos.core.types import Dispatch as Dispatch
    from fedjax_algos.core.types import EqualSteps as EqualSteps
    from fedjax_algos.core.types import Key as Key
    from fedjax_algos.core.types import Local as Local
    from fedjax_algos.core.types import Mean as Mean
    from fedjax_algos.core.types import Metrics as Metrics
    from fedjax_algos.core.types import MetricValues as MetricValues
    from fedjax_algos.core.types import Model as Model
    from fedjax_algos.core.types import Outputs as Outputs
    from fedjax_algos.core.types import Params as Params
    from fedjax_algos.core.types import Population as Population
    from fedjax_algos.core.types import Problem as Problem
    from fedjax_algos.core.types import Report as Report
    from fedjax_algos.core.types import ReverseMode as ReverseMode
    from fedjax_algos.core.types import ServerState as ServerState
    from fedjax_algos.core.types import Stack as Stack
    from fedjax_algos.core.types import Statistics as Statistics
    from fedjax_algos.core.types import Update as Update
    from fedjax_algos.core.types import WeightedSum as WeightedSum
else:
    __all__, __dir__, __getattr__ = listed(__name__)
