"""Execution of a plan: waves of training, and the server steps that they make possible.

The device holds the server, what a server step has gathered so far, one row for each version that
somebody still starts from, and one for each update that has not arrived yet. How many of both are
needed is known before anything is trained; see `waves`.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import jax
import numpy as np

from fedjax_algos.asynchrony.plan import Plan
from fedjax_algos.core import Algorithm, Metrics, Visit
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.asynchronous import in_flight
from fedjax_algos.engine.asynchronous.waves import (
    Waves,
    choose_slots,
    make_waves,
    share_out,
    step_ends,
)
from fedjax_algos.engine.devices import Devices, client_mesh, place, settle
from fedjax_algos.engine.engine import make_engine
from fedjax_algos.engine.federated_round import FederatedState, tree_bytes
from fedjax_algos.engine.placement import rounded


class Memory(NamedTuple):
    """What is kept beside the server and the clients' rows: rows, and bytes of all of them."""

    version_rows: int  # models that clients start from, and what else is broadcast
    version_bytes: int
    update_rows: int  # updates of clients that are trained and have not arrived
    update_bytes: int
    runs: int = 1  # in lockstep, which share the rows

    @property
    def bytes(self) -> int:
        return self.version_bytes + self.update_bytes

    def __str__(self) -> str:
        rows = f"{self.version_rows} models and {self.update_rows} updates"
        among = f" (of {self.runs} runs in lockstep)" if self.runs > 1 else ""
        return f"at most {rows} in flight, {self.bytes / 1e6:.3g} MB{among}"


class Executor(NamedTuple):
    """An algorithm, compiled for plans: see `make_executor`."""

    algorithm: Algorithm
    init: Callable[..., FederatedState]
    place: Callable[[FederatedData], FederatedData]
    run: Callable[..., Iterator[tuple[int, FederatedState, Metrics]]]
    waves: Callable[[FederatedState, Plan], Waves]
    memory: Callable[..., Memory]
    wide: bool  # whether a wave is faster than its dispatches one after another


