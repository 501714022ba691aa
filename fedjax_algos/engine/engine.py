"""The engine compiles the rounds of any algorithm.

A round is two compiled functions: one for the cohort, one for the server update. A prelude adds two
before them. With client state on the device and examples in memory, many rounds are one function.
"""

import copy
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Literal, Self

import jax
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import accelerator_memory
from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Algorithm, Dispatch, Metrics, Population, Stack, checks
from fedjax_algos.core.options import NonFinite, check_choice
from fedjax_algos.core.trees import add_trees, take
from fedjax_algos.core.types import with_arrays
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.checks import check_options
from fedjax_algos.engine.exchange import Transfer, count_transfer
from fedjax_algos.engine.federated_round import FederatedRound, after_round
from fedjax_algos.engine.layouts import SHARE, held_shapes, largest_chunk, row_share
from fedjax_algos.engine.non_finite import check_excluded
from fedjax_algos.engine.placed.cohort_data import CohortData
from fedjax_algos.engine.placed.devices import Devices, mesh_of, replicate, shapes_on, wait_on_cpu
from fedjax_algos.engine.placed.on_disk import ClientStatePlace
from fedjax_algos.engine.placed.processes import fetch
from fedjax_algos.engine.placed.sharded_data import DeviceData, RunData, program_data
from fedjax_algos.engine.placed_algorithm import PlacedAlgorithm
from fedjax_algos.engine.slots import Layout, Placement, fill_slots, mark_equal_steps
from fedjax_algos.engine.state import FederatedState, read_rows, row_shapes, table_of, write_rows
from fedjax_algos.participation.cohorts import common_steps


