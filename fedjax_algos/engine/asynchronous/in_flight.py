"""What the device carries while a plan is executed, and the two compiled functions that move it."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from fedjax_algos.core import Report, Update, Visit
from fedjax_algos.engine import federated_round
from fedjax_algos.engine.devices import AXIS, pin
from fedjax_algos.engine.federated_round import FederatedState


class Arrival(NamedTuple):
    """A trained update, and what its server step must know of it."""

    update: Update
    visit: Visit
    report: Report


class Flight(NamedTuple):
    """All that the device carries from wave to wave.

    Server, statistics and metrics of R runs in lockstep have leaves [R, ...], those of a single run
    do not; see `_of`. One server step is gathered at a time.
    """

    server: Any
    statistics: Any
    clients: Any  # leaves [num_clients of all runs, ...]
    sums: Any  # (contributions, statistics) of the server step that is not complete
    versions: Any  # (broadcast, statistics), leaves [rows, ...]
    updates: Arrival  # leaves [rows, ...]


class Slot(NamedTuple):
    """A dispatch in a wave."""

    visit: Visit
    first: Any  # bool[]: its client has no row yet
    version_row: Any  # int32[]
    update_row: Any  # int32[]: one past the last where the slot is empty
    run: Any = None  # int32[]; None for a single run, the last where the slot is empty


class Step(NamedTuple):
    """A server step."""

    end: Any  # int32[]: where its contributions end
    count: Any  # int32[]: how many it has
    group: Any  # int32[]
    version_row: Any  # int32[]: where the version goes that it makes
    run: Any = None  # int32[]; None for a single run


class Table(NamedTuple):
    """What one call does; W waves at most, and room for C contributions and C server steps.

    The slots of a wave are divided over D devices, S for each.
    """

    num_waves: Any  # int32[]
    afresh: Any  # bool[], or bool[R] of several runs: forget the metrics
    slots: Slot  # leaves [W, D, S]
    filled: Any  # int32[W, D]
    contributions: Any  # int32[W]: where those end that the wave adds
    made: Any  # int32[W]: where the server steps end that the wave makes
    update_row: Any  # int32[C]
    staleness: Any  # int32[C]
    steps: Step  # leaves [C]


def table_specs():
    """How a table is divided over a mesh."""
    everywhere, by_device = PartitionSpec(), PartitionSpec(None, AXIS)
    specs = Table(*[everywhere] * len(Table._fields))
    return specs._replace(slots=by_device, filled=by_device)


def begin(algorithm, mesh, held, origin, seed, data, visit, rows):
    """The flight before the first wave, the initial versions in their rows, and no metrics.

    Args:
      algorithm: what is computed.
      mesh: whose devices all hold it, or None.
      held: the server state, the model's statistics and the clients' rows.
      origin: theta_0, or ().
      seed: uint32[], or uint32[R] of R runs in lockstep, as everything above and the metrics.
      data: the clients' examples, those of all runs.
      visit: any, for its shapes.
      rows: how many for versions and for updates.
    """
    server, statistics, _ = held
    runs = seed.shape  # () or (R,)
    first = 0 if runs else None
    send = partial(federated_round.sent, algorithm)
    sent = (jax.lax.map(send, server) if runs else send(server)), statistics
    one = _of(first, sent)
    state = FederatedState((), one[1], (), _of(first, origin), _of(first, seed))
    draws = jax.eval_shape(partial(federated_round.draw, algorithm), state.seed, visit)
    turn = partial(federated_round.turn, algorithm, state, one[0], data, visit)
    _, update, report = jax.eval_shape(turn, draws, federated_round.row_shapes(algorithm, state))
    contribution = jax.eval_shape(algorithm.contribute, update, visit, jnp.int32(0))

    def zeros(shapes, *number):
        return jax.tree.map(lambda leaf: jnp.zeros((*number, *leaf.shape), leaf.dtype), shapes)

    # the initial versions are used from the start, so theirs are the first rows
    put, first_rows = (_scatter, jnp.arange(*runs)) if runs else (_put, 0)
    flight = Flight(
        *held,
        sums=zeros((contribution, report.statistics)),
        versions=put(zeros(one, rows[0]), first_rows, sent),
        updates=zeros(Arrival(update, visit, report), rows[1]),
    )
    return pin(mesh, (flight, zeros(report.metrics, *runs)))


def advance(algorithm, layout, mesh, flight, metrics, origin, seed, data, table):
    """The flight and the metrics after the waves of a table."""
    if mesh is None:
        return _advance(algorithm, layout, False, flight, metrics, origin, seed, data, table)
    everywhere = PartitionSpec()
    return jax.shard_map(
        partial(_advance, algorithm, layout, True),
        mesh=mesh,
        in_specs=(*[everywhere] * 5, table_specs()),
        out_specs=everywhere,
        check_vma=False,  # loops that start from zeros would all need casts to "varying"
    )(flight, metrics, origin, seed, data, table)


def _trainer(algorithm, layout, shared, origin, seed, data):
    """`(flight, slots, filled) -> (clients, updates)` trains a wave's slots."""

    num_clients = data.num_clients // seed.size  # of a run

    def turn(slot, versions, row):
        sent, statistics = _at(versions, slot.version_row)
        run = slot.run
        state = FederatedState((), statistics, (), _of(run, origin), _of(run, seed))
        own = data
        if run is not None:
            offsets = jax.lax.dynamic_slice_in_dim(data.offsets, run * num_clients, num_clients + 1)
            own = data._replace(offsets=offsets)
        draws = federated_round.draw(algorithm, state.seed, slot.visit)
        row, update, report = federated_round.turn(
            algorithm, state, sent, own, slot.visit, draws, row, slot.first
        )
        return row, Arrival(update, slot.visit, report)

    def place(slot):
        """Its client's place among those of all runs; one past the last where it is empty."""
        client = slot.visit.client
        return client if slot.run is None else slot.run * num_clients + client

    def train_each(flight, slots, filled):
        """One after another: loops run their own length, and empty slots cost nothing."""

        def one(index, carry):
            clients, updates = carry
            slot = _at(slots, index)
            client = place(slot)
            row, arrival = turn(slot, flight.versions, _at(clients, client))
            return _put(clients, client, row), _put(updates, slot.update_row, arrival)

        return jax.lax.fori_loop(0, filled, one, (flight.clients, flight.updates))

    def train_all(flight, slots):
        client = place(slots)
        rows, arrivals = jax.vmap(turn, (0, None, 0))(
            slots, flight.versions, _at(flight.clients, client)
        )
        # empty slots' rows are out of range and dropped
        return _scatter(flight.clients, client, rows), _scatter(
            flight.updates, slots.update_row, arrivals
        )

    def train(flight, slots, filled):
        slots, filled = _at(slots, 0), filled[0]  # this device's
        if layout == "vmapped" and slots.first.size > 1:
            clients, updates = train_all(flight, slots)
        else:
            clients, updates = train_each(flight, slots, filled)
        if not shared:
            return clients, updates
        where = place(slots), slots.update_row
        made = _at(clients, where[0]), _at(updates, where[1])
        where, made = jax.lax.all_gather((where, made), AXIS, tiled=True)
        return _scatter(clients, where[0], made[0]), _scatter(updates, where[1], made[1])

    return train


