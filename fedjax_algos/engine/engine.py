"""The engine compiles an algorithm's rounds and places what they read; it knows no algorithm.

A round is two compiled functions, one for the cohort and one for the server update, which may be
preceded by those of a prelude. With client state on the device, many rounds are one function.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Algorithm, Dispatch, Metrics, Model, Params, Population, Stack
from fedjax_algos.core.keys import model_key
from fedjax_algos.core.representation import describe
from fedjax_algos.engine import federated_round
from fedjax_algos.engine.devices import Devices, client_mesh, replicate, wait_on_cpu
from fedjax_algos.engine.placement import Layout, Placement, chunk_size, fill_slots
from fedjax_algos.engine.protocols import (
    InitFn,
    PutDataFn,
    RoundFn,
    RoundsFn,
    TransferFn,
    UpdatesFn,
)
from fedjax_algos.engine.sharded_data import DeviceData, ShardedData, program_data, shard
from fedjax_algos.engine.state import (
    FederatedState,
    HostClientState,
    initial_state,
    read_rows,
    row_shapes,
    write_rows,
)
from fedjax_algos.engine.transfer import count_transfer


class Engine(NamedTuple):
    """A compiled algorithm, as `make_engine` returns it. Each function's protocol documents it."""

    algorithm: Algorithm
    init: InitFn
    round: RoundFn
    rounds: RoundsFn
    transfer: TransferFn
    updates: UpdatesFn
    put_data: PutDataFn
    placement: Placement = Placement("auto")

    def __repr__(self) -> str:
        layout, devices = self.placement.layout, self.placement.num_devices
        return describe(self, layout=layout, devices=devices, algorithm=self.algorithm)


def make_engine(
    algorithm: Algorithm,
    layout: Layout = "auto",
    client_state: Literal["device", "host"] = "device",
    devices: Devices = None,
    examples: Literal["replicated", "sharded"] = "replicated",
) -> Engine:
    """Compiles an algorithm's rounds.

    Where to change what: `federated_round.py` is what a round computes, `local_update.py` what one
    client computes in it, `placement.py` how a cohort is laid out over chunks and devices,
    `sharded_data.py` which device holds which client's examples, `state.py` where client state is
    kept, `protocols.py` the functions of an engine.

    Args:
      algorithm: what is computed.
      layout: how many clients of a cohort are computed at once: "vmapped" all of them, "sequential"
        one, a number chunks of that many. "auto" is "sequential" on a CPU and "vmapped" elsewhere;
        `autotune_layout` measures instead. Layouts differ by rounding.
      client_state: where the rows of client state are kept: "device", one row for each client, or
        "host", one for each client that has been dispatched, with the cohort's rows on the device
        during a round.
      devices: over which the cohort is divided; see `client_mesh`. Each device holds the server
        state. The table of rows is divided over them if the number of clients is a multiple of
        theirs. The layout is that of each device's part of the cohort.
      examples: which examples a device holds: "replicated", all of them, or "sharded", those of its
        own clients, whose dispatches it computes; see `sharded_data`. It needs several devices.

    Raises:
      ValueError: for an unknown layout, client_state or examples, for more devices than there are,
        and for sharded examples of an algorithm whose clients read the examples of others.
    """
    chunk_size(layout, 1)  # raises if the layout is unknown
    _check_option("client_state", client_state, ("device", "host"))
    _check_option("examples", examples, ("replicated", "sharded"))
    placement = Placement(layout, client_mesh(devices))
    sharded = examples == "sharded" and placement.mesh is not None
    if sharded and algorithm.pools_examples:
        raise ValueError(
            "the algorithm's clients read the examples of all others, but examples='sharded' keeps "
            "most of them on other devices; give examples='replicated'"
        )
    on_host = client_state == "host"
    rounds = _Rounds(
        algorithm, placement, on_host, sharded, _compile(algorithm, placement, on_host)
    )
    return Engine(
        algorithm,
        init=rounds.init,
        round=rounds.round,
        rounds=rounds.rounds,
        transfer=partial(count_transfer, algorithm),
        updates=rounds.updates,
        put_data=rounds.put_data,
        placement=placement,
    )


def _check_option(name, value, known):
    if value not in known:
        raise ValueError(f"{name}={value!r} is unknown; choose {' or '.join(known)}")


class _Programs(NamedTuple):
    """Compiled functions; all but `initial_state`, `prelude` and `updates` consume their first."""

    initial_state: Callable
    prelude: Callable  # client updates of the prelude
    prelude_step: Callable  # server update of the prelude
    cohort: Callable
    server_step: Callable
    rounds: Callable
    updates: Callable