def make_executor(
    algorithm: Algorithm,
    *,
    slots: Literal["auto"] | int = "auto",
    layout: Literal["auto", "sequential", "vmapped"] = "auto",
    waves_per_call: int = 32,
    devices: Devices = None,
) -> Executor:
    """Compiles an algorithm for plans.

    A server step adds `contribute(update, visit, staleness)` of its contributions in their order,
    and gives `server_update` the sums, their number and the plan's group. The whole broadcast is
    taken when a version is made, and dispatches start from it however late they are trained. The
    model's statistics become the plain mean over the contributors of each server step. Client rows
    are made at a client's first trained dispatch and written when a dispatch is trained; lost
    dispatches and those that have not arrived at the end are not trained.

    Args:
      algorithm: what is computed.
      slots: dispatches in a wave; 1 is immediate execution. "auto": see `choose_slots`. With
        several devices a multiple of their number.
      layout: of a wave: "sequential" trains one after another, bit for bit the same with any
        number of slots, "vmapped" all at once; "auto" is sequential on a CPU.
      waves_per_call: waves that one compiled call runs at most.
      devices: over which the slots of a wave are divided, the longest dispatches first; see
        `client_mesh`. Each holds the server, all rows and all examples.

    Returns:
      `place(data)` puts the examples on all devices, once. `init(seed, population, params=None)` is
      the engine's. `run(state, data, plan, visits, stops=(), waves=None)` iterates over `(server
      steps done, state, metrics)` at the server steps of `stops`, ascending, and at the last; the
      plan begins at the state that it is given, with each client's visit 0, and `visits` are those
      of `plan_visits`. Metrics are summed over what contributed since the last stop. It CONSUMES
      its state, and what it yields when the next is asked for: read or copy it before. Client rows
      that it yields may be ahead of the clock: those of all that is trained. `waves(state, plan)`
      makes a plan's waves, and `memory(state, data, visits, waves)` says what they need; shapes of
      a state will do. Several runs in lockstep are one, of what `lockstep` joined: then metrics
      have leaves [runs, ...], and a stop ends the sums of its own run only.

    Raises:
      ValueError: for an unknown layout, slots or waves below 1 or slots that do not divide over the
        devices, or an algorithm that needs all updates of a step at once or a barrier.
    """
    if layout == "auto":
        layout = "sequential" if jax.default_backend() == "cpu" else "vmapped"
    if layout not in ("sequential", "vmapped"):
        raise ValueError(f"layout={layout!r} is unknown; choose auto, sequential or vmapped")
    if (slots != "auto" and slots < 1) or waves_per_call < 1:
        raise ValueError(f"slots={slots} and waves_per_call={waves_per_call} must be at least 1")
    mesh = client_mesh(devices)
    num_devices = 1 if mesh is None else mesh.size
    if slots != "auto" and slots % num_devices:
        raise ValueError(f"slots={slots} do not divide over {num_devices} devices; give a multiple")
    if algorithm.reduce == "stack":
        raise ValueError(
            'reduce="stack" needs all updates of a server step at once, but a plan\'s updates are '
            'added as they arrive; use an algorithm with reduce="sum", or synchronous rounds'
        )
    if algorithm.prelude is not None:
        raise ValueError(
            "a prelude needs a barrier, at which its answers come together before anybody trains; "
            "use synchronous rounds"
        )
    begin = jax.jit(
        functools.partial(in_flight.begin, algorithm, mesh), static_argnums=5, donate_argnums=0
    )
    advance = jax.jit(
        functools.partial(in_flight.advance, algorithm, layout, mesh), donate_argnums=0
    )
    engine = make_engine(algorithm, devices=devices)

    def make(state: FederatedState, plan: Plan) -> Waves:
        stateful = bool(jax.tree.leaves(state.origin))
        chosen = slots
        if chosen == "auto":
            chosen = choose_slots(plan, layout, devices=num_devices, stateful=stateful)
        return make_waves(plan, chosen, stateful=stateful)

    def arguments(state, data, visits, waves):
        held = state.server, state.statistics, state.clients
        one = place(mesh, jax.tree.map(lambda leaf: _narrow(leaf[0]), visits))
        return held, state.origin, state.seed, data, one, _rows(waves)

    def memory(state: FederatedState, data: FederatedData, visits: Visit, waves: Waves) -> Memory:
        carried, _ = begin.eval_shape(*arguments(state, data, visits, waves))
        versions, updates = _rows(waves)
        version_bytes, update_bytes = map(tree_bytes, (carried.versions, carried.updates))
        return Memory(versions, version_bytes, updates, update_bytes, state.seed.size)

    def run(
        state: FederatedState,
        data: FederatedData,
        plan: Plan,
        visits: Visit,
        *,
        stops: Sequence[int] = (),
        waves: Waves | None = None,
    ) -> Iterator[tuple[int, FederatedState, Metrics]]:
        last = len(plan.time)
        if len(stops) and (np.diff(stops, prepend=0).min() < 1 or stops[-1] > last):
            raise ValueError(
                f"stops={list(stops)} are out of range; give ascending server steps from 1 to "
                f"{last}, the plan's last"
            )
        if len(visits.client) != len(plan.client):
            raise ValueError(
                f"{len(visits.client)} visits do not fit the plan's {len(plan.client)} dispatches; "
                "make them with plan_visits"
            )
        if state.seed.size != plan.num_runs:
            raise ValueError(
                f"the plan is of {plan.num_runs} runs and the state of {state.seed.size}; join the "
                "plans, data and states of the same runs"
            )
        waves = make(state, plan) if waves is None else waves
        every = np.unique([*stops, last])
        tables = _Tables(plan, visits, waves, num_devices, waves_per_call, data.num_clients)
        return execute(state, data, arguments(state, data, visits, waves), tables.calls(every))

    def execute(state, data, start, calls):
        carried, metrics = begin(*start)
        for done, table in calls:
            carried, metrics = settle(
                mesh,
                advance(carried, metrics, state.origin, state.seed, data, place(mesh, table)),
            )
            if done is not None:
                yield done, FederatedState(*carried[:3], state.origin, state.seed), metrics

    wide = slots != 1 and (layout == "vmapped" or num_devices > 1)
    return Executor(algorithm, engine.init, engine.place, run, make, memory, wide)


