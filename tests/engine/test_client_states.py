"""The rows of all clients: as the next dispatch reads them, taken out of a run and given to one."""

import functools
import tempfile

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, dispatches_of, one_round, quadratics, random_rows, small_network

import fedjax_algos as fa
from fedjax_algos.asynchrony import FixedSystem, planners
from fedjax_algos.core.randomness import client_key
from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.state import HostClientState
from fedjax_algos.participation import Cohorts

LOCAL = fa.Local(batch_size=2, learning_rate=0.1, steps=1)
SETS = [(0, 1), (2, 1), (1, 0)]
POPULATION = fa.Population(4, 2, 17)
SEED = 3
FOLDER = tempfile.TemporaryDirectory()  # of the tests in this process
PLACES = {
    "device": {},
    "host": {"client_state": "host"},
    "disk": {"client_state": fa.RowsOnDisk(FOLDER.name)},
    "two devices": {"devices": 2},
}
by_place = pytest.mark.parametrize("place", PLACES)
ALL_SETS = [*SETS, (3, 0)]


def drifting(problem):
    """FedAvg whose rows start at random values and count one up in each dispatch."""
    base = Case("fedavg", {}).build(problem, LOCAL)

    def client_update(broadcast, row, data, dispatch, key):
        _, update, report = base.client_update(broadcast, (), data, dispatch, key)
        return jax.tree.map(lambda leaf: leaf + 1.0, row), update, report

    return base._replace(client_update=client_update, client_init=random_rows)


@functools.cache
def engine_of(place):
    """Its rounds are compiled once, as all tests give it the dispatches of four rounds."""
    return fa.make_engine(drifting(small_network().problem), 2, **PLACES[place])


all_dispatches = functools.partial(dispatches_of, local=LOCAL, sets=ALL_SETS, seed=SEED)


def initial_rows(algorithm, origin):
    keys = [client_key(SEED, jnp.int32(client)) for client in range(4)]
    rows = [jax.jit(algorithm.client_init)(origin, key) for key in keys]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def moved(rows, by):
    return jax.tree.map(lambda leaf: leaf + np.reshape(by, (4, *[1] * (leaf.ndim - 1))), rows)


@pytest.mark.all
@by_place
def test_rows_are_those_of_the_next_dispatch(place):
    """Before the first round, and after three in which client 3 is never dispatched."""
    toy, engine = small_network(), engine_of(place)
    data, state = engine.put_data(toy.data), engine.init(SEED, POPULATION)
    first = initial_rows(engine.algorithm, jax.tree.map(np.array, state.server.params))
    before = fa.client_states(engine, state)
    assert np.asarray(before.dispatched).tolist() == [False] * 4
    chex.assert_trees_all_close(before.rows, first, rtol=1e-6)
    state, _ = engine.rounds(state, data, all_dispatches(toy.data), 3)
    after = fa.client_states(engine, state)
    assert np.asarray(after.dispatched).tolist() == [True, True, True, False]
    chex.assert_trees_all_close(after.rows, moved(first, [2, 3, 1, 0]), rtol=1e-6)


@pytest.mark.all
@by_place
def test_rows_that_are_taken_out_and_given_go_on(place):
    """Two halves of a run equal the whole one, though the second numbers its dispatches from 0."""
    toy, engine = small_network(), engine_of(place)
    data, dispatches = engine.put_data(toy.data), all_dispatches(toy.data)
    state, _ = engine.rounds(engine.init(SEED, POPULATION), data, dispatches)
    whole = fa.client_states(engine, state)
    half, _ = engine.rounds(engine.init(SEED, POPULATION), data, dispatches, 2)
    taken = fa.client_states(engine, half)
    start = engine.init(SEED, POPULATION, clients=taken)
    chex.assert_trees_all_equal(fa.client_states(engine, start), taken)
    rest = jax.tree.map(lambda leaf: np.roll(leaf, -2, axis=0), dispatches)
    rest = rest._replace(number=np.zeros_like(rest.number))
    end, _ = engine.rounds(start, data, rest, 2)
    chex.assert_trees_all_equal(fa.client_states(engine, end), whole)
    chex.assert_trees_all_equal(fa.client_states(engine, end).dispatched.tolist(), [True] * 4)


def test_given_rows_are_copied_and_replace_the_initial_ones():
    toy = small_network()
    rows = jax.tree.map(lambda leaf: np.full((4, *leaf.shape), 7.0, leaf.dtype), toy_params(toy))
    ends = []
    for place, kind in (("device", dict), ("host", HostClientState), ("disk", DiskClientState)):
        engine = engine_of(place)
        state = engine.init(SEED, POPULATION, clients=fa.ClientStates(rows))
        state, _ = engine.rounds(state, toy.data, all_dispatches(toy.data), 3)
        ends.append(fa.client_states(engine, state))
        assert type(state.clients) is kind
    expected = moved(rows, [2, 3, 1, 0])
    for end in ends:
        chex.assert_trees_all_equal(end.rows, expected)
        assert np.asarray(end.dispatched).all()
    assert all((leaf == 7).all() for leaf in jax.tree.leaves(rows))


def toy_params(toy):
    return jax.eval_shape(toy.problem.init, jax.eval_shape(jax.random.key, 0)).params