def _compile(algorithm: Algorithm, placement: Placement, on_host: bool) -> _Programs:
    def consuming(function, phase=algorithm, **options):
        return jax.jit(partial(function, phase, placement, **options), donate_argnums=0)

    def reading(function, static=(), **options):
        return jax.jit(partial(function, algorithm, placement, **options), static_argnames=static)

    return _Programs(
        initial_state=reading(initial_state, static=("population", "num_rows")),
        prelude=reading(federated_round.run_prelude),
        prelude_step=consuming(federated_round.server_step, algorithm.prelude),
        cohort=consuming(federated_round.run_cohort, rows_are_table=not on_host),
        server_step=consuming(federated_round.server_step),
        rounds=consuming(federated_round.run_rounds),
        updates=reading(federated_round.cohort_updates, rows_are_table=not on_host),
    )


class _Rounds(NamedTuple):
    """The functions of an `Engine`, as methods."""

    algorithm: Algorithm
    placement: Placement
    on_host: bool  # client state
    sharded: bool  # examples
    programs: _Programs

    def init(
        self, seed: int, population: Population, params: Params | Model | None = None
    ) -> FederatedState:
        if params is None:
            params = _initial_model(self.algorithm.problem.init, np.uint32(seed))
        model = params if isinstance(params, Model) else Model(params)
        # jit gives each leaf a buffer of its own, so that rounds can donate them
        state = self.programs.initial_state(
            *replicate(self.placement.mesh, (np.uint32(seed), model)),
            population=population,
            num_rows=0 if self.on_host else population.num_clients,
        )
        if self.on_host:
            state = state._replace(clients=HostClientState(row_shapes(self.algorithm, state)))
        return state

    def put_data(self, data: DeviceData) -> DeviceData:
        mesh = self.placement.mesh
        if mesh is None:
            return data
        return shard(mesh, data) if self.sharded else replicate(mesh, data)

    def round(
        self, state: FederatedState, data: DeviceData, dispatches: Dispatch
    ) -> tuple[FederatedState, Metrics]:
        return self._compute(state, *self._prepare(data, dispatches)[:2])

    def rounds(
        self,
        state: FederatedState,
        data: DeviceData,
        dispatches: Dispatch,
        number: int | None = None,
    ) -> tuple[FederatedState, Metrics]:
        given = len(dispatches.client)
        number = given if number is None else number
        if not 1 <= number <= given:
            raise ValueError(
                f"number={number} is out of range; give 1 to {given}, the rounds of dispatches"
            )
        mesh = self.placement.mesh
        device_data, dispatches, _ = self._prepare(data, dispatches)
        if not self.on_host:
            inputs = replicate(mesh, (dispatches, np.int32(number)))
            return wait_on_cpu(mesh, self.programs.rounds(state, device_data, *inputs))
        total: Metrics | None = None
        for index in range(number):
            of_round = jax.tree.map(lambda leaf, i=index: leaf[i], dispatches)
            state, metrics = self._compute(state, device_data, of_round)
            total = metrics if total is None else _add(total, metrics)
        assert total is not None
        return state, total

    def updates(self, state: FederatedState, data: DeviceData, dispatches: Dispatch) -> Stack:
        device_data: Any = data
        slots = None
        if isinstance(data, ShardedData) or self.sharded:
            device_data, dispatches, order = self._prepare(data, dispatches)
            slots = np.argsort(order)[np.count_nonzero(order < 0) :]
        return self.programs.updates(
            self._rows(state, dispatches),
            state._replace(clients=()),
            device_data,
            *replicate(self.placement.mesh, (dispatches, slots)),
        )

    def _prepare(self, data, dispatches):
        """(what programs read of the data, the dispatches in their slots, the order of these)."""
        placement = self.placement
        device_data = program_data(placement.mesh, self.sharded, data)
        devices = data.devices_of(np.asarray(dispatches.client)) if self.sharded else None
        order = placement.slot_order(np.asarray(dispatches.num_steps), devices)
        return device_data, fill_slots(dispatches, order, data.num_clients), order

    def _rows(self, state, dispatches):
        if self.on_host:
            return read_rows(self.placement.mesh, state.clients, dispatches)
        return state.clients

    def _compute(self, state, device_data, dispatches):
        """One round of what `_prepare` returned."""
        programs, mesh = self.programs, self.placement.mesh
        on_device, shared = replicate(mesh, dispatches), state._replace(clients=())
        if self.algorithm.prelude is not None:
            gathered = programs.prelude(shared, device_data, on_device)
            shared = shared._replace(server=programs.prelude_step(shared.server, *gathered))
        rows, sums, statistics, metrics, count = programs.cohort(
            self._rows(state, dispatches), shared, device_data, on_device
        )
        server = programs.server_step(shared.server, sums, count)
        if self.on_host:
            rows = write_rows(state.clients, dispatches, rows, device_data.num_clients)
        new = state._replace(server=server, statistics=statistics, clients=rows)
        return wait_on_cpu(mesh, (new, metrics))


@partial(jax.jit, static_argnums=0)
def _initial_model(init, seed):
    """Compiled once for all algorithms on a problem."""
    return init(model_key(seed))


@jax.jit
def _add(left, right):
    return jax.tree.map(jnp.add, left, right)
