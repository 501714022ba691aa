"""What the engine guarantees for every algorithm: bytes, few programs, no reads, no leaks."""

import gc
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_helpers import ALGORITHM, LOCAL, POPULATION, SEED, examples, in_files
from helpers import Case, Compilations, ReadError, dispatches_of, one_round, small_network

import fedjax_algos as fa
from fedjax_algos.engine import engine as engine_module
from fedjax_algos.engine.exchange import Transfer
from fedjax_algos.participation import Cohorts


def test_bytes_are_counted_from_what_is_sent():
    toy, size = small_network(), 4 * (3 * 4 + 4 + 4)
    dispatches = one_round(dispatches_of(toy.data, LOCAL, [(0, 1, 2)]), 0)
    for name, settings, down, up in (
        ("fedavg", {}, 1, 1),
        ("fedgbo", {"optimizer": "rmsprop", "upload": "gradient"}, 2, 1),
        ("fedgbo", {"optimizer": "adam", "upload": "model"}, 3, 1),
        ("fedgbo", {"optimizer": "adam", "upload": "both"}, 3, 2),
    ):
        engine = fa.make_engine(Case(name, settings).build(toy.problem, LOCAL))
        state = engine.shapes(fa.Population(4, 3, 17))
        transfer = engine.transfer(state, toy.data, dispatches)
        assert transfer == (down * size, up * size, down * size, down * size, None), name


def test_bytes_of_many_dispatches():
    """At most a whole broadcast for those who have missed some; reports come on top."""
    transfer, gaps = Transfer(100, 7, 30, 25), np.array([2, 3, 1, 0, 1])
    assert transfer.downloads(gaps) == 2 * 100 + 3 * 30 + 55 + 100
    assert transfer.downloads(gaps, chosen=4) == 400
    assert transfer.uploads(5) == 35
    asked = transfer._replace(report=2)
    assert asked.downloads(gaps, chosen=4) == transfer.downloads(gaps)
    assert asked.uploads(5, chosen=3) == 10 + 21


def test_given_params_start_the_run_and_are_copied():
    params = jnp.asarray(5.0)
    state = fa.make_engine(ALGORITHM).init(SEED, POPULATION, fa.Model(params, jnp.asarray(0.0)))
    assert float(state.server.params) == float(state.origin) == 5.0
    buffers = {leaf.unsafe_buffer_pointer() for leaf in (params, state.origin, state.server.params)}
    assert len(buffers) == 3  # rounds consume those of the state


@pytest.mark.all
def test_simulate_compiles_once_for_all_rounds_and_seeds():
    engine, evaluate = fa.make_engine(ALGORITHM), fa.make_evaluate(ALGORITHM.problem)
    test = jax.device_get(examples().examples)

    def simulate(rounds, seed):
        options = {"seed": seed, "test": test, "eval_every": 2, "evaluate": evaluate}
        return fa.simulate(engine, examples(), cohort_size=3, rounds=rounds, **options)[1]

    simulate(3, 0)
    with Compilations() as later:
        history = simulate(7, 1)
    assert later.count == 0
    assert [row["round"] for row in history] == [0, 2, 4, 6, 7]
    assert [row["upload_bytes"] for row in history] == [r * 3 * 8 for r in (0, 2, 4, 6, 7)]


def test_reprs_are_one_readable_line():
    engine, seen = fa.make_engine(ALGORITHM, 2, devices=2, examples="sharded"), []
    assert repr(engine).startswith("Engine(layout=2, devices=2, algorithm=Algorithm(")
    state, data = engine.init(0, POPULATION), engine.put_data(examples())
    jax.eval_shape(lambda state: seen.append(repr(state)), state)
    server = "FederatedState(server=params float32[], steps int32[2], statistics=float32[], "
    assert [repr(state), *seen] == [f"{server}clients=float32[8])"] * 2
    clients = fa.make_engine(ALGORITHM, client_state="host").shapes(POPULATION).clients
    assert repr(clients) == "HostClientState(clients=0, row=float32[])"
    assert repr(data) == "ShardedData(clients=8, devices=2, examples=a float32[36])"


