"""Examples sharded by client: which device holds and computes which client, and equal results.

algorithms/test_every_algorithm.py compares the results of all algorithms, test_processes.py those
of several processes.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, Compilations, dispatches_of, one_round, small_network
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedjax_algos as fa
from fedjax_algos.engine import engine as engine_module
from fedjax_algos.engine.placed.sharded_data import ShardedData, assign_devices
from fedjax_algos.engine.state import RowTable

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
SETS = [(0, 1, 2), (3, 2, 1), (0, 3, 2)]
STEPS = (2, 1, 3, 2)
POPULATION = fa.Population(4, 3, 17)
wait = jax.block_until_ready  # also where the fixture `unreadable` refuses it


def scaffold(toy):
    return Case("scaffold", {}).build(toy.problem, LOCAL)


def sharding(algorithm, devices=2, layout="sequential", **how):
    return fa.make_engine(algorithm, layout, devices=devices, examples="sharded", **how)


def ragged(num_clients=41, seed=0):
    """41 clients of 1 to 30 examples; some examples have several clients, and some have none."""
    rng = np.random.default_rng(seed)
    total = 16 * num_clients
    examples = {
        "x": rng.integers(0, 256, (total, 8), np.uint8),
        "y": rng.normal(size=total),  # float64
    }
    sizes = rng.integers(1, 31, num_clients)
    rows = [rng.choice(total - 10, size, replace=False) for size in sizes]
    with jax.default_device(jax.devices()[-1]):  # as for data that exceed the first device's memory
        return fa.federate(examples, fa.Partition.of(rows)), rows


# which device holds which examples


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
    placed = sharding(scaffold(small_network()), devices).put_data(data)
    assert isinstance(placed, ShardedData)
    assert placed.num_clients == 41
    np.testing.assert_array_equal(placed.counts(), data.counts())
    expected = [
        np.unique(
            np.concatenate([rows[c] for c in np.flatnonzero(placed.device_of_client == device)])
        )
        for device in range(devices)
    ]
    fullest = max(map(len, expected))
    for leaf, whole in zip(
        jax.tree.leaves(placed.parts.examples), jax.tree.leaves(data.examples), strict=True
    ):
        assert leaf.dtype == whole.dtype
        for device, part in enumerate(leaf.addressable_shards):
            assert part.device == jax.devices()[device]
            assert part.data.nbytes == fullest * whole[0].nbytes
            stored = np.asarray(part.data)[0, : len(expected[device])]
            np.testing.assert_array_equal(stored, np.asarray(whole)[expected[device]])
    assigned = [data.counts()[placed.device_of_client == device].sum() for device in range(devices)]
    indices = placed.parts.indices
    assert {part.data.nbytes for part in indices.addressable_shards} == {4 * max(assigned)}
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
    placed = sharding(scaffold(small_network()), 2).put_data(data)
    expected = jax.tree.map(lambda leaf: jnp.asarray(leaf).dtype, examples)
    assert jax.tree.map(lambda leaf: leaf.dtype, placed.parts.examples) == expected
    assert placed.parts.indices.dtype == placed.parts.offsets.dtype == np.int32


# equal results


def results_of(engine):
    """A round, updates, and rounds in one program: what they give, with the rows as a table."""
    toy = small_network()
    dispatches = dispatches_of(toy.data, LOCAL, SETS, STEPS)
    data, state = engine.put_data(toy.data), engine.init(0, POPULATION)
    state, _ = engine.round(state, data, one_round(dispatches, 0))
    stack = engine.updates(state, data, one_round(dispatches, 1))
    assert stack.dispatches.client.tolist() == list(SETS[1])
    assert stack.mask.tolist() == [True] * 3
    rest = jax.tree.map(lambda leaf: leaf[1:], dispatches)
    state, metrics = engine.rounds(state, data, rest)
    rows = state.clients
    if isinstance(rows, RowTable):
        rows = jax.tree.map(lambda *leaves: np.stack(leaves), *(rows[c] for c in range(4)))
    transfer = engine.transfer(state, data, one_round(dispatches, 0))
    return stack, state.server, rows, metrics, transfer


@functools.cache
def of_one_device(name):
    settings = {"mode": "update"} if name == "fedlga" else {}
    algorithm = Case(name, settings).build(small_network().problem, LOCAL)
    return algorithm, results_of(fa.make_engine(algorithm))


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "client_state", "devices", "layout", "examples"),
    [
        ("scaffold", "device", 8, "vmapped", "sharded"),
        ("scaffold", "host", 2, 2, "sharded"),
        ("scaffold", "disk", 2, "sequential", "replicated"),
        ("mime", "device", 2, "vmapped", "sharded"),  # a prelude
        ("fedlga", "device", [3, 5, 4], "sequential", "sharded"),  # stacked updates
    ],
)
def test_rounds_and_updates_equal_those_of_one_device(
    name, client_state, devices, layout, examples, x64, tmp_path
):
    algorithm, expected = of_one_device(name)
    if isinstance(devices, list):
        devices = [jax.devices()[number] for number in devices]
    place = fa.RowsOnDisk(tmp_path) if client_state == "disk" else client_state
    how = {"devices": devices, "examples": examples, "client_state": place}
    found = results_of(fa.make_engine(algorithm, layout, **how))
    chex.assert_trees_all_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.all
def test_rounds_read_nothing_and_other_cohorts_compile_nothing(request, monkeypatch):
    """Only dispatches are sent; cohorts with equal maxima on a device share programs."""
    toy = small_network()
    sets = [(0, 1, 2), (3, 1, 0), (1, 2, 3), (0, 2, 1)]  # two of one device in each
    engine, dispatches = sharding(scaffold(toy)), dispatches_of(toy.data, LOCAL, sets, STEPS)
    data, state = engine.put_data(toy.data), engine.init(0, POPULATION)
    assert data.device_of_client.tolist() == [1, 0, 0, 1]
    request.getfixturevalue("unreadable")
    monkeypatch.setattr(engine_module, "wait_on_cpu", lambda mesh, tree: wait(tree))
    with jax.transfer_guard("disallow"):
        state, _ = engine.round(state, data, one_round(dispatches, 0))
        state, _ = engine.rounds(state, data, one_round(dispatches, slice(0, 2)))
        with Compilations() as later:
            state, _ = engine.round(state, data, one_round(dispatches, 1))
            state, _ = engine.rounds(state, data, one_round(dispatches, slice(2, 4)))
    assert later.count == 0


# wrong arguments


def test_wrong_arguments_are_refused():
    toy = small_network()
    algorithm, dispatches = scaffold(toy), one_round(dispatches_of(toy.data, LOCAL, SETS), 0)
    with pytest.raises(
        ValueError, match="examples='split' is unknown; choose replicated or sharded"
    ):
        fa.make_engine(algorithm, examples="split")
    engine, whole = sharding(algorithm), fa.make_engine(algorithm, devices=2)
    data, state = engine.put_data(toy.data), engine.init(0, POPULATION)
    assert engine.put_data(data) is data
    with pytest.raises(ValueError, match=r"examples='sharded'; call engine.put_data\(data\)"):
        engine.round(state, toy.data, dispatches)
    for other in (whole, fa.make_engine(algorithm), sharding(algorithm, 4)):
        with pytest.raises(ValueError, match="data are sharded over 2 devices, but the engine has"):
            other.round(state, data, dispatches)
    with pytest.raises(ValueError, match="data are sharded over 2 devices, but the engine has"):
        sharding(algorithm, 4).put_data(data)
    for client in (-1, 4):
        stray = dispatches._replace(client=np.array([0, client, 1], np.int32))
        with pytest.raises(
            ValueError, match=f"client {client} is in a cohort; there are clients 0 to 3"
        ):
            engine.round(state, data, stray)
    with pytest.raises(ValueError, match=r"sharded by client, .*give the data that federate"):
        jax.device_get(data.examples)
    pooling = Case("centralised", {}).build(toy.problem, LOCAL)
    with pytest.raises(ValueError, match=r"examples of all others, .*give examples='replicated'"):
        sharding(pooling)
    assert sharding(algorithm, devices=1).put_data(toy.data) is toy.data