def _rows(waves):
    """Rows for versions, one of which is never read, and for updates."""
    return rounded(waves.num_version_rows + 1), rounded(waves.num_update_rows)


class _Tables(NamedTuple):
    """Makes the tables of a run."""

    plan: Plan
    visits: Visit
    waves: Waves
    num_devices: int
    size: int  # waves in a call at most
    num_clients: int  # of all runs

    def calls(self, stops):
        """The table of each call, and the stop that it ends at or None."""
        plan, waves, size = self.plan, self.waves, self.size
        ends = step_ends(plan)
        cut = waves.cut(stops, ends)
        # a call adds at most what it trains and what had been trained before and has a row
        room = np.arange(size * waves.trained.shape[1] + _rows(waves)[1])
        first = _first_trained(plan)
        begin = added = made = 0
        last = None  # the run that stopped last
        for stop in stops.tolist():
            end = int(np.searchsorted(cut.steps, stop)) + 1
            for start in range(begin, end, size):
                until = min(start + size, end)
                # past its end a table repeats some entry, which nothing reads
                wave = np.minimum(start + np.arange(size), end - 1)
                contribution = np.minimum(added + room, len(plan.dispatch) - 1)
                step = np.minimum(made + room, len(ends) - 1)
                slots, filled = self.slots(cut.trained[wave], cut.filled[wave], first)
                run, afresh = None, start == begin
                if plan.run is not None:
                    run, afresh = plan.run[step], afresh & (np.arange(plan.num_runs) == last)
                table = in_flight.Table(
                    num_waves=until - start,
                    afresh=afresh,
                    slots=slots,
                    filled=filled,
                    contributions=cut.contributions[wave] - added,
                    made=cut.steps[wave] - made,
                    update_row=waves.update_row[contribution],
                    staleness=plan.staleness[contribution],
                    steps=in_flight.Step(
                        end=ends[step] - added,
                        count=np.diff(ends, prepend=0)[step],
                        group=plan.group[step],
                        version_row=waves.version_row[step + plan.num_runs],
                        run=run,
                    ),
                )
                yield stop if until == end else None, jax.tree.map(_narrow, table)
                added, made = cut.contributions[until - 1], cut.steps[until - 1]
            begin, last = end, None if plan.run is None else plan.run[stop - 1]

    def slots(self, trained, filled, first):
        """The slots of waves [W, devices, S], and how many of each device's are filled."""
        plan, waves = self.plan, self.waves
        places = np.arange(trained.shape[1])[None, None]
        places = np.where(places < filled[:, None, None], places, -1)
        if self.num_devices > 1:
            steps = plan.num_steps[plan.dispatch[trained]]
            places = share_out(steps, filled, self.num_devices)
        real = places >= 0
        trained = np.take_along_axis(trained[:, None], places, 2)
        dispatch = plan.dispatch[trained]
        visit = jax.tree.map(lambda leaf: leaf[dispatch], self.visits)
        run, num_clients = None, self.num_clients // plan.num_runs
        if plan.run is not None:
            run = np.where(real, plan.client[dispatch] // num_clients, plan.num_runs - 1)
        slots = in_flight.Slot(
            visit=visit._replace(
                client=np.where(real, visit.client, num_clients),
                num_steps=np.where(real, visit.num_steps, 0),
            ),
            first=first[dispatch],
            version_row=waves.version_row[plan.version[dispatch]],
            update_row=np.where(real, waves.update_row[trained], _rows(waves)[1]),
            run=run,
        )
        return slots, real.sum(-1)


def _first_trained(plan):
    """bool[D]: which dispatches are their client's first that is trained."""
    dispatches = np.sort(plan.dispatch)
    _, where = np.unique(plan.client[dispatches], return_index=True)
    first = np.zeros(len(plan.client), bool)
    first[dispatches[where]] = True
    return first


def _narrow(leaf):
    """Integers as int32, whatever the schedule gave."""
    leaf = np.asarray(leaf)
    return leaf.astype(np.int32) if leaf.dtype.kind == "i" else leaf
