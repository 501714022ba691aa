"""Every registered algorithm with unusual params, small clients, a cohort of one, and a pause."""

import chex
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, fixed, one_round, small_network, stored

import fedjax_algos as fa
from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.state import HostClientState
from fedjax_algos.models.outputs import Outputs
from fedjax_algos.participation import Cohorts

ONE_EACH = list({case.name: case for case in CASES}.values())  # the last of each name
LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2)
NAMES = [
    "scaffold",
    "feddyn",
    "adabest",
    "localghbm",
    "fedhbm",
    "ditto",
    "apfl",
    "pfedme",
    "ifca",
    "fedrep",
    "fedbn",
]
WITH_ROWS = {"scaffold", "feddyn", "adabest", "localghbm", "fedhbm"}
WITH_ROWS |= {"ditto", "apfl", "pfedme", "ifca", "fedrep", "fedbn"}
STATEFUL = [case for case in ONE_EACH if case.name in WITH_ROWS]
DIVIDING = ("fedrep", "fedbn")  # the params in two parts


def flat_problem():
    """The params are one array; two of the three clients have fewer examples than a batch."""
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)} for n in (1, 6, 3)]

    def apply(model, batch, key, training):
        del key, training
        products = batch["x"] * model.params[None]
        return Outputs(products.sum(1), products), ()

    def loss(outputs, batch):
        return (outputs.logits - batch["y"]) ** 2

    return fa.Problem(lambda key: fa.Model(jnp.ones(3)), apply, loss), stored(clients)


def advance(engine, data, state, dispatches, rounds):
    for index in rounds:
        state, _ = engine.round(state, data, one_round(dispatches, index))
    return state


def schedule(data, cohorts, local=LOCAL):
    return Cohorts(
        data.counts(), local, cohort_size=len(cohorts[0]), seed=0, sampler=fixed(cohorts)
    ).dispatches(len(cohorts))


@pytest.mark.sampled
@pytest.mark.parametrize("case", [c for c in ONE_EACH if c.name not in DIVIDING], ids=str)
def test_flat_params_a_cohort_of_one_and_a_pause(case):
    """Four rounds of one client each, with the state stored and restored after the second."""
    problem, data = flat_problem()
    engine = fa.make_engine(case.build(problem, LOCAL), "sequential")
    dispatches = schedule(data, [(1,), (0,), (2,), (1,)])
    population = fa.Population(3, 1, 10)
    state = advance(engine, data, engine.init(0, population), dispatches, [0, 1])
    stored_state = flax.serialization.to_bytes(state)
    state = advance(engine, data, state, dispatches, [2, 3])
    again = flax.serialization.from_bytes(engine.init(5, population), stored_state)
    again = advance(engine, data, jax.device_put(again), dispatches, [2, 3])
    assert state.server.params.shape == (3,)
    assert np.isfinite(state.server.params).all()
    assert (np.asarray(state.server.params) != 1).all()
    chex.assert_trees_all_equal(state, again)


@pytest.mark.sampled
@pytest.mark.parametrize("case", STATEFUL, ids=str)
def test_client_state_on_the_host_and_on_disk_gives_the_same_bits(case, tmp_path):
    toy = small_network()
    algorithm = case.build(toy.problem, LOCAL)
    dispatches = schedule(toy.data, [(0, 1), (2, 1), (1, 0)])
    ends = []
    for place in ("device", "host", fa.RowsOnDisk(tmp_path)):
        engine = fa.make_engine(algorithm, 2, client_state=place)
        state = engine.init(0, fa.Population(4, 2, 17))
        ends.append(advance(engine, toy.data, state, dispatches, range(3)))
    on_device, *others = ends
    assert [type(state.clients) for state in others] == [HostClientState, DiskClientState]
    for state in others:
        chex.assert_trees_all_equal(on_device.server, state.server)
        assert sorted(state.clients) == [0, 1, 2]  # client 3 was never sampled
        for client, row in state.clients.items():
            expected = jax.tree.map(lambda leaf, c=client: leaf[c], on_device.clients)
            chex.assert_trees_all_equal(expected, row)


def test_the_list_of_stateful_algorithms_is_complete():
    toy = small_network()
    params = toy.problem.init(jax.random.key(0)).params
    stateful = {
        case.name
        for case in CASES
        if jax.tree.leaves(
            jax.eval_shape(case.build(toy.problem, LOCAL).client_init, params, jax.random.key(0))
        )
    }
    assert stateful == WITH_ROWS


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
