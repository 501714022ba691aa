"""What the engine guarantees for every algorithm: rows, stacks, masks, bytes, repeatability."""

import gc
import tracemalloc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    LAYOUTS,
    Case,
    Compilations,
    ReadError,
    fixed,
    one_round,
    quadratics,
    run,
    small_network,
)

import fedjax_algos as fa
from fedjax_algos.core import Stack
from fedjax_algos.participation import Cohorts

LOCAL = fa.Local(batch_size=2, learning_rate=0.1, steps=2)
SETS = [(0, 1, 2), (3, 2, 1)]


class Server(NamedTuple):
    params: Any
    extra: Any = ()


def rounds(algorithm, data, sets, layout, seed=0, **options):
    """The states after each round."""
    engine = fa.make_engine(algorithm, layout, **options)
    counts = data.counts()
    cohorts = Cohorts(
        counts, algorithm.local, cohort_size=len(sets[0]), seed=seed, sampler=fixed(sets)
    )
    dispatches = cohorts.dispatches(len(sets))
    state = engine.init(seed, fa.Population(len(counts), len(sets[0]), int(counts.sum())))
    for index in range(len(sets)):
        state, metrics = engine.round(state, data, one_round(dispatches, index))
        yield jax.tree.map(np.array, state), metrics


def toy_algorithm(**changes):
    toy = small_network()
    base = Case("fedavg", {}).build(toy.problem, LOCAL)
    return toy, base._replace(**changes)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_client_rows_are_made_at_the_first_dispatch_and_kept(layout):
    """Rows start from theta_0 and the client's key; only dispatches of the client change them."""

    def client_init(params, key):
        return {"dispatches": jnp.int32(0), "own": jax.random.uniform(key), "origin": params["out"]}

    def client_update(params, state, data, dispatch, key):
        assert state["dispatches"].dtype == jnp.int32
        report = fa.Report({}, ())
        return (
            state | {"dispatches": state["dispatches"] + 1},
            jax.tree.map(jnp.zeros_like, params),
            report,
        )

    toy, algorithm = toy_algorithm(client_init=client_init, client_update=client_update)
    (first, _), (second, _) = rounds(algorithm, toy.data, SETS, layout)
    # four clients, chunks of two: the empty slot of the first round writes no row
    assert first.clients["dispatches"].tolist() == [1, 1, 1, 0]
    assert second.clients["dispatches"].tolist() == [1, 2, 2, 1]
    assert len(set(second.clients["own"].tolist())) == 4
    np.testing.assert_array_equal(second.clients["own"][:3], first.clients["own"][:3])
    origin = fa.make_engine(algorithm).init(0, fa.Population(4, 3, 17)).server.params["out"]
    np.testing.assert_array_equal(second.clients["origin"], np.tile(origin, (4, 1)))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_stacked_updates_come_with_dispatches_and_mask(layout):
    """A coordinate-wise median over the cohort, against NumPy."""

    def client_update(params, state, data, dispatch, key):
        shift = jnp.square(dispatch.client + 1.0)
        return state, jax.tree.map(lambda p: jnp.full_like(p, shift), params), fa.Report({}, ())

    def server_update(server, stack, count, group):
        assert isinstance(stack, Stack)
        median = jax.tree.map(
            lambda u: jnp.nanmedian(
                jnp.where(stack.mask.reshape(-1, *[1] * (u.ndim - 1)), u, jnp.nan), axis=0
            ),
            stack.updates,
        )
        seen = jnp.where(stack.mask, stack.dispatches.client, 0).sum()
        return Server(jax.tree.map(jnp.add, server.params, median), (count, seen))

    toy, algorithm = toy_algorithm(
        client_update=client_update,
        server_update=server_update,
        traits=fa.Traits(reduce="stack"),
        init=lambda params, population: Server(params, (jnp.int32(0), jnp.int32(0))),
    )
    (first, _), (second, _) = rounds(algorithm, toy.data, SETS, layout)
    moved = second.server.params["hidden"]["b"] - first.server.params["hidden"]["b"]
    np.testing.assert_allclose(first.server.params["hidden"]["b"], np.median([1, 4, 9]))
    np.testing.assert_allclose(moved, np.median([16, 9, 4]))
    assert [int(x) for x in second.server.extra] == [3, 6]


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
        state = engine.init(0, fa.Population(4, 3, 17))
        assert engine.transfer(state, toy.data, dispatches) == (down * size, up * size), name


def test_given_params_start_the_run_and_are_not_consumed():
    toy = quadratics([[1.0]], [[1.0]])
    params = {"x": jnp.asarray(5.0)}
    (after,) = run(Case("fedavg", {}).build(toy.problem, LOCAL), toy.data, [(0,)], params=params)
    assert float(after["x"]) == pytest.approx(1 + 4 * 0.9**2)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "mime"])
def test_a_round_reads_nothing_and_sends_only_its_dispatches(name, unreadable):
    toy = small_network()
    counts = np.array([5, 1, 8, 3])
    algorithm = Case(name, {}).build(toy.problem, LOCAL)
    engine = fa.make_engine(algorithm, layout=2)
    state = engine.init(0, fa.Population(4, 3, 17))
    dispatches = Cohorts(counts, LOCAL, cohort_size=3, seed=0).dispatches(6)
    for read in (float, np.asarray, lambda leaf: leaf.item()):
        with pytest.raises(ReadError):
            read(state.seed)
    with jax.transfer_guard("disallow"):
        with pytest.raises(Exception, match="isallowed host-to-device"):
            state.seed + np.uint32(1)
        for index in range(3):
            state, _ = engine.round(state, toy.data, one_round(dispatches, index))
        state, _ = engine.rounds(state, toy.data, dispatches)


@pytest.mark.slow
@pytest.mark.parametrize("client_state", ["device", "host", "disk"])
def test_three_hundred_rounds_keep_no_memory(client_state, tmp_path):
    toy = small_network()
    client_state = fa.RowsOnDisk(tmp_path) if client_state == "disk" else client_state
    algorithm = Case("scaffold", {}).build(toy.problem, LOCAL)
    engine = fa.make_engine(algorithm, client_state=client_state)
    cohorts = Cohorts(toy.data.counts(), LOCAL, cohort_size=3, seed=0)
    state, sizes = engine.init(0, fa.Population(4, 3, 17)), []
    for window in range(10):
        if window == 1:  # everything is compiled
            tracemalloc.start()
        dispatches = cohorts.dispatches(30)
        for index in range(15):
            state, metrics = engine.round(state, toy.data, one_round(dispatches, index))
        rest = jax.tree.map(lambda leaf: leaf[15:], dispatches)
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
    assert len(set(counts)) == len(set(device)) == 1
    assert host[-1] - host[0] < 50_000  # 90 rounds; one trace in each round would add 300,000