@pytest.mark.all
def test_on_the_virtual_clock(tmp_path):
    """Client 2 is too slow to arrive, so no dispatch of it is trained. A checkpoint knows it."""
    toy = quadratics([[1.0], [2.0], [0.5]], [[1.0], [-1.0], [3.0]])
    base = Case("fedbuff", {}).build(toy.problem, LOCAL)

    def client_update(broadcast, row, data, dispatch, key):
        _, update, report = base.client_update(broadcast, (), data, dispatch, key)
        return {"x": row["x"] + 1.0}, update, report

    algorithm = base._replace(client_update=client_update, client_init=random_rows)
    executor = fa.make_executor(algorithm, slots=2)
    system, planner = FixedSystem([1.0, 2.0, 50.0]), planners.make("buffered:size=2,steps=1")
    result = fa.simulate_async(
        executor,
        toy.data,
        planner,
        lambda seed, **transfer: system,
        seconds=6.0,
        evaluations=1,
        seed=SEED,
        checkpoints=tmp_path,
    )
    states = fa.client_states(executor, result.state)
    assert states.dispatched.tolist() == [True, True, False]
    trained = np.bincount(result.plan.client[result.plan.dispatch], minlength=3)
    keys = [client_key(SEED, jnp.int32(client)) for client in range(3)]
    first = [float(random_rows({"x": jnp.float32(0.5)}, key)["x"]) for key in keys]
    np.testing.assert_allclose(states.rows["x"], first + trained, rtol=1e-6)
    assert trained[0] > trained[1] > 0
    loaded, _ = fa.load_state(tmp_path, executor.init(SEED, fa.Population(3, 3, 3)))
    chex.assert_trees_all_equal(fa.client_states(executor, loaded), states)


def test_wrong_rows():
    toy, engine = small_network(), engine_of("device")
    rows = fa.client_states(engine, engine.init(SEED, POPULATION)).rows
    short = jax.tree.map(lambda leaf: leaf[:3], rows)
    for given, message in (
        (fa.ClientStates({"x": np.zeros(4)}), r"the rows are x float64\[4\], but a row of this"),
        (fa.ClientStates(short), r"one row for each of the 4 clients"),
        (fa.ClientStates(rows, np.ones(3, bool)), r"dispatched has shape \[3\]; give one bool"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.init(SEED, POPULATION, clients=given)
    state = engine.init(SEED, POPULATION)._replace(dispatched=())
    with pytest.raises(ValueError, match=r"state is of 0 clients, but the data have 4; give"):
        engine.round(state, toy.data, one_round(all_dispatches(toy.data), 0))
    with pytest.raises(TypeError, match=r"give ClientStates\(rows\)"):
        engine.init(SEED, POPULATION, clients=rows)


def test_rows_that_are_not_finite_are_given_where_such_updates_are_kept():
    """Also where they are, only rows of clients that have been dispatched are read."""
    toy = small_network()
    rows = jax.tree.map(lambda leaf: np.full((4, *leaf.shape), np.nan), toy_params(toy))
    marks = np.array([False, True, False, False])
    given, unread = fa.ClientStates(rows, marks), fa.ClientStates(rows, marks & False)
    keeping = fa.make_engine(engine_of("device").algorithm, non_finite="keep")
    state = keeping.init(SEED, POPULATION, clients=given)
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(state.clients))
    engine = engine_of("device")
    with pytest.raises(
        ValueError, match=r"of client 1 \(and 0 others\) are not finite; give finite"
    ):
        engine.init(SEED, POPULATION, clients=given)
    state = engine.init(SEED, POPULATION, clients=unread)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(fa.client_states(engine, state)))


def test_an_algorithm_without_client_state():
    """It has no rows, and its state holds nothing for them."""
    toy = small_network()
    engine = fa.make_engine(Case("fedavg", {}).build(toy.problem, LOCAL))
    state = engine.init(SEED, POPULATION)
    assert (state.clients, state.origin, state.dispatched) == ((), (), ())
    with pytest.raises(ValueError, match="the clients of this algorithm keep no state"):
        fa.client_states(engine, state)
    with pytest.raises(ValueError, match="keep no state; leave clients out"):
        engine.init(SEED, POPULATION, clients=fa.ClientStates(()))


def test_a_hundred_thousand_clients_with_state_on_the_host():
    """All rows would take 8 GB; the device holds the cohort's, and the host only sampled ones."""
    width, num_clients, cohort_size = 20_000, 100_000, 50
    problem = fa.Problem(
        lambda key: fa.Model(jnp.zeros(width)),
        lambda model, batch, key, training: (model.params[batch["x"]], ()),
        lambda outputs, batch: (outputs - 1.0) ** 2,
    )
    examples = {"x": np.arange(num_clients, dtype=np.int32) % width}
    clients = np.arange(num_clients + 1, dtype=np.int32)
    data = fa.federate(examples, fa.Partition(clients[:-1], clients))
    local = fa.Local(batch_size=1, learning_rate=0.1, steps=1)
    engine = fa.make_engine(fa.algorithms.scaffold(problem, local), 25, client_state="host")
    before = sum(array.nbytes for array in jax.live_arrays())
    state, peak = engine.init(0, fa.Population(num_clients, cohort_size, num_clients)), 0
    dispatches = Cohorts(data.counts(), local, cohort_size=cohort_size, seed=0).dispatches(4)
    for index in range(4):
        state, _ = engine.round(state, data, one_round(dispatches, index))
        peak = max(peak, sum(array.nbytes for array in jax.live_arrays()) - before)
    assert peak < 8 * width * 4 + 2**20  # the models, not 50 rows, and far below 2**30
    assert len(state.clients) == len(np.unique(dispatches.client)) <= 4 * cohort_size
    assert all(row.shape == (width,) and row.base is None for row in state.clients.values())
