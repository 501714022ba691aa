"""The functions of an engine: they check and place what they are given, and call the programs.

A round is two compiled functions, one for the cohort and one for the server update, which may be
preceded by those of a prelude. With client state on the device and examples in memory, many rounds
are one function. Otherwise each round is a call, between which rows or examples are moved.
"""

from functools import partial

import jax
import numpy as np

from fedjax_algos.core.checks import (
    as_model,
    check_dispatches,
    check_kind,
    check_not_consumed,
    check_seed,
)
from fedjax_algos.core.keys import model_key
from fedjax_algos.core.trees import add_trees
from fedjax_algos.core.user_functions import check_initial
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.data.stored import StoredData
from fedjax_algos.engine.checks import StateCheck, check_population, check_state_memory
from fedjax_algos.engine.client_states import give_rows
from fedjax_algos.engine.cohort_data import CohortData, cohort_data
from fedjax_algos.engine.devices import replicate, wait_on_cpu
from fedjax_algos.engine.disk_client_state import DiskClientState, RowsOnDisk, place_name
from fedjax_algos.engine.federated_round import FederatedRound, after_round, run_rounds
from fedjax_algos.engine.non_finite import check_excluded
from fedjax_algos.engine.placement import fill_slots
from fedjax_algos.engine.sharded_data import (
    DeviceData,
    RunData,
    assign_devices,
    program_data,
    shard,
)
from fedjax_algos.engine.state import (
    HostClientState,
    initial_state,
    read_rows,
    row_shapes,
    write_rows,
)


