"""Examples on their clients' own devices: who has what, whose turn is where, the same numbers.

That all algorithms give the same numbers is in test_layouts.py, several processes in
test_processes.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, Compilations, fixed, one_round, small_network
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedjax_algos as fa
from fedjax_algos.engine import engine as engine_module
from fedjax_algos.engine.devices import client_mesh
from fedjax_algos.engine.host_state import HostTable
from fedjax_algos.engine.placement import Spread, rounded
from fedjax_algos.engine.sharded_data import ShardedData, deal
from fedjax_algos.schedules import Synchronous

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
SETS = [(0, 1, 2), (3, 2, 1), (0, 3, 2)]
POPULATION = fa.Population(4, 3, 17)
wait = jax.block_until_ready  # also where the fixture `unreadable` refuses it


def scaffold(toy):
    return Case("scaffold", {}).build(toy.problem, LOCAL)


def sharding(algorithm, devices=2, layout="sequential", **how):
    return fa.make_engine(algorithm, layout, devices=devices, examples="sharded", **how)


def visits_of(toy, sets=SETS, steps=(2, 1, 3, 2)):
    schedule = Synchronous(
        toy.data.counts(), LOCAL, cohort_size=len(sets[0]), seed=0, sampler=fixed(sets)
    )
    visits = schedule.visits(len(sets))
    return visits._replace(num_steps=np.asarray(steps, np.int32)[visits.client])


def ragged(num_clients=41, seed=0):
    """41 clients of 1 to 30 examples; some share examples, and some examples are nobody's."""
    rng = np.random.default_rng(seed)
    total = 16 * num_clients
    examples = {
        "x": rng.integers(0, 256, (total, 8), np.uint8),
        "y": rng.normal(size=total),  # float64
    }
    sizes = rng.integers(1, 31, num_clients)
    rows = [rng.choice(total - 10, size, replace=False) for size in sizes]
    with jax.default_device(jax.devices()[-1]):  # as one does for more than the first can hold
        return fa.federate(examples, fa.Partition.of(rows)), rows


# who has what


@given(arrays(np.int32, st.integers(1, 60), elements=st.integers(0, 1000)), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_devices_differ_by_one_client_and_by_the_largest_client(sizes, num_devices):
    homes = deal(sizes, num_devices)
    clients = np.bincount(homes, minlength=num_devices)
    examples = np.bincount(homes, sizes, minlength=num_devices)
    assert np.ptp(clients) <= 1
    assert np.ptp(examples) <= sizes.max()


@pytest.mark.parametrize("devices", [2, 8])
def test_each_device_holds_its_clients_examples_and_no_others(devices):
    data, rows = ragged()
    placed = sharding(scaffold(small_network()), devices).place(data)
    assert isinstance(placed, ShardedData)
    assert placed.num_clients == 41
    np.testing.assert_array_equal(placed.counts(), data.counts())
    wanted = [
        np.unique(np.concatenate([rows[c] for c in np.flatnonzero(placed.homes == device)]))
        for device in range(devices)
    ]
    fullest = max(map(len, wanted))
    for leaf, whole in zip(
        jax.tree.leaves(placed.parts.examples), jax.tree.leaves(data.examples), strict=True
    ):
        assert leaf.dtype == whole.dtype
        for device, part in enumerate(leaf.addressable_shards):
            assert part.device == jax.devices()[device]
            assert part.data.nbytes == fullest * whole[0].nbytes
            kept = np.asarray(part.data)[0, : len(wanted[device])]
            np.testing.assert_array_equal(kept, np.asarray(whole)[wanted[device]])
    assigned = [data.counts()[placed.homes == device].sum() for device in range(devices)]
    indices = placed.parts.indices
    assert {part.data.nbytes for part in indices.addressable_shards} == {4 * max(assigned)}
    # every example once would be 41 * 16 rows: even with those that are shared it is a part
    assert fullest < 41 * 16 / devices * 1.3


def test_a_client_finds_its_examples_at_home_in_their_order():
    data, rows = ragged()
    placed = sharding(scaffold(small_network()), 4).place(data)
    examples, indices, offsets = jax.tree.map(np.asarray, placed.parts)
    for client, expected in enumerate(rows):
        home = placed.homes[client]
        start, end = offsets[home, client : client + 2]
        seen = examples["x"][home][indices[home, start:end]]
        np.testing.assert_array_equal(seen, np.asarray(data.examples["x"])[expected])
        others = np.diff(offsets[:, client : client + 2])[np.arange(4) != home]
        assert not others.any()


def test_numpy_data_are_placed_in_jax_s_dtypes():
    examples = {"x": np.arange(6.0).reshape(3, 2), "n": np.arange(3)}
    data = fa.FederatedData(examples, np.arange(3), np.arange(4))
    placed = sharding(scaffold(small_network()), 2).place(data)
    expected = jax.tree.map(lambda leaf: jnp.asarray(leaf).dtype, examples)
    assert jax.tree.map(lambda leaf: leaf.dtype, placed.parts.examples) == expected
    assert placed.parts.indices.dtype == placed.parts.offsets.dtype == np.int32


# whose turn is where


def test_numbers_of_places_are_few():
    seen = [rounded(number) for number in range(1, 18)]
    assert seen == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16, 16, 16, 16, 24]


