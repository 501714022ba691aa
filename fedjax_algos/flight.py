"""What the device carries while a plan is executed, and the two compiled functions that move it."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from fedjax_algos import cohort
from fedjax_algos.cohort import FederatedState
from fedjax_algos.core import Report, Update, Visit
from fedjax_algos.devices import AXIS, pin


class Arrival(NamedTuple):
    """A trained update, and what its server step must know of it."""

    update: Update
    visit: Visit
    report: Report


class Flight(NamedTuple):
    """All that the device carries from wave to wave."""

    server: Any
    statistics: Any
    clients: Any  # leaves [num_clients, ...]
    sums: Any  # (contributions, statistics) of the server step that is not complete
    versions: Any  # (broadcast, statistics), leaves [rows, ...]
    updates: Arrival  # leaves [rows, ...]


class Slot(NamedTuple):
    """A dispatch in a wave."""

    visit: Visit
    first: Any  # bool[]: its client has no row yet
    version_row: Any  # int32[]
    update_row: Any  # int32[]: one past the last where the slot is empty


class Step(NamedTuple):
    """A server step."""

    end: Any  # int32[]: where its contributions end
    count: Any  # int32[]: how many it has
    group: Any  # int32[]
    version_row: Any  # int32[]: where the version goes that it makes


class Table(NamedTuple):
    """What one call does; W waves at most, and room for C contributions and C server steps.

    The slots of a wave are divided over D devices, S for each.
    """

    num_waves: Any  # int32[]
    afresh: Any  # bool[]: forget the metrics
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
    """The flight before the first wave, version 0 in its row, and no metrics.

    Args:
      algorithm: what is computed.
      mesh: whose devices all hold it, or None.
      held: the server state, the model's statistics and the clients' rows.
      origin: theta_0, or ().
      seed: uint32[].
      data: the clients' examples.
      visit: any, for its shapes.
      rows: how many for versions and for updates.
    """
    server, statistics, _ = held
    sent = cohort.sent(algorithm, server), statistics
    state = FederatedState((), statistics, (), origin, seed)
    turn = partial(cohort.turn, algorithm, state, sent[0], data, visit)
    _, update, report = jax.eval_shape(turn, cohort.row_shapes(algorithm, state))
    contribution = jax.eval_shape(algorithm.contribute, update, visit, jnp.int32(0))

    def zeros(shapes, *number):
        return jax.tree.map(lambda leaf: jnp.zeros((*number, *leaf.shape), leaf.dtype), shapes)

    flight = Flight(
        *held,
        sums=zeros((contribution, report.statistics)),
        versions=_put(zeros(sent, rows[0]), 0, sent),
        updates=zeros(Arrival(update, visit, report), rows[1]),
    )
    return pin(mesh, (flight, zeros(report.metrics)))


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

    def turn(slot, versions, row):
        sent, statistics = _at(versions, slot.version_row)
        state = FederatedState((), statistics, (), origin, seed)
        row, update, report = cohort.turn(algorithm, state, sent, data, slot.visit, row, slot.first)
        return row, Arrival(update, slot.visit, report)

    def train_each(flight, slots, filled):
        """One after another: loops run their own length, and empty slots cost nothing."""

        def one(index, carry):
            clients, updates = carry
            slot = _at(slots, index)
            client = slot.visit.client
            row, arrival = turn(slot, flight.versions, _at(clients, client))
            return _put(clients, client, row), _put(updates, slot.update_row, arrival)

        return jax.lax.fori_loop(0, filled, one, (flight.clients, flight.updates))

    def train_all(flight, slots):
        client = slots.visit.client
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
        where = slots.visit.client, slots.update_row
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

        def add(number, carry):
            update, visit, report = _at(updates, table.update_row[number])
            contribution = algorithm.contribute(update, visit, table.staleness[number])
            return jax.tree.map(jnp.add, carry, ((contribution, report.statistics), report.metrics))

        def serve(number, carry):
            server, _, versions, sums, metrics, added = carry
            step = _at(table.steps, number)
            sums, metrics = jax.lax.fori_loop(added, step.end, add, (sums, metrics))
            server = algorithm.server_update(server, sums[0], step.count, step.group)
            # not a division, which may be compiled to this or not: one program's bits are another's
            statistics = jax.tree.map(
                lambda leaf: leaf * (1 / step.count.astype(leaf.dtype)), sums[1]
            )
            sent = cohort.sent(algorithm, server), statistics
            versions = _put(versions, step.version_row, sent)
            sums = jax.tree.map(jnp.zeros_like, sums)
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
        sums, metrics = jax.lax.fori_loop(added, end, add, (sums, metrics))
        flight = Flight(server, statistics, clients, sums, versions, updates)
        return flight, metrics, end, table.made[index]

    metrics = jax.tree.map(lambda leaf: jnp.where(table.afresh, 0, leaf), metrics)
    start = flight, metrics, jnp.int32(0), jnp.int32(0)
    return jax.lax.fori_loop(0, table.num_waves, wave, start)[:2]


def _at(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _put(tree, index, value):
    return jax.tree.map(
        lambda leaf, new: jax.lax.dynamic_update_index_in_dim(leaf, new, index, 0), tree, value
    )


def _scatter(tree, indices, values):
    return jax.tree.map(lambda leaf, new: leaf.at[indices].set(new), tree, values)