wait = jax.block_until_ready  # also where the fixture `unreadable` refuses it


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "options"),
    [("mime", {"layout": 2}), ("scaffold", {"devices": 2, "examples": "sharded"})],
)
def test_rounds_read_nothing_and_other_cohorts_compile_nothing(name, options, request, monkeypatch):
    """With a prelude, and with rows and examples on two devices. Only dispatches are sent."""
    toy = small_network()
    engine = fa.make_engine(Case(name, {}).build(toy.problem, LOCAL), **options)
    data, state = engine.put_data(toy.data), engine.init(0, fa.Population(4, 3, 17))
    sets = [(0, 1, 2), (0, 3, 1)] * 2  # two of one device in each
    dispatches = dispatches_of(toy.data, LOCAL, sets, (1, 3, 3, 1))
    state, _ = engine.round(state, data, one_round(dispatches, 0))
    state, _ = engine.rounds(state, data, one_round(dispatches, slice(2)))
    request.getfixturevalue("unreadable")
    monkeypatch.setattr(engine_module, "wait_on_cpu", lambda mesh, tree: wait(tree))
    for read in (float, np.asarray, lambda leaf: leaf.item()):
        with pytest.raises(ReadError):
            read(state.seed)
    with jax.transfer_guard("disallow"):
        with pytest.raises(Exception, match="isallowed host-to-device"):
            state.seed + np.uint32(1)
        with Compilations() as later:
            state, _ = engine.round(state, data, one_round(dispatches, 1))
            state, _ = engine.rounds(state, data, one_round(dispatches, slice(2, 4)))
    assert later.count == 0


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", {}),
        ("mime", {"layout": 2}),
        ("scaffold", {"devices": 2}),
        ("scaffold", {"devices": 2, "examples": "sharded"}),
        ("fedhbm", {"devices": 2, "devices_per_client": 2}),
    ],
)
def test_rounds_use_the_program_that_was_lowered_and_compiled(name, options):
    toy, population = small_network(), fa.Population(4, 3, 17)
    engine = fa.make_engine(Case(name, {}).build(toy.problem, LOCAL), **options)
    data, state = engine.put_data(toy.data), engine.init(0, population)
    dispatches = dispatches_of(toy.data, LOCAL, [(0, 1, 2), (0, 3, 1)])
    engine.lower_rounds(population, data, dispatches).compile()
    with Compilations() as later:
        engine.rounds(state, data, dispatches)
    assert later.count == 0


@pytest.mark.parametrize(("data", "place"), [(examples, "host"), (in_files, "device")])
def test_rounds_of_several_programs_are_not_lowered(data, place):
    engine, data = fa.make_engine(ALGORITHM, client_state=place), data()
    dispatches = dispatches_of(examples(), LOCAL, [(0, 1, 2)])
    assert engine.lower_rounds(POPULATION, engine.put_data(data), dispatches) is None


@pytest.mark.all
def test_many_rounds_keep_no_memory():
    engine = fa.make_engine(ALGORITHM)
    cohorts = Cohorts(examples().counts(), LOCAL, cohort_size=3, seed=0)
    state, sizes = engine.init(0, POPULATION), []
    for window in range(10):
        if window == 1:  # everything is compiled
            tracemalloc.start()
        dispatches = cohorts.dispatches(12)
        for index in range(6):
            state, metrics = engine.round(state, examples(), one_round(dispatches, index))
        state, metrics = engine.rounds(state, examples(), one_round(dispatches, slice(6, 12)))
        del metrics
        if window >= 6:  # what was allocated before tracing has been freed
            gc.collect()
            on_device = [leaf.nbytes for leaf in jax.live_arrays()]
            sizes.append((len(on_device), sum(on_device), tracemalloc.get_traced_memory()[0]))
    tracemalloc.stop()
    counts, device, host = np.array(sizes).T
    assert max(counts[-1] - counts[0], device[-1] - device[0]) <= 0  # others' arrays may go
    assert np.median(np.diff(host)) < 15_000  # of 12 rounds; a trace in each would add 40,000