@given(st.integers(1, 12), st.integers(1, 4), st.integers(2, 4), st.data())
@settings(max_examples=300, deadline=None)
def test_each_turn_has_one_place_at_home(cohort_size, size, devices, draw):
    steps = draw.draw(arrays(np.int32, (3, cohort_size), elements=st.integers(1, 50)))
    homes = draw.draw(arrays(np.int32, (3, cohort_size), elements=st.integers(0, devices - 1)))
    spread = Spread(size, client_mesh(devices))
    order = spread.order(steps, homes)
    room = order.shape[1] // devices
    fullest = max(np.bincount(line).max() for line in homes)
    assert fullest <= room <= max(1.5 * fullest, fullest + size)
    assert room % spread.chunk(order.shape[1]) == 0
    for line, home, work in zip(order.reshape(3, devices, room), homes, steps, strict=True):
        assert sorted(line[line >= 0].tolist()) == list(range(cohort_size))
        for device, places in enumerate(line):
            taken = places[places >= 0]
            assert (home[taken] == device).all()
            assert (np.diff(work[taken]) <= 0).all()  # alike turns share a chunk
            assert (places[len(taken) :] == -1).all()


# the same numbers


@pytest.mark.parametrize(
    ("name", "hyperparameters", "place", "devices", "layout"),
    [
        ("scaffold", {}, "device", 8, "vmapped"),
        ("scaffold", {}, "host", 2, 2),
        ("mime", {}, "device", 2, "vmapped"),  # a prelude
        ("fedlga", {"mode": "update"}, "device", [3, 5, 4], "sequential"),  # stacked updates
    ],
)
def test_rounds_and_updates_are_those_of_one_device(
    name, hyperparameters, place, devices, layout, x64
):
    toy = small_network()
    algorithm, visits = Case(name, hyperparameters).build(toy.problem, LOCAL), visits_of(toy)
    if isinstance(devices, list):
        devices = [jax.devices()[number] for number in devices]
    seen = []
    for engine in (
        fa.make_engine(algorithm),
        sharding(algorithm, devices, layout, client_state=place),
    ):
        data, state = engine.place(toy.data), engine.init(0, POPULATION)
        state, _ = engine.round(state, data, one_round(visits, 0))
        stack = engine.updates(state, data, one_round(visits, 1))
        assert stack.visits.client.tolist() == list(SETS[1])
        assert stack.mask.tolist() == [True] * 3
        rest = jax.tree.map(lambda leaf: leaf[1:], visits)
        state, metrics = engine.rounds(state, data, rest)
        rows = state.clients
        if isinstance(rows, HostTable):
            rows = jax.tree.map(lambda *leaves: np.stack(leaves), *(rows[c] for c in range(4)))
        seen.append(
            (stack, state.server, rows, metrics, engine.transfer(state, data, one_round(visits, 0)))
        )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11), *seen)


