"""Several devices: where states and examples are, and which arguments are refused.

algorithms/test_every_algorithm.py compares the results of all algorithms, runs/test_processes.py
those of several processes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_helpers import ALGORITHM, CLIENTS, LOCAL, POPULATION, examples
from helpers import Case, dispatches_of, one_round, small_network
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedjax_algos as fa
from fedjax_algos.engine.placed.devices import client_mesh
from fedjax_algos.engine.placed.sharded_data import ShardedData, assign_devices


def sharding(devices=2):
    return fa.make_engine(ALGORITHM, "sequential", devices=devices, examples="sharded")


def ragged(num_clients=41, seed=0):
    """41 clients of 1 to 30 examples; some examples have several clients, and some have none."""
    rng = np.random.default_rng(seed)
    total = 16 * num_clients
    examples = {"x": rng.integers(0, 256, (total, 8), np.uint8), "y": rng.normal(size=total)}
    sizes = rng.integers(1, 31, num_clients)
    rows = [rng.choice(total - 10, size, replace=False) for size in sizes]
    with jax.default_device(jax.devices()[-1]):  # as for data that exceed the first device's memory
        return fa.federate(examples, fa.Partition.of(rows, shared=True)), rows


def test_server_state_is_replicated_and_rows_are_divided():
    state = fa.make_engine(ALGORITHM, devices=2).init(0, POPULATION)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state.server))
    assert state.clients.addressable_data(0).shape == (CLIENTS // 2,)
    three = fa.make_engine(ALGORITHM, devices=jax.devices()[2:5])
    state = three.init(0, POPULATION)  # eight rows do not divide
    assert state.clients.sharding.is_fully_replicated
    assert {d.id for d in state.seed.sharding.device_set} == {2, 3, 4}


@given(arrays(np.int32, st.integers(1, 60), elements=st.integers(0, 1000)), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_devices_differ_by_one_client_and_by_the_largest_client(sizes, num_devices):
    device_of_client = assign_devices(sizes, num_devices)
    clients = np.bincount(device_of_client, minlength=num_devices)
    examples = np.bincount(device_of_client, sizes, minlength=num_devices)
    assert np.ptp(clients) <= 1
    assert np.ptp(examples) <= sizes.max()


@pytest.mark.parametrize("devices", [2, 8])
def test_each_device_holds_its_clients_examples_and_no_others(devices):
    """Each client finds its examples there in order."""
    data, rows = ragged()
    placed = sharding(devices).put_data(data)
    assert isinstance(placed, ShardedData)
    assert placed.num_clients == 41
    np.testing.assert_array_equal(placed.counts(), data.counts())
    owned = [np.flatnonzero(placed.device_of_client == device) for device in range(devices)]
    expected = [np.unique(np.concatenate([rows[client] for client in own])) for own in owned]
    fullest = max(map(len, expected))
    for name, leaf in placed.parts.examples.items():
        whole = data.examples[name]
        assert leaf.dtype == whole.dtype
        for device, part in enumerate(leaf.addressable_shards):
            assert part.device == jax.devices()[device]
            assert part.data.nbytes == fullest * whole[0].nbytes
            stored = np.asarray(part.data)[0, : len(expected[device])]
            np.testing.assert_array_equal(stored, np.asarray(whole)[expected[device]])
    assigned = max(data.counts()[own].sum() for own in owned)
    shards = placed.parts.indices.addressable_shards
    assert {part.data.nbytes for part in shards} == {4 * assigned}
    # without sharding a device would hold 41 * 16 rows; some examples are on several devices
    assert fullest < 41 * 16 / devices * 1.3
    examples, indices, offsets = jax.tree.map(np.asarray, placed.parts)
    for client, own in enumerate(rows):
        device = placed.device_of_client[client]
        start, end = offsets[device, client : client + 2]
        found = examples["x"][device][indices[device, start:end]]
        np.testing.assert_array_equal(found, np.asarray(data.examples["x"])[own])
        others = np.diff(offsets[:, client : client + 2])[np.arange(devices) != device]
        assert not others.any()


def test_numpy_data_are_placed_with_jax_dtypes():
    examples = {"x": np.arange(6.0).reshape(3, 2), "n": np.arange(3)}
    data = fa.FederatedData(examples, np.arange(3), np.arange(4))
    placed = sharding().put_data(data)
    expected = jax.tree.map(lambda leaf: jnp.asarray(leaf).dtype, examples)
    assert jax.tree.map(lambda leaf: leaf.dtype, placed.parts.examples) == expected
    assert placed.parts.indices.dtype == placed.parts.offsets.dtype == np.int32


def test_wrong_arguments_are_refused():
    dispatches = dispatches_of(examples(), LOCAL, [(0, 1, 2)])
    one, engine, four = one_round(dispatches, 0), sharding(), sharding(4)
    alone, whole = (fa.make_engine(ALGORITHM, devices=devices) for devices in (None, 2))
    data, state = engine.put_data(examples()), engine.init(0, POPULATION)
    everywhere = whole.put_data(examples())
    assert engine.put_data(data) is data
    assert sharding(1).put_data(examples()) is examples()
    pooling = Case("centralised", {}).build(small_network().problem, LOCAL)

    def stray(client):
        return lambda: engine.round(state, data, one._replace(client=np.int32([0, client, 1])))

    for call, named in (
        (lambda: fa.make_engine(ALGORITHM, "vmaped"), "layout='vmaped'"),
        (lambda: fa.make_engine(ALGORITHM, 0), "layout=0"),
        (lambda: fa.make_engine(ALGORITHM, devices=9), r"devices=9 .* give 1 to 8"),
        (lambda: client_mesh([]), "devices are none; give equally many"),
        (lambda: whole.round(state, examples(), one), "all devices of the engine"),
        (lambda: whole.rounds(state, everywhere, dispatches, 0), "number=0 .* at least 1"),
        (lambda: whole.rounds(state, everywhere, dispatches, 2), "number=2 .* at most 1"),
        (lambda: fa.make_engine(ALGORITHM, examples="split"), "examples='split'"),
        (lambda: engine.round(state, examples(), one), r"engine.put_data\(data\)"),
        (lambda: whole.round(state, data, one), "over 2 devices"),
        (lambda: alone.round(state, data, one), "over 2 devices"),
        (lambda: four.round(state, data, one), "over 2 devices"),
        (lambda: four.put_data(data), "over 2 devices"),
        (stray(-1), "client -1 .* 0 to 7"),
        (stray(8), "client 8 .* 0 to 7"),
        (lambda: fa.make_engine(pooling, devices=2, examples="sharded"), "examples='replicated'"),
    ):
        with pytest.raises(ValueError, match=named):
            call()


def test_several_processes_have_equally_many_devices(monkeypatch):
    """Of two processes, of which a test has the first one."""
    monkeypatch.setattr("fedjax_algos.engine.placed.devices.num_processes", lambda: 2)
    for devices, named in ((3, "devices=3 .* 2 processes"), (jax.devices()[:4], "4 of process 0")):
        with pytest.raises(ValueError, match=named):
            client_mesh(devices)
