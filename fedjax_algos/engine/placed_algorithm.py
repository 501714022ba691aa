"""The base of engines and executors: places the state and the examples of a run on devices."""

import copy
import dataclasses
from functools import partial
from typing import Any, Self

import jax
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import check_device_memory
from fedjax_algos.core import Algorithm, Model, Params, Population, checks
from fedjax_algos.core.options import NonFinite
from fedjax_algos.core.randomness import model_key
from fedjax_algos.data.stored import StoredData
from fedjax_algos.engine import state as states
from fedjax_algos.engine.checks import StateCheck, check_population
from fedjax_algos.engine.placed import on_disk, sharded_data
from fedjax_algos.engine.placed.cohort_data import PIECE, CohortData
from fedjax_algos.engine.placed.devices import (
    bytes_of_device,
    place_state,
    put_state,
    replicate,
    shapes_on,
)
from fedjax_algos.engine.slots import Placement
from fedjax_algos.models.outputs import check_labels


@dataclasses.dataclass(eq=False, repr=False)
class PlacedAlgorithm:
    """Base of `Engine` and `Executor`: places the state and the examples of a run."""

    algorithm: Algorithm
    placement: Placement
    non_finite: NonFinite
    client_state: on_disk.ClientStatePlace = "device"
    sharded: bool = False

    def __post_init__(self) -> None:
        self._mesh, self._on_device = self.placement.mesh, self.client_state == "device"
        self._checked = StateCheck(self.algorithm, on_disk.place_name(self.client_state))
        initial = partial(states.initial_state, self.algorithm, self.placement)
        initial = partial(initial, non_finite=self.non_finite, on_device=self._on_device)
        self._initial_state = jax.jit(initial, static_argnames="population")

    def with_algorithm(self, algorithm: Algorithm) -> Self:
        """Returns a copy for an algorithm with another learning rate, without recompilation."""
        same = copy.copy(self)
        same.algorithm = algorithm
        return same

    def init(
        self,
        seed: int,
        population: Population,
        params: Params | Model | None = None,
        clients: states.ClientStates | None = None,
    ) -> states.FederatedState:
        """Returns the state of a run before its first round or server step.

        Args:
          seed: the seed of the model, the clients' batches and their noise.
          population: the number of clients, the cohort size and the number of examples.
          params: the initial params, or a `Model` if the model also has statistics. They are
            copied. None uses the problem's own initialisation.
          clients: the rows of client state, for example from another run. They are copied. None
            initialises a row at its client's first dispatch.
        """
        checks.check_seed(seed)
        check_population(population)
        init, uint = self.algorithm.problem.init, np.uint32(seed)
        model = checks.as_model(self.algorithm.problem, params)
        shapes = self.shapes(population, model)
        shared = self._mesh is not None and self._mesh.per_client > 1
        if model is None and not shared:  # else no device has to hold all of it
            model = initial_model(init, uint)
        # jit gives each leaf its own buffer, so that rounds can donate them
        arguments = replicate(self._mesh, uint), put_state(self._mesh, model)
        state = self._initial_state(*arguments, population=population)
        if not self._on_device:
            state = state._replace(clients=shapes.clients)
        if clients is None:
            return state
        return states.give_rows(self.algorithm, self._mesh, state, clients)

    def shapes(self, population: Population, model: Model | None = None) -> states.FederatedState:
        """Returns the shapes of the state that `init` makes; ValueError if it exceeds the memory.

        Args:
          population, model: as for `init`.
        """
        uint: Any = np.uint32(0)
        if model is None:
            model = initial_model.eval_shape(self.algorithm.problem.init, uint)
        checks.check_initial(model)
        state = self._initial_state.eval_shape(uint, model, population=population)
        size = bytes_of_device(self._mesh, state._replace(clients=()))
        size += bytes_of_device(self._mesh, state.clients, rows=True)
        what = f"the state of {population.num_clients} clients"
        fix = "give a smaller model or, if clients keep state, fewer clients or client_state='host'"
        devices = 1 if self._mesh is None else len(self._mesh.devices)
        check_device_memory(what, size, fix, devices=devices)
        if self._on_device:
            return state
        rows, place = states.row_shapes(self.algorithm, state), self.client_state
        if isinstance(place, on_disk.RowsOnDisk):
            disk = on_disk.DiskClientState(place.folder, rows, population.num_clients)
            return state._replace(clients=disk)
        return state._replace(clients=states.HostClientState(rows))

    def _placed_shapes(self, population: Population) -> states.FederatedState:
        """Returns the shapes with the shardings of the state that `init` makes."""
        return place_state(shapes_on, self._mesh, self.shapes(population))

    def put_data(self, data: sharded_data.RunData) -> sharded_data.DeviceData:
        """Places the clients' examples on the devices; call it once.

        On one device it returns data in memory unchanged.

        Args:
          data: as `federate`, `open_federated` or this function returns them, the same in every
            process. Examples in files are read later, cohort by cohort.

        Raises:
          ValueError: for data that are sharded over other devices, or that must not be in files.
        """
        checks.check_kind("data", data, sharded_data.RunData, sharded_data.RUN_DATA_FIX)
        if isinstance(data, StoredData):
            return self._stored(data)
        self._checked.check_examples(data)
        return data if self._mesh is None or isinstance(data, CohortData) else self._put(data)

    def _stored(self, data):
        """Prepares examples in files for the programs."""
        algorithm, sizes = self.algorithm, data.counts()
        found = "the algorithm's clients read the examples of all others, which are in files"
        fix = "give federate(...) of examples in memory"
        require(not algorithm.traits.pools_examples, f"{found}; {fix}")

        def check(cohort):
            check_labels(algorithm.problem, "the examples of a cohort", cohort.examples)

        least_rows = max(PIECE, algorithm.local.batch_size)
        number = self.placement.num_devices
        devices = sharded_data.assign_devices(sizes, number) if self.sharded else None
        return CohortData(data, partial(self._put, sizes=sizes), check, least_rows, devices)

    def _put(self, data, sizes=None):
        if self.sharded:
            return sharded_data.shard(self._mesh, data, sizes)
        return replicate(self._mesh, data)


@partial(jax.jit, static_argnums=0)
def initial_model(init, seed):
    """Initialises the model; compiled once for all algorithms on a problem."""
    return init(model_key(seed))
