"""Several devices: what is where, what is refused, and the same numbers."""

import jax
import numpy as np
import pytest
from helpers import Case, Compilations, fixed, one_round, run, small_network
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedjax_algos as fa
from fedjax_algos.engine.devices import client_mesh
from fedjax_algos.engine.placement import Spread, arrange
from fedjax_algos.schedules import Synchronous

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
SETS = [(0, 1, 2), (3, 2, 1)]


def first_visits(counts, rounds=1):
    schedule = Synchronous(counts, LOCAL, cohort_size=3, seed=0, sampler=fixed(SETS))
    return schedule.visits(rounds)


@pytest.mark.parametrize(("name", "devices"), [("scaffold", 4), ("fedlga", 8), ("fedhbm", 8)])
def test_more_devices_than_clients(name, devices, x64):
    """Devices without a client add nothing; rows and stacks come back in their places."""
    toy = small_network()
    algorithm = Case(name, {}).build(toy.problem, LOCAL)
    steps = (2, 1, 3, 2)
    expected = run(algorithm, toy.data, SETS, num_steps=steps)
    seen = run(algorithm, toy.data, SETS, num_steps=steps, layout="sequential", devices=devices)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11), expected, seen)


@pytest.mark.parametrize("place", ["device", "host"])
def test_rows_and_updates_are_those_of_one_device(place, x64):
    toy = small_network()
    algorithm = Case("scaffold", {}).build(toy.problem, LOCAL)
    counts = toy.data.counts()
    visits, kept, stacks = first_visits(counts, 2), [], []
    for devices in (None, 2):
        engine = fa.make_engine(algorithm, "sequential", client_state=place, devices=devices)
        data = engine.place(toy.data)
        state = engine.init(0, fa.Population(4, 3, int(counts.sum())))
        state, _ = engine.round(state, data, one_round(visits, 0))
        stacks.append(engine.updates(state, data, one_round(visits, 1)))
        with Compilations() as later:
            state, _ = engine.round(state, data, one_round(visits, 1))
        assert later.count == 0
        rows = dict(state.clients) if place == "host" else state.clients
        kept.append(jax.tree.map(np.asarray, rows))
    assert stacks[1].visits.client.tolist() == list(SETS[1])
    assert stacks[1].mask.tolist() == [True] * 3
    for one, other in (kept, stacks):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11), one, other)


def test_where_things_are():
    toy = small_network()
    algorithm = Case("scaffold", {}).build(toy.problem, LOCAL)
    engine = fa.make_engine(algorithm, devices=2)
    state = engine.init(0, fa.Population(4, 3, 17))
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state.server))
    row = jax.tree.leaves(state.clients)[0]
    assert row.addressable_data(0).shape[0] == 2  # half of four clients
    three = fa.make_engine(algorithm, devices=jax.devices()[2:5])
    state = three.init(0, fa.Population(4, 3, 17))  # four rows do not divide
    assert jax.tree.leaves(state.clients)[0].sharding.is_fully_replicated
    assert {d.id for d in state.seed.sharding.device_set} == {2, 3, 4}


def test_what_is_refused():
    toy = small_network()
    algorithm = Case("fedavg", {}).build(toy.problem, LOCAL)
    with pytest.raises(ValueError, match=r"devices=9 is out of range; give 1 to 8"):
        fa.make_engine(algorithm, devices=9)
    with pytest.raises(ValueError, match="devices is empty"):
        client_mesh([])
    engine = fa.make_engine(algorithm, devices=2)
    state = engine.init(0, fa.Population(4, 3, 17))
    visits = first_visits(toy.data.counts())
    with pytest.raises(ValueError, match=r"give engine.place\(data\)"):
        engine.round(state, toy.data, one_round(visits, 0))
    for number in (0, 2):
        with pytest.raises(ValueError, match=f"number={number} is out of range; give 1 to 1"):
            engine.rounds(state, engine.place(toy.data), visits, number)


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.data())
@settings(max_examples=300, deadline=None)
def test_each_turn_has_one_place(cohort_size, size, devices, draw):
    mesh = None if devices == 1 else client_mesh(devices)
    steps = draw.draw(arrays(np.int32, (2, cohort_size), elements=st.integers(1, 50)))
    order = Spread(size, mesh).order(steps)
    chunk = min(size, -(-cohort_size // devices))
    assert order.shape[1] % (chunk * devices) == 0
    assert order.shape[1] - cohort_size < chunk * devices
    for line in order:
        assert sorted(line[line >= 0].tolist()) == list(range(cohort_size))


def test_alike_turns_share_a_chunk_and_devices_share_the_work():
    steps = np.array([1, 8, 2, 7, 3, 6, 4, 5])
    chunked = steps[Spread(2).order(steps)]
    assert chunked.tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    halves = steps[Spread("sequential", client_mesh(2)).order(steps)]
    assert halves.tolist() == [8, 5, 4, 1, 7, 6, 3, 2]
    as_given = Spread("sequential").order(steps)
    assert as_given.tolist() == list(range(8))


def test_an_empty_place_has_no_client_and_no_steps():
    visits = one_round(first_visits(np.array([5, 1, 8, 3])), 0)
    placed = arrange(visits, np.array([2, -1, 0, 1], np.int32), nobody=4)
    assert placed.client.tolist() == [2, 4, 0, 1]
    assert placed.num_steps.tolist() == [2, 0, 2, 2]
