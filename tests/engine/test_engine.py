"""What the engine guarantees for every algorithm: bytes, few programs, no reads, no leaks."""

import gc
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, Compilations, ReadError, one_round, quadratics, small_network

import fedjax_algos as fa
from fedjax_algos.participation import Cohorts

LOCAL = fa.Local(batch_size=2, learning_rate=0.1, steps=2)
SETS = [(0, 1, 2), (3, 2, 1)]
POPULATION = fa.Population(4, 3, 17)


def toy_algorithm():
    toy = small_network()
    return toy, Case("fedavg", {}).build(toy.problem, LOCAL)


def test_bytes_are_counted_from_what_is_sent():
    toy = small_network()
    size = 4 * (3 * 4 + 4 + 4)
    counts = toy.data.counts()
    dispatches = one_round(Cohorts(counts, LOCAL, cohort_size=3, seed=0).dispatches(1), 0)
    expected = {
        ("fedavg",): (1, 1),
        ("fedgbo", "rmsprop", "gradient"): (2, 1),
        ("fedgbo", "adam", "model"): (3, 1),
        ("fedgbo", "adam", "both"): (3, 2),
    }
    for (name, *options), (down, up) in expected.items():
        settings = dict(zip(("optimizer", "upload"), options, strict=False))
        engine = fa.make_engine(Case(name, settings).build(toy.problem, LOCAL))
        state = engine.init(0, POPULATION)
        transfer = engine.transfer(state, toy.data, dispatches)
        assert transfer == (down * size, up * size, down * size, down * size, None), name


def test_given_params_start_the_run_and_are_not_consumed():
    toy = quadratics([[1.0]], [[1.0]])
    params = {"x": jnp.asarray(5.0)}
    engine = fa.make_engine(Case("fedavg", {}).build(toy.problem, LOCAL))
    cohorts = Cohorts(toy.data.counts(), LOCAL, cohort_size=1, seed=0)
    start = engine.init(0, fa.Population(1, 1, 1), params)
    after, _ = engine.rounds(start, toy.data, cohorts.dispatches(1))
    assert float(after.server.params["x"]) == pytest.approx(1 + 4 * 0.9**2)
    assert float(params["x"]) == 5.0


def test_simulate_compiles_once_for_all_rounds_and_seeds():
    toy, algorithm = toy_algorithm()
    engine, evaluate = fa.make_engine(algorithm), fa.make_evaluate(algorithm.problem)
    test = {key: np.concatenate([c[key] for c in toy.clients]) for key in ("x", "y")}

    def simulate(rounds, seed):
        return fa.simulate(
            engine, toy.data, cohort_size=3, rounds=rounds, seed=seed, test=test, eval_every=2,
            evaluate=evaluate,
        )[1]  # fmt: skip

    simulate(3, 0)
    with Compilations() as later:
        history = simulate(7, 1)
    assert later.count == 0
    assert [row["round"] for row in history] == [0, 2, 4, 6, 7]
    assert [row["upload_bytes"] for row in history] == [r * 3 * 80 for r in (0, 2, 4, 6, 7)]


def test_reprs_are_one_readable_line():
    toy, algorithm = toy_algorithm()
    engine = fa.make_engine(algorithm, 2, devices=2)
    assert repr(engine).startswith("Engine(layout=2, devices=2, algorithm=Algorithm(")
    seen = []

    @jax.jit
    def trace(state):
        seen.append(repr(state))
        return state

    state = engine.init(0, fa.Population(4, 2, 17))
    trace(state)
    expected = (
        "FederatedState(server=params.hidden.b float32[4], params.hidden.w float32[3, 4], "
        "params.out float32[4], statistics=nothing, clients=nothing)"
    )
    assert [repr(state), *seen, repr(jax.eval_shape(lambda: state))] == [expected] * 3
    scaffold = Case("scaffold", {}).build(toy.problem, LOCAL)
    state = fa.make_engine(scaffold, client_state="host").init(0, fa.Population(4, 2, 17))
    assert repr(state.clients) == (
        "HostClientState(clients=0, row=hidden.b float32[4], hidden.w float32[3, 4], "
        "out float32[4])"
    )
    sharded = fa.make_engine(algorithm, devices=2, examples="sharded").put_data(toy.data)
    assert repr(sharded) == (
        "ShardedData(clients=4, devices=2, examples=x float32[17, 3], y float32[17])"
    )


@pytest.mark.parametrize("layout", ["vmaped", 0, -3, "0"])
def test_unknown_layouts_are_refused(layout):
    _, algorithm = toy_algorithm()
    with pytest.raises(ValueError, match=f"layout={layout!r} is unknown; give auto, vmapped"):
        fa.make_engine(algorithm, layout)


@pytest.mark.all
def test_a_round_reads_nothing_and_sends_only_its_dispatches(request):
    """With a prelude, once all is compiled; test_sharded_data.py has rows of client state."""
    toy = small_network()
    counts = np.array([5, 1, 8, 3])
    algorithm = Case("mime", {}).build(toy.problem, LOCAL)
    engine = fa.make_engine(algorithm, layout=2)
    state = engine.init(0, POPULATION)
    dispatches = Cohorts(counts, LOCAL, cohort_size=3, seed=0).dispatches(6)
    state, _ = engine.round(state, toy.data, one_round(dispatches, 3))
    state, _ = engine.rounds(state, toy.data, dispatches)
    request.getfixturevalue("unreadable")
    for read in (float, np.asarray, lambda leaf: leaf.item()):
        with pytest.raises(ReadError):
            read(state.seed)
    with jax.transfer_guard("disallow"):
        with pytest.raises(Exception, match="isallowed host-to-device"):
            state.seed + np.uint32(1)
        for index in range(3):
            state, _ = engine.round(state, toy.data, one_round(dispatches, index))
        state, _ = engine.rounds(state, toy.data, dispatches)


@pytest.mark.all
@pytest.mark.parametrize("client_state", ["device", "host", "disk"])
def test_a_hundred_rounds_keep_no_memory(client_state, tmp_path):
    toy = small_network()
    client_state = fa.RowsOnDisk(tmp_path) if client_state == "disk" else client_state
    algorithm = Case("scaffold", {}).build(toy.problem, LOCAL)
    engine = fa.make_engine(algorithm, client_state=client_state)
    cohorts = Cohorts(toy.data.counts(), LOCAL, cohort_size=3, seed=0)
    state, sizes = engine.init(0, POPULATION), []
    for window in range(10):
        if window == 1:  # everything is compiled
            tracemalloc.start()
        dispatches = cohorts.dispatches(12)
        for index in range(6):
            state, metrics = engine.round(state, toy.data, one_round(dispatches, index))
        rest = jax.tree.map(lambda leaf: leaf[6:], dispatches)
        state, metrics = engine.rounds(state, toy.data, rest)
        del metrics
        if window >= 6:  # what was allocated before tracing has been freed
            gc.collect()
            arrays = jax.live_arrays()
            size = sum(leaf.nbytes for leaf in arrays)
            sizes.append((len(arrays), size, tracemalloc.get_traced_memory()[0]))
            del arrays
    tracemalloc.stop()
    counts, device, host = np.array(sizes).T
    assert max(counts[-1] - counts[0], device[-1] - device[0]) <= 0  # others' arrays may go
    assert np.median(np.diff(host)) < 15_000  # of 12 rounds; a trace in each would add 40,000