def test_simulate_gives_the_same_rows(x64):
    toy = small_network()
    test = {"x": np.ones((5, 3)), "y": np.ones(5)}
    algorithm, histories = scaffold(toy), []
    engines = fa.make_engine(algorithm), sharding(algorithm), sharding(algorithm)
    for number, engine in enumerate(engines):
        data = engine.place(toy.data) if number == 2 else toy.data
        _, rows = fa.simulate(engine, data, cohort_size=3, rounds=3, eval_every=2, test=test)
        histories.append([{k: v for k, v in row.items() if k != "wall_seconds"} for row in rows])
    for other in histories[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11), histories[0], other)


def test_one_device_needs_nothing():
    toy = small_network()
    engine = sharding(scaffold(toy), devices=1)
    assert engine.place(toy.data) is toy.data


def test_rounds_read_nothing_and_other_cohorts_compile_nothing(request, monkeypatch):
    """Visits are all that is sent; draws with as many on the fullest device share programs."""
    toy = small_network()
    sets = [(0, 1, 2), (3, 1, 0), (1, 2, 3), (0, 2, 1)]  # two of one device in each
    engine, visits = sharding(scaffold(toy)), visits_of(toy, sets)
    data, state = engine.place(toy.data), engine.init(0, POPULATION)
    assert data.homes.tolist() == [1, 0, 0, 1]
    request.getfixturevalue("unreadable")
    monkeypatch.setattr(engine_module, "settle", lambda mesh, tree: wait(tree))
    with jax.transfer_guard("disallow"):
        state, _ = engine.round(state, data, one_round(visits, 0))
        state, _ = engine.rounds(state, data, one_round(visits, slice(0, 2)))
        with Compilations() as later:
            state, _ = engine.round(state, data, one_round(visits, 1))
            state, _ = engine.rounds(state, data, one_round(visits, slice(2, 4)))
    assert later.count == 0


# what is refused


def test_what_is_refused():
    toy = small_network()
    algorithm, visits = scaffold(toy), one_round(visits_of(toy), 0)
    with pytest.raises(
        ValueError, match="examples='split' is unknown; choose replicated or sharded"
    ):
        fa.make_engine(algorithm, examples="split")
    engine, whole = sharding(algorithm), fa.make_engine(algorithm, devices=2)
    data, state = engine.place(toy.data), engine.init(0, POPULATION)
    assert engine.place(data) is data
    with pytest.raises(ValueError, match=r"examples='sharded'; give engine.place\(data\)"):
        engine.round(state, toy.data, visits)
    for other in (whole, fa.make_engine(algorithm), sharding(algorithm, 4)):
        with pytest.raises(ValueError, match="data are sharded over 2 devices, but the engine has"):
            other.round(state, data, visits)
    with pytest.raises(ValueError, match="data are sharded over 2 devices, but the engine has"):
        sharding(algorithm, 4).place(data)
    for client in (-1, 4):
        stray = visits._replace(client=np.array([0, client, 1], np.int32))
        with pytest.raises(
            ValueError, match=f"client {client} is in a cohort; there are clients 0 to 3"
        ):
            engine.round(state, data, stray)


@pytest.mark.parametrize("field", ["examples", "indices", "offsets"])
def test_who_needs_all_examples_is_told_so(field):
    toy = small_network()
    with pytest.raises(ValueError, match=r"sharded by client, .*give the data as federated"):
        getattr(sharding(scaffold(toy)).place(toy.data), field)


def test_clients_that_read_the_examples_of_others_are_refused():
    toy = small_network()
    engine = sharding(Case("centralised", {}).build(toy.problem, LOCAL))
    state, data = engine.init(0, POPULATION), engine.place(toy.data)
    with pytest.raises(ValueError, match=r"read the examples of all, .*give examples='replicated'"):
        engine.round(state, data, one_round(visits_of(toy), 0))
