"""Defines the in-flight state on the device and the two compiled functions of a plan.

`MovedRows` moves a saved state to the rows of other waves.
"""

from collections import UserDict
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from fedjax_algos.core import Dispatch, Report, Update
from fedjax_algos.core.trees import take
from fedjax_algos.engine.asynchronous.call_tables import CallTable, row_counts
from fedjax_algos.engine.asynchronous.waves import InFlightRows, Waves
from fedjax_algos.engine.exchange import Shared, draw, exchange, exchange_shapes, send
from fedjax_algos.engine.non_finite import all_finite
from fedjax_algos.engine.placed.devices import AXIS, constrain
from fedjax_algos.engine.server_step import Arrivals, arrival, contribution, server_step
from fedjax_algos.engine.state import FederatedState


class HeldUpdate(NamedTuple):
    """The update of a trained dispatch, with the other inputs of its server step."""

    update: Update
    dispatch: Dispatch
    report: Report
    finite: Any = None  # bool[]: of the update and the client's new row; None if unchecked


class InFlightState(NamedTuple):
    """The device's state between waves; the server's leaves are [R, ...] with R merged runs."""

    server: Any
    statistics: Any
    clients: Any  # leaves [num_clients of all runs, ...]
    dispatched: Any  # bool[num_clients of all runs]: whose row is initialised, or ()
    excluded: Any  # `Excluded`, or () if updates that are not finite are kept
    sums: Any  # ((contributions, statistics), number left) of the current server step
    versions: Any  # (broadcast, statistics), leaves [rows, ...]
    updates: HeldUpdate  # leaves [rows, ...]

    def state(self, shared: Shared) -> FederatedState:
        """The state of the run."""
        rest = shared.origin, shared.seed, self.excluded, self.dispatched, shared.frozen
        return FederatedState(self.server, self.statistics, self.clients, *rest)


