"""Several devices: where arrays are, which arguments are refused, and equal results."""

import chex
import jax
import pytest
from helpers import Case, dispatches_of, one_round, run, small_network

import fedjax_algos as fa
from fedjax_algos.engine.placed.devices import client_mesh

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
SETS, STEPS = [(0, 1, 2), (3, 2, 1)], (2, 1, 3, 2)


@pytest.mark.all
@pytest.mark.parametrize(("name", "devices"), [("scaffold", 4), ("fedlga", 8)])
def test_more_devices_than_clients(name, devices, x64):
    """Devices without a client contribute nothing; rows and stacks keep their order."""
    toy = small_network()
    algorithm = Case(name, {}).build(toy.problem, LOCAL)
    expected = run(algorithm, toy.data, SETS, num_steps=STEPS)
    engine = fa.make_engine(algorithm, "sequential", devices=devices)
    start, data = engine.init(0, fa.Population(4, 3, 17)), engine.put_data(toy.data)
    state, _ = engine.rounds(start, data, dispatches_of(toy.data, LOCAL, SETS, STEPS))
    chex.assert_trees_all_close(expected[-1], jax.device_get(state.server.params), rtol=1e-11)


def test_server_state_is_replicated_and_rows_are_divided():
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


def test_wrong_arguments_are_refused():
    toy = small_network()
    algorithm = Case("fedavg", {}).build(toy.problem, LOCAL)
    with pytest.raises(ValueError, match=r"devices=9 is out of range; give 1 to 8"):
        fa.make_engine(algorithm, devices=9)
    with pytest.raises(ValueError, match="devices is empty"):
        client_mesh([])
    engine = fa.make_engine(algorithm, devices=2)
    state = engine.init(0, fa.Population(4, 3, 17))
    dispatches = dispatches_of(toy.data, LOCAL, SETS[:1])
    with pytest.raises(ValueError, match="are not on all devices of the engine"):
        engine.round(state, toy.data, one_round(dispatches, 0))
    for number in (0, 2):
        with pytest.raises(ValueError, match=f"number={number} is out of range; give 1 to 1"):
            engine.rounds(state, engine.put_data(toy.data), dispatches, number)


def test_several_processes_have_equally_many_devices(monkeypatch):
    """Of two processes, of which a test has the first one."""
    monkeypatch.setattr("fedjax_algos.engine.placed.devices.num_processes", lambda: 2)
    with pytest.raises(ValueError, match="devices=3 do not divide over 2 processes; give a mult"):
        client_mesh(3)
    with pytest.raises(ValueError, match="devices are 4 of process 0; give equally many of each"):
        client_mesh(jax.devices()[:4])