class CompiledRounds:
    """The functions of an `Engine`, over the compiled ones; `protocols.py` documents them.

    Args:
      algorithm: what is computed.
      placement: layout and devices.
      client_state: where its rows are: "device", "host" or `RowsOnDisk`.
      sharded: whether each device holds the examples of its own clients only.
      non_finite: "exclude", "error" or "keep".
    """

    def __init__(self, algorithm, placement, client_state, sharded, non_finite):
        self.algorithm, self.placement, self.mesh = algorithm, placement, placement.mesh
        self.client_state, self.sharded = client_state, sharded
        self.on_device = client_state == "device"
        self.non_finite = non_finite

        def consuming(function, *fixed):
            return jax.jit(partial(function, *fixed), donate_argnums=0)

        traced = FederatedRound(algorithm, placement, self.on_device, non_finite)
        start = partial(initial_state, algorithm, placement, non_finite=non_finite)
        self.initial_state = jax.jit(start, static_argnames=("population", "num_rows"))
        self.run_prelude = jax.jit(traced.run_prelude)
        self.prelude_step = consuming(traced.server_step, algorithm.prelude)
        self.run_cohort = consuming(traced.run_cohort)
        self.server_step = consuming(traced.server_step, algorithm)
        self.run_rounds = jax.jit(
            partial(run_rounds, algorithm, placement, non_finite=non_finite), donate_argnums=0
        )
        self.cohort_updates = jax.jit(traced.cohort_updates)
        self.checked = StateCheck(algorithm, place_name(client_state))

    def init(self, seed, population, params=None, clients=None):
        check_seed(seed)
        check_population(population)
        seed, init = np.uint32(seed), self.algorithm.problem.init
        model = as_model(init, params)
        facts = {
            "population": population,
            "num_rows": population.num_clients if self.on_device else 0,
        }
        model_shapes = _initial_model.eval_shape(init, seed) if model is None else model
        check_initial(model_shapes)
        shapes = self.initial_state.eval_shape(seed, model_shapes, **facts)
        check_state_memory(self.placement, shapes, population)
        if model is None:
            model = _initial_model(init, seed)
        # jit gives each leaf a buffer of its own, so that rounds can donate them
        state = self.initial_state(*replicate(self.mesh, (seed, model)), **facts)
        if not self.on_device:
            state = state._replace(clients=self._no_rows(state, population.num_clients))
        if clients is not None:
            state = give_rows(self.algorithm, self.placement, state, clients)
        return state

    def put_data(self, data):
        fix = "give what federate or open_federated returned"
        check_kind("data", data, RunData, fix)
        if isinstance(data, StoredData):
            sizes = data.counts()
            devices = assign_devices(sizes, self.mesh.size) if self.sharded else None
            return cohort_data(self.algorithm, data, partial(self._put, sizes=sizes), devices)
        self.checked.check_examples(data)
        if self.mesh is None or isinstance(data, CohortData):
            return data
        return self._put(data)

    def _put(self, data, sizes=None):
        return shard(self.mesh, data, sizes) if self.sharded else replicate(self.mesh, data)

    def round(self, state, data, dispatches):
        self.checked.check(state, data, dispatches, ("cohort",))
        data, dispatches, _ = self._prepare(data, dispatches)
        return self._compute(state, next(self._present(data, dispatches.client[None])), dispatches)

    def rounds(self, state, data, dispatches, number=None):
        self.checked.check(state, data, dispatches, ("rounds", "cohort"))
        given = len(dispatches.client)
        number = given if number is None else number
        if not 1 <= number <= given:
            raise ValueError(
                f"number={number} is out of range; give 1 to {given}, the rounds of dispatches"
            )
        data, dispatches, _ = self._prepare(data, dispatches)
        if self.on_device and not isinstance(data, CohortData):
            inputs = replicate(self.mesh, (dispatches, np.int32(number)))
            state, metrics = wait_on_cpu(self.mesh, self.run_rounds(state, data, *inputs))
            check_excluded(self.non_finite, state.excluded)
            return state, metrics
        total = None
        for index, present in enumerate(self._present(data, dispatches.client[:number])):
            of_round = jax.tree.map(lambda leaf, i=index: leaf[i], dispatches)
            state, metrics = self._compute(state, present, of_round)
            jax.block_until_ready(total)  # so that the examples of two cohorts are in use at most
            total = metrics if total is None else add_trees(total, metrics)
        return state, total

    def updates(self, state, data, dispatches):
        check_kind("data", data, DeviceData, "give what federate or engine.put_data returned")
        check_not_consumed(state.server)  # diagnostics have server states of their own
        if not isinstance(dispatches.client, jax.core.Tracer):
            check_dispatches(dispatches, data.num_clients, ("cohort",))
        slots = None
        if not isinstance(data, FederatedData) or self.sharded:
            data, dispatches, order = self._prepare(data, dispatches)
            data = next(self._present(data, dispatches.client[None]))
            slots = np.argsort(order)[np.count_nonzero(order < 0) :]
        rows, shared = self._rows(state, dispatches), state._replace(clients=())
        return self.cohort_updates(rows, shared, data, *replicate(self.mesh, (dispatches, slots)))

    def _prepare(self, data, dispatches):
        """(what programs read of the data, the dispatches in their slots, the order of these)."""
        device_data = program_data(self.mesh, self.sharded, data)
        devices = data.devices_of(np.asarray(dispatches.client)) if self.sharded else None
        order = self.placement.slot_order(np.asarray(dispatches.num_steps), devices)
        return device_data, fill_slots(dispatches, order, data.num_clients), order

    def _present(self, data, clients):
        """What the programs read in each round: of stored data, the examples of its cohort."""
        if not isinstance(data, CohortData):
            return iter([data] * len(clients))
        return (program_data(self.mesh, self.sharded, each) for each in data.cohorts(clients))

    def _rows(self, state, dispatches):
        table = state.clients
        return table if self.on_device else read_rows(self.mesh, table, dispatches)

    def _no_rows(self, state, num_clients):
        shapes = row_shapes(self.algorithm, state)
        if isinstance(self.client_state, RowsOnDisk):
            return DiskClientState(self.client_state.folder, shapes, num_clients)
        return HostClientState(shapes)

    def _compute(self, state, data, dispatches):
        """One round of what `_prepare` returned."""
        on_device, shared = replicate(self.mesh, dispatches), state._replace(clients=())
        if self.algorithm.prelude is not None:
            first = self.run_prelude(shared, data, on_device)
            server, _ = self.prelude_step((shared.server, ()), first.arrivals)
            shared = shared._replace(server=server, excluded=first.excluded)
        result = self.run_cohort(self._rows(state, dispatches), shared, data, on_device)
        check_excluded(self.non_finite, result.excluded)
        after = self.server_step((shared.server, shared.statistics), result.arrivals)
        if not self.on_device:
            rows = write_rows(state.clients, dispatches, result.rows, data.num_clients)
            result = result._replace(rows=rows)
        return wait_on_cpu(self.mesh, (after_round(shared, after, result), result.metrics))


@partial(jax.jit, static_argnums=0)
def _initial_model(init, seed):
    """Compiled once for all algorithms on a problem."""
    return init(model_key(seed))