def _advance(algorithm, layout, shared, flight, metrics, origin, seed, data, table):
    """One device's part. Where it is shared, all train their slots and then hold the same."""
    train = _trainer(algorithm, layout, shared, origin, seed, data)

    def wave(index, carry):
        flight, metrics, added, made = carry
        clients, updates = train(flight, _at(table.slots, index), table.filled[index])

        def add(run, number, carry):
            sums, metrics = carry
            update, visit, report = _at(updates, table.update_row[number])
            contribution = algorithm.contribute(update, visit, table.staleness[number])
            new = (contribution, report.statistics), report.metrics
            sums, measured = jax.tree.map(jnp.add, (sums, _of(run, metrics)), new)
            return sums, _with(run, metrics, measured)

        def serve(number, carry):
            server, statistics, versions, sums, metrics, added = carry
            step = _at(table.steps, number)
            own = partial(add, step.run)
            sums, metrics = jax.lax.fori_loop(added, step.end, own, (sums, metrics))
            new = algorithm.server_update(_of(step.run, server), sums[0], step.count, step.group)
            # not a division, which may be compiled to this or not: one program's bits are another's
            mean = jax.tree.map(lambda leaf: leaf * (1 / step.count.astype(leaf.dtype)), sums[1])
            sent = federated_round.sent(algorithm, new), mean
            versions = _put(versions, step.version_row, sent)
            sums = jax.tree.map(jnp.zeros_like, sums)
            server, statistics = _with(step.run, (server, statistics), (new, mean))
            return server, statistics, versions, sums, metrics, step.end

        server, statistics, _, sums, versions, _ = flight
        server, statistics, versions, sums, metrics, added = jax.lax.fori_loop(
            made,
            table.made[index],
            serve,
            (server, statistics, versions, sums, metrics, added),
        )
        # of the next server step, which waits for others
        end = table.contributions[index]
        own = partial(add, _at(table.steps.run, table.made[index]))
        sums, metrics = jax.lax.fori_loop(added, end, own, (sums, metrics))
        flight = Flight(server, statistics, clients, sums, versions, updates)
        return flight, metrics, end, table.made[index]

    def forget(afresh, metrics):
        return jax.tree.map(lambda leaf: jnp.where(afresh, 0, leaf), metrics)

    metrics = (jax.vmap(forget) if seed.shape else forget)(table.afresh, metrics)
    start = flight, metrics, jnp.int32(0), jnp.int32(0)
    return jax.lax.fori_loop(0, table.num_waves, wave, start)[:2]


def _of(run, tree):
    """One run's part of what several have; a single run's has no axis of runs."""
    return tree if run is None else _at(tree, run)


def _with(run, tree, value):
    """The same with a new part of this run."""
    return value if run is None else _put(tree, run, value)


def _at(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _put(tree, index, value):
    return jax.tree.map(
        lambda leaf, new: jax.lax.dynamic_update_index_in_dim(leaf, new, index, 0), tree, value
    )


def _scatter(tree, indices, values):
    return jax.tree.map(lambda leaf, new: leaf.at[indices].set(new), tree, values)
