"""Several devices: where arrays are, and which arguments are refused; see also test_rounds.py."""

import jax
import pytest
from engine_helpers import ALGORITHM, CLIENTS, LOCAL, POPULATION, examples
from helpers import dispatches_of, one_round

import fedjax_algos as fa
from fedjax_algos.engine.placed.devices import client_mesh


def test_server_state_is_replicated_and_rows_are_divided():
    state = fa.make_engine(ALGORITHM, devices=2).init(0, POPULATION)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state.server))
    assert state.clients.addressable_data(0).shape == (CLIENTS // 2,)
    three = fa.make_engine(ALGORITHM, devices=jax.devices()[2:5])
    state = three.init(0, POPULATION)  # eight rows do not divide
    assert state.clients.sharding.is_fully_replicated
    assert {d.id for d in state.seed.sharding.device_set} == {2, 3, 4}


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"devices=9 .* give 1 to 8"):
        fa.make_engine(ALGORITHM, devices=9)
    with pytest.raises(ValueError, match="devices is empty"):
        client_mesh([])
    engine = fa.make_engine(ALGORITHM, devices=2)
    state, dispatches = engine.init(0, POPULATION), dispatches_of(examples(), LOCAL, [(0, 1, 2)])
    with pytest.raises(ValueError, match="all devices of the engine"):
        engine.round(state, examples(), one_round(dispatches, 0))
    for number in (0, 2):
        with pytest.raises(ValueError, match=f"number={number} .* 1 to 1"):
            engine.rounds(state, engine.put_data(examples()), dispatches, number)


def test_several_processes_have_equally_many_devices(monkeypatch):
    """Of two processes, of which a test has the first one."""
    monkeypatch.setattr("fedjax_algos.engine.placed.devices.num_processes", lambda: 2)
    for devices, named in ((3, "devices=3 .* 2 processes"), (jax.devices()[:4], "4 of process 0")):
        with pytest.raises(ValueError, match=named):
            client_mesh(devices)