class Engine(PlacedAlgorithm):
    """A compiled algorithm, as `make_engine` returns it.

    Attributes:
      algorithm, non_finite, client_state: as in `make_engine`.
      placement: the given layout, and the devices.
      sharded: whether each device holds the examples of its own clients only.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        compiled = partial(_compiled, self.algorithm, self._on_device, self.non_finite)
        self._chosen, self._programs = self.placement, cache(compiled)

    @property
    def layout(self) -> Layout:
        """The layout in use; on an accelerator the first cohort replaces "auto"."""
        return self._chosen.layout

    def with_layout(self, layout: Layout) -> Self:
        """Returns the same engine in another layout; programs compiled in this one are kept.

        Args:
          layout: as in `make_engine`.
        """
        same = copy.copy(self)
        same.placement = same._chosen = self.placement._replace(layout=layout)
        return same

    def choose_layout(self, state: FederatedState, data: RunData, dispatches: Dispatch) -> Layout:
        """Returns the layout, and chooses it first if it is "auto" and depends on device memory.

        Args:
          state, data: the state and the data of the run, or their shapes; not consumed.
          dispatches: the dispatches of one round.
        """
        if self.layout == "auto" and (memory := accelerator_memory()) is not None:
            size = -(-len(dispatches.client) // self.placement.num_devices)  # clients on one device
            memory_of = partial(self._memory, state, data, dispatches)
            chunk = largest_chunk(size, SHARE * memory, memory_of)
            self._chosen = self.placement._replace(layout=str(chunk))
        return self.layout

    def memory(self, state: FederatedState, data: RunData, dispatches: Dispatch) -> int:
        """Compiles a round and returns the bytes that each device needs for its part.

        They include the state, the examples and all temporary arrays.

        Args:
          state, data, dispatches: as for `choose_layout`; not consumed.
        """
        return self._memory(state, data, dispatches, self._chosen.chunk(len(dispatches.client)))

    def _memory(self, state, data, dispatches, chunk):
        """Compiles a device's part of a round in chunks of a size; see `memory`."""
        checks.check_not_consumed(state)
        mesh, num_clients, cohort_size = self._mesh, data.num_clients, len(dispatches.client)
        devices, own_mesh = (1, None) if mesh is None else (mesh.size, mesh.of_one_client())
        own = take(with_arrays(dispatches), slice(-(-cohort_size // devices)))
        slots = fill_slots(own, Placement(chunk).slot_order(own.num_steps), num_clients)
        slots = mark_equal_steps(slots, own, self._common_steps(data), num_clients)
        if self._on_device:
            parts = 1 if num_clients % devices else devices
            rows = jax.tree.map(lambda leaf: row_share(leaf, 1 / parts), state.clients)
        else:
            rows = table_of(row_shapes(self.algorithm, state), len(slots.client))
        shapes = shapes_on(own_mesh, jax.tree.map(row_share, state._replace(clients=())))
        shapes = shapes._replace(clients=shapes_on(own_mesh, rows, rows=True))
        held = held_shapes(data, cohort_size, devices if self.sharded else 1)
        options = Placement(chunk, own_mesh), self._on_device, self.non_finite
        run = jax.jit(FederatedRound(self.algorithm, *options).run_round, donate_argnums=0)
        sizes: Any = run.lower(shapes, held, slots).compile().memory_analysis()
        needed = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
        return needed - sizes.alias_size_in_bytes + sizes.temp_size_in_bytes

    def __repr__(self) -> str:
        devices = self.placement.num_devices
        return describe(self, layout=self.layout, devices=devices, algorithm=self.algorithm)

    def round(
        self, state: FederatedState, data: DeviceData, dispatches: Dispatch
    ) -> tuple[FederatedState, Metrics]:
        """Runs one round.

        Args:
          state: the state of the run. It is CONSUMED: its buffers are reused for the new state.
          data: all clients' examples, as `put_data` placed them.
          dispatches: the dispatches of this round, NumPy arrays [cohort].

        Returns:
          The new state, and the round's metrics: means over all examples of all local steps.

        Raises:
          ValueError: for data on other devices, or, if clients have state, a client that is twice
            in the cohort.
        """
        dispatches = self._checked.check(state, data, dispatches, ("cohort",))
        self.choose_layout(state, data, dispatches)
        placed, dispatches, _ = self._prepare(data, dispatches)
        present = next(self._present(placed, dispatches.client[None]))
        return self._compute(state, present, dispatches)

    def rounds(
        self,
        state: FederatedState,
        data: DeviceData,
        dispatches: Dispatch,
        number: int | None = None,
    ) -> tuple[FederatedState, Metrics]:
        """Runs many rounds, as one program if client state is on the device.

        Args:
          state, data: as for `round`; the state is CONSUMED.
          dispatches: NumPy arrays [rounds, cohort].
          number: how many of the rounds to run, None for all; another number does not recompile.

        Returns:
          The state after the last round, and the metrics of all rounds together.

        Raises:
          ValueError: as for `round`, and for a `number` out of range.
        """
        dispatches = self._checked.check(state, data, dispatches, ("rounds", "cohort"))
        number = len(dispatches.client) if number is None else number
        checks.check_whole("number", number, 1, len(dispatches.client))
        self.choose_layout(state, data, take(dispatches, 0))
        placed, dispatches, _ = self._prepare(data, dispatches)
        if self._on_device and not isinstance(placed, CohortData):
            inputs = replicate(self._mesh, (dispatches, np.int32(number)))
            run = self._programs(self._chosen).run_rounds
            state, metrics = wait_on_cpu(self._mesh, run(state, placed, *inputs))
            check_excluded(self.non_finite, state.excluded)
            return state, metrics
        total: Any = None
        for index, present in enumerate(self._present(placed, dispatches.client[:number])):
            state, metrics = self._compute(state, present, take(dispatches, index))
            jax.block_until_ready(total)  # so that at most two cohorts' examples are in memory
            total = metrics if total is None else add_trees(total, metrics)
        return state, total

    def lower_rounds(
        self, population: Population, data: DeviceData, dispatches: Dispatch
    ) -> jax.stages.Lowered | None:
        """Lowers the program of `rounds`, which uses it once it is compiled; None for several.

        Args:
          population: as for `init`.
          data, dispatches: as for `rounds`.
        """
        state = self._placed_shapes(population)
        self.choose_layout(state, data, take(dispatches, 0))
        placed, dispatches, _ = self._prepare(data, dispatches)
        if not self._on_device or isinstance(placed, CohortData):
            return None
        inputs = replicate(self._mesh, (dispatches, np.int32(1)))
        return self._programs(self._chosen).run_rounds.lower(state, placed, *inputs)

    def transfer(self, state: FederatedState, data: RunData, dispatches: Dispatch) -> Transfer:
        """Counts the bytes that one client downloads and uploads, from the shapes of the messages.

        Args:
          state, data: the state and the data of the run, or their shapes; not consumed.
          dispatches: the dispatches of one round, leaves [cohort].
        """
        checks.check_not_consumed(state)
        return count_transfer(self.algorithm, state, data, dispatches)

    def updates(self, state: FederatedState, data: DeviceData, dispatches: Dispatch) -> Stack:
        """Computes the updates of a cohort, for diagnostics.

        Args:
          state, data, dispatches: as for `round`; nothing is consumed.

        Returns:
          The updates in the order of `dispatches`, leaves [cohort, ...], including the updates of
          clients that fail. The mask is False in empty slots.
        """
        checks.check_not_consumed(state)
        self._checked.check_examples(data)
        dispatches = self._checked.check_dispatches(data, dispatches, ("cohort",))
        self.choose_layout(state, data, dispatches)
        slots, present = None, data
        if not isinstance(data, FederatedData) or self.sharded:
            placed, dispatches, order = self._prepare(data, dispatches)
            present = next(self._present(placed, dispatches.client[None]))
            slots = np.argsort(order)[np.count_nonzero(order < 0) :]
        rows, shared = self._rows(state, dispatches), state._replace(clients=())
        inputs = replicate(self._mesh, (dispatches, slots))
        return self._programs(self._chosen).cohort_updates(rows, shared, present, *inputs)

    def _prepare(self, data, dispatches):
        """Returns the data that programs read, the dispatches in their slots, and their order."""
        device_data = program_data(self._mesh, self.sharded, data)
        devices = None
        if self.sharded:  # an empty slot may go to any device
            clients = np.asarray(dispatches.client)
            devices = data.devices_of(np.minimum(clients, data.num_clients - 1))
            spread = np.arange(clients.shape[-1]) % self.placement.num_devices
            devices = np.where(clients < data.num_clients, devices, spread)
        if self.algorithm.selection is not None:  # the program fills the slots
            order, slots = None, jax.tree.map(np.asarray, dispatches)
        else:
            order = self._chosen.slot_order(dispatches.num_steps, devices)
            slots = fill_slots(dispatches, order, data.num_clients)
        slots = mark_equal_steps(slots, dispatches, self._common_steps(data), data.num_clients)
        return device_data, slots, order

    def _common_steps(self, data):
        return common_steps(self.algorithm.local, self._checked.counts_of(data))

    def _present(self, data, clients):
        """Yields the data that each round reads; for stored data, its cohort's examples."""
        if not isinstance(data, CohortData):
            return iter([data] * len(clients))
        return (program_data(self._mesh, self.sharded, each) for each in data.cohorts(clients))

    def _rows(self, state, dispatches):
        table = state.clients
        return table if self._on_device else read_rows(self._mesh, table, dispatches)

    def _compute(self, state, data, dispatches):
        """Runs one round on the results of `_prepare`."""
        programs, shared = self._programs(self._chosen), state._replace(clients=())
        on_device = replicate(self._mesh, dispatches)
        if self.algorithm.selection is not None:
            rows = self._rows(state, dispatches)
            on_device = programs.select_cohort(rows, shared, data, on_device)
            dispatches = dispatches if self._on_device else fetch(on_device)
        if self.algorithm.prelude is not None:
            first = programs.run_prelude(shared, data, on_device)
            server, _ = programs.prelude_step((shared.server, ()), first.arrivals, on_device)
            shared = shared._replace(server=server, excluded=first.excluded)
        result = programs.run_cohort(self._rows(state, dispatches), shared, data, on_device)
        check_excluded(self.non_finite, result.excluded)
        before = shared.server, shared.statistics
        after = programs.server_step(before, result.arrivals, on_device)
        if not self._on_device:
            rows = write_rows(state.clients, dispatches, result.rows, data.num_clients)
            result = result._replace(rows=rows)
        return wait_on_cpu(self._mesh, (after_round(shared, after, result), result.metrics))


def _compiled(algorithm, on_device, non_finite, placement):
    """Returns programs in one layout; those that return a new state consume the old one."""

    def consuming(function, *fixed):
        return jax.jit(partial(function, *fixed), donate_argnums=0)

    traced = FederatedRound(algorithm, placement, on_device, non_finite)
    return SimpleNamespace(
        select_cohort=jax.jit(traced.select_cohort),
        run_prelude=jax.jit(traced.run_prelude),
        prelude_step=consuming(traced.server_step, algorithm.prelude),
        run_cohort=consuming(traced.run_cohort),
        server_step=consuming(traced.server_step, algorithm),
        run_rounds=consuming(traced.run_rounds),
        cohort_updates=jax.jit(traced.cohort_updates),
    )


def make_engine(
    algorithm: Algorithm,
    layout: Layout = "auto",
    client_state: ClientStatePlace = "device",
    devices: Devices = None,
    examples: Literal["replicated", "sharded"] = "replicated",
    non_finite: NonFinite = "exclude",
    devices_per_client: int = 1,
    model_sharding: Any = None,
) -> Engine:
    """Compiles an algorithm's rounds.

    Args:
      algorithm: the algorithm to compile.
      layout: how many clients of a cohort are computed at once: "vmapped" all of them, "sequential"
        one, a number chunks of that many. "auto" is "sequential" on a CPU. On an accelerator it is
        the largest of the cohort, its half, its quarter, ... whose round fits into 3/4 of the
        device's memory, or the whole cohort if that memory is unknown. The results of layouts
        differ only by rounding.
      client_state: where the rows of client state are kept: "device", one row for each client, or
        "host", one for each client that has been dispatched. `RowsOnDisk(folder)` keeps the latter
        on disk. Results are the same, bit for bit.
      devices: a number of devices, or a list. The cohort is divided over them. Each holds the
        server state, and a part of the rows if the number of clients is a multiple of theirs.
      examples: which examples a device holds: all of them ("replicated"), or only the examples of
        its own clients, whose dispatches it computes ("sharded"; see `sharded_data`). Sharding
        needs several devices.
      non_finite: treatment of an update with NaN or an infinite number in the contribution, the
        report or the new row. "exclude" leaves it out of all sums, keeps the client's old row and
        counts it in `state.excluded`. "error" makes the functions that run rounds raise
        `NonFiniteUpdateError`, so they wait for their results. "keep" sums it like the others.
      devices_per_client: how many of the `devices` compute a client together. Each has a part of
        the params, of all states like them, and of activations. The compiler divides the work.
      model_sharding: which axes of the params are divided: a tree of `jax.sharding.PartitionSpec`
        with the axis "model". Its paths are patterns of the params' paths, and a spec applies to
        the last axes of an array. Flax's `nn.get_partition_spec` makes such trees. None divides
        each large array along its longest divisible axis. `models.shard` divides activations.

    Raises:
      TypeError: if `algorithm` is not an `Algorithm`.
      ValueError: for an unknown value of an option, devices that do not exist or do not form groups
        of `devices_per_client`, a `model_sharding` that does not fit the params, or sharded
        examples with an algorithm that cannot use them.
    """
    check_options(algorithm, layout, non_finite)
    check_choice("examples", examples, ("replicated", "sharded"))
    mesh = mesh_of(algorithm.problem, devices, devices_per_client, model_sharding)
    sharded = examples == "sharded" and mesh is not None
    fits = not algorithm.traits.pools_examples and algorithm.selection is None
    found = "examples='sharded' needs an algorithm that neither pools examples nor selects clients"
    require(fits or not sharded, f"{found}; give examples='replicated'")
    return Engine(algorithm, Placement(layout, mesh), non_finite, client_state, sharded)