class MovedRows(UserDict[str, np.ndarray]):
    """Arrays of an `InFlightState` by path, moved from the rows of `begun` to the rows of waves.

    The names of arrays that move begin with "versions/" and "updates/".
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], begun: InFlightRows, waves: Waves):
        self.data: Any = arrays  # each is read when it is moved
        rows = row_counts(waves)
        self.moves = {
            "versions": (begun.versions, waves.version_row, rows[0]),
            "updates": (begun.contributions, waves.update_row, rows[1]),
        }

    def __getitem__(self, name: str) -> np.ndarray:
        array, kind = self.data[name], name.partition("/")[0]
        if kind not in self.moves:
            return array
        held, row_of, number = self.moves[kind]
        old = np.flatnonzero(held >= 0)
        moved = np.zeros((number, *array.shape[1:]), array.dtype)
        moved[row_of[held[old]]] = array[old]
        return moved


def initial_in_flight(algorithm, mesh, initial, shared, data, dispatch, rows):
    """Returns the state before the first wave and zero metrics; `rows` come from `row_counts`."""
    server, statistics, _, _, excluded = initial
    finite = None if excluded == () else jax.ShapeDtypeStruct((), bool)
    runs = shared.seed.shape  # () or (R,)
    first = 0 if runs else None
    send_one = partial(send, algorithm)
    sent = (jax.lax.map(send_one, server) if runs else send_one(server)), statistics
    version, one_server = _select_run(first, (sent, server))
    of_run = _select_run(first, shared)._replace(statistics=version[1])
    shapes = exchange_shapes(algorithm, one_server, of_run, data, dispatch)
    _, update, report = shapes.updates(algorithm)
    contribute = partial(contribution, algorithm, server=one_server)
    contributed = jax.eval_shape(contribute, update, dispatch, jnp.int32(0))

    def zeros(shapes, *leading):
        return jax.tree.map(lambda leaf: jnp.zeros((*leading, *leaf.shape), leaf.dtype), shapes)

    # the initial versions are used from the start, so they have the first rows
    put, first_rows = (_put_rows, jnp.arange(shared.seed.size)) if runs else (_put_row, 0)
    in_flight = InFlightState(
        *initial,
        sums=(zeros((contributed, report.statistics)), None if finite is None else jnp.int32(0)),
        versions=put(zeros(version, rows[0]), first_rows, sent),
        updates=zeros(HeldUpdate(update, dispatch, report, finite), rows[1]),
    )
    return constrain(mesh, (in_flight, zeros(report.metrics, *runs)))


def run_waves(algorithm, layout, mesh, in_flight, metrics, shared, data, table):
    """Returns the state and the sums of metrics after a table."""
    if mesh is None or mesh.size == 1:
        after = _run_waves(algorithm, layout, False, in_flight, metrics, shared, data, table)
        return constrain(mesh, after)
    everywhere, by_device = PartitionSpec(), PartitionSpec(None, AXIS)
    table_specs = CallTable(*[everywhere] * len(CallTable._fields))
    table_specs = table_specs._replace(slots=by_device, filled=by_device)
    after = jax.shard_map(
        partial(_run_waves, algorithm, layout, True),
        mesh=mesh.mesh,
        axis_names={AXIS},
        in_specs=(*[everywhere] * 4, table_specs),
        out_specs=everywhere,
        check_vma=False,  # loops that start from zeros would all need casts to "varying"
    )(in_flight, metrics, shared, data, table)
    return constrain(mesh, after)


def _run_waves(algorithm, layout, gathers, in_flight, metrics, shared, data, table):
    """Runs one device's slots; with several devices it `gathers` the results of all."""
    screened = in_flight.updates.finite is not None
    train = _make_train(algorithm, layout, gathers, screened, shared, data)

    def run_wave(index, carry):
        in_flight, metrics, added, made = carry
        tables, updates = train(in_flight, take(table.slots, index), table.filled[index])

        def add(run, server, number, carry):
            (sums, count), (metrics, excluded) = carry
            update, dispatch, report, finite = take(updates, table.update_row[number])
            arguments = update, dispatch, table.staleness[number], _select_run(run, server)
            contributed = contribution(algorithm, *arguments)
            if screened:
                finite &= all_finite(contributed)
                of_run = _select_run(run, excluded).add(~finite, dispatch)
                excluded = _update_run(run, excluded, of_run)
            (*new, one), measured = arrival(contributed, report, finite)
            old = sums, _select_run(run, metrics)
            sums, measured = jax.tree.map(jnp.add, old, (tuple(new), measured))
            count = count + one if screened else count
            return (sums, count), (_update_run(run, metrics, measured), excluded)

        def make_server_step(number, carry):
            server, statistics, versions, sums, measured, added = carry
            step = take(table.steps, number)
            add_own = partial(add, step.run, server)
            sums, measured = jax.lax.fori_loop(added, step.end, add_own, (sums, measured))
            old = _select_run(step.run, (server, statistics))
            arrivals = Arrivals(*sums[0], sums[1] if screened else step.count)
            new, mean = server_step(algorithm, *old, arrivals, step.group, screened=screened)
            versions = _put_row(versions, step.version_row, (send(algorithm, new), mean))
            sums = jax.tree.map(jnp.zeros_like, sums)
            server, statistics = _update_run(step.run, (server, statistics), (new, mean))
            return server, statistics, versions, sums, measured, step.end

        server, statistics, _, _, excluded, sums, versions, _ = in_flight
        steps = server, statistics, versions, sums, (metrics, excluded), added
        steps = jax.lax.fori_loop(made, table.steps_made[index], make_server_step, steps)
        server, statistics, versions, sums, measured, added = steps
        # contributions of the next server step, which misses other updates
        end = table.contributions[index]
        add_own = partial(add, take(table.steps.run, table.steps_made[index]), server)
        sums, (metrics, excluded) = jax.lax.fori_loop(added, end, add_own, (sums, measured))
        rest = *tables, excluded, sums, versions, updates
        return InFlightState(server, statistics, *rest), metrics, end, table.steps_made[index]

    def reset(reset_metrics, metrics):
        return jax.tree.map(lambda leaf: jnp.where(reset_metrics, 0, leaf), metrics)

    metrics = (jax.vmap(reset) if shared.seed.shape else reset)(table.reset_metrics, metrics)
    start = in_flight, metrics, jnp.int32(0), jnp.int32(0)
    return jax.lax.fori_loop(0, table.num_waves, run_wave, start)[:2]


def _make_train(algorithm, layout, gathers, screened, shared, data):
    """Makes `(in_flight, slots, filled) -> ((rows, whether initialised), updates)` of a wave."""
    num_clients = data.num_clients // shared.seed.size  # of a run

    def draw_one(slot):
        of_run, dispatch = _select_run(slot.run, shared.seed), slot.dispatch
        return draw(algorithm.local.batches, of_run, dispatch.client, dispatch.number)

    def train_slot(slot, draws, versions, own):
        received, statistics = take(versions, slot.version_row)
        run, dispatch, run_data = slot.run, slot.dispatch, data
        of_run = _select_run(run, shared)._replace(statistics=statistics)
        if run is not None:
            offsets = jax.lax.dynamic_slice_in_dim(data.offsets, run * num_clients, num_clients + 1)
            run_data = data._replace(offsets=offsets)
        sent = exchange(algorithm, of_run, received, run_data, dispatch, draws, own)
        finite = sent.finite(sent.message) if screened else None
        row = sent.kept(finite), jax.tree.map(jnp.ones_like, own[1])
        return row, HeldUpdate(sent.message, dispatch, sent.report, finite)

    def client_row(slot):
        """Returns the client's row among the rows of all runs; one past the last if empty."""
        client = slot.dispatch.client
        return client if slot.run is None else slot.run * num_clients + client

    def train_sequentially(in_flight, slots, draws, filled):
        # loops run for the steps of their own dispatch, and empty slots cost nothing
        def train_one(index, carry):
            tables, updates = carry
            slot = take(slots, index)
            client = client_row(slot)
            inputs = in_flight.versions, take(tables, client)
            row, arrival = train_slot(slot, take(draws, index), *inputs)
            return _put_row(tables, client, row), _put_row(updates, slot.update_row, arrival)

        start = (in_flight.clients, in_flight.dispatched), in_flight.updates
        return jax.lax.fori_loop(0, filled, train_one, start)

    def train_vmapped(in_flight, slots, draws):
        client, tables = client_row(slots), (in_flight.clients, in_flight.dispatched)
        train_all = jax.vmap(train_slot, (0, 0, None, 0))
        rows, arrivals = train_all(slots, draws, in_flight.versions, take(tables, client))
        # rows of empty slots are out of range and dropped
        updates = _put_rows(in_flight.updates, slots.update_row, arrivals)
        return _put_rows(tables, client, rows), updates

    def train(in_flight, slots, filled):
        slots, filled = take(slots, 0), filled[0]  # this device's
        draws = jax.vmap(draw_one)(slots)  # at once, outside of the loop
        if layout == "vmapped" and slots.version_row.size > 1:
            tables, updates = train_vmapped(in_flight, slots, draws)
        else:
            tables, updates = train_sequentially(in_flight, slots, draws, filled)
        if not gathers:
            return tables, updates
        rows = client_row(slots), slots.update_row
        trained = take(tables, rows[0]), take(updates, rows[1])
        rows, trained = jax.lax.all_gather((rows, trained), AXIS, tiled=True)
        return _put_rows(tables, rows[0], trained[0]), _put_rows(updates, rows[1], trained[1])

    return train


def _select_run(run, tree):
    """Returns one run's part of trees with an axis of runs; the tree itself if `run` is None."""
    return tree if run is None else take(tree, run)


def _update_run(run, tree, value):
    """Replaces one run's part of a tree."""
    return value if run is None else _put_row(tree, run, value)


def _put_row(tree, index, value):
    update = jax.lax.dynamic_update_index_in_dim
    return jax.tree.map(lambda leaf, new: update(leaf, new, index, 0), tree, value)


def _put_rows(tree, indices, values):
    return jax.tree.map(lambda leaf, new: leaf.at[indices].set(new), tree, values)
