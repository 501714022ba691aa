"""Every registered algorithm: each property is compared with one history, its `reference`.

A reference is a scan of pure rounds on one device. The layouts change from test to test, so that
each algorithm runs in all of them, and each test has all of them for some algorithms.
"""

import functools
from typing import Any, NamedTuple

import chex
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    CASES,
    LAYOUTS,
    Case,
    Compilations,
    dispatches_of,
    one_round,
    small_network,
    stored,
    with_statistics,
)
from jax.sharding import PartitionSpec
from same_runs import host

import fedjax_algos as fa
from fedjax_algos.core.randomness import client_key
from fedjax_algos.engine.non_finite import select
from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.state import HostClientState
from fedjax_algos.models.outputs import Outputs

pytestmark = pytest.mark.usefixtures("x64")

ASYNCHRONOUS = {"fedasync", "fedat", "fedbuff", "fedcompass"}
WITH_ROWS = {"scaffold", "feddyn", "adabest", "localghbm", "fedhbm"}
WITH_ROWS |= {"ditto", "apfl", "pfedme", "ifca", "fedrep", "fedbn"}
WITHOUT_MEAN = {"fedlga": "compares the updates", "ifca": "choose what they train"}
LAST = {case.name: case for case in CASES}.values()
# those with rows first and the other settings last: pytest groups tests by their place in a list
ONE_EACH = sorted(LAST, key=lambda case: case.name not in WITH_ROWS)
ALL = [*ONE_EACH, *(case for case in CASES if case not in ONE_EACH)]

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=4)
POPULATION = fa.Population(4, 3, 17)
STEPS = (3, 1, 4, 2)  # batches of 3 from 5, 1, 8 and 3 examples
# four clients are dispatched in each round, of which three answer
SETS = [(3, 0, 1, 2), (3, 0, 2, 1), (0, 3, 1, 2), (1, 0, 3, 2), (1, 2, 3, 0)]
ARRIVES = np.arange(4) != np.array([0, 1, 2, 3, 0])[:, None]
FIRST, EMPTY = 3, 4  # the client that fails first, and the id of an empty slot


class Reference(NamedTuple):
    case: Case
    number: int
    algorithm: fa.Algorithm
    start: fa.FederatedState
    end: fa.FederatedState
    params: Any  # after each round
    metrics: Any  # of all rounds

    def layout(self, turn):
        return LAYOUTS[(self.number + turn) % 3]

    def own_start(self, **changes):
        """A copy, because rounds consume it."""
        return jax.tree.map(jnp.array, self.start)._replace(**changes)


@functools.cache
def data():
    return small_network().data


def drawn():
    """The dispatches of five rounds, [5, 4]."""
    return dispatches_of(data(), LOCAL, SETS, STEPS)


def alone():
    """Those of the clients that answer, [5, 3]."""
    return jax.tree.map(lambda leaf: leaf[ARRIVES].reshape(-1, 3), drawn())


def scanned(algorithm, layout):
    """The states before and after the rounds, the params after each, and the sums of metrics."""
    round_fn = fa.pure_round(algorithm, layout)

    @jax.jit
    def run(data, dispatches):
        def step(state, of_round):
            state, metrics = round_fn(state, data, of_round)
            return state, (state.server.params, metrics)

        start = round_fn.init(0, POPULATION)
        end, (params, metrics) = jax.lax.scan(step, start, dispatches)
        return start, end, params, jax.tree.map(lambda leaf: leaf.sum(0), metrics)

    return host(run(data(), alone()))


@pytest.fixture(scope="module")
def reference(request, x64):
    case = request.param
    algorithm = case.build(with_statistics(small_network().problem), LOCAL)
    number = ALL.index(case)
    return Reference(case, number, algorithm, *scanned(algorithm, LAYOUTS[number % 3]))


def over(cases):
    return pytest.mark.parametrize("reference", cases, indirect=True, ids=str, scope="module")


def assert_close(found, expected, rtol=1e-11):
    chex.assert_trees_all_close(found, expected, rtol=rtol, atol=1e-11)


SHARED = {"hidden/w": PartitionSpec(None, "model"), "out": PartitionSpec("model")}


@pytest.mark.all
@over(ALL)
def test_two_or_four_devices(reference):
    """Rounds in one program, each device with the examples of its own clients or with all.

    There are several slots on each device, some of them empty. Of four devices, two share a client.
    """
    # `centralised` needs the examples of all clients on every device
    whole = reference.number >= len(ONE_EACH) or reference.case.name == "centralised"
    examples = "replicated" if whole else "sharded"
    devices = {"devices": 4, "devices_per_client": 2, "model_sharding": SHARED}
    if reference.number >= len(ONE_EACH):
        devices = {"devices": 2}
    layout = reference.layout(1)
    engine = fa.make_engine(reference.algorithm, layout, examples=examples, **devices)
    start = engine.init(0, POPULATION)
    state, metrics = engine.rounds(start, engine.put_data(data()), alone())
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(state.server.params))
    assert_close(host((state, metrics)), (reference.end, reference.metrics))
    if len(devices) > 1:
        specs = [leaf.sharding.spec for leaf in jax.tree.leaves(state.server.params)]
        assert [*map(tuple, specs)] == [(), (None, "model"), ("model",)]


@pytest.mark.all
@over(ONE_EACH)
def test_rounds_one_by_one(reference, tmp_path):
    """The bits of the reference, with the clients' rows on the host and on disk.

    Rounds after the first compile nothing, and the state keeps its shapes.
    """
    kept = reference.case.name in WITH_ROWS
    for place in ("host", fa.RowsOnDisk(tmp_path)) if kept else ("device",):
        engine = fa.make_engine(reference.algorithm, reference.layout(0), client_state=place)
        clients = engine.shapes(POPULATION).clients if kept else ()
        state, compiled = reference.own_start(clients=clients), []
        shapes = jax.tree.map(jax.typeof, state._replace(clients=()))
        for index in range(len(SETS)):
            with Compilations() as compilations:
                state, _ = engine.round(state, data(), one_round(alone(), index))
            compiled.append(compilations.count)
            params = jax.tree.map(lambda leaf, i=index: leaf[i], reference.params)
            chex.assert_trees_all_equal(state.server.params, params)
            if kept and index == 0:
                assert sorted(state.clients) == [0, 1, 2]  # client 3 has not been sampled yet
        assert compiled[0] >= 2  # the cohort and the server update: so the counter works
        assert not any(compiled[1:])
        assert jax.tree.map(jax.typeof, state._replace(clients=())) == shapes
        chex.assert_trees_all_equal(
            host(state._replace(clients=())), reference.end._replace(clients=())
        )
        if kept:
            assert type(state.clients) is (HostClientState if place == "host" else DiskClientState)
            for client in range(4):
                row = jax.tree.map(lambda leaf, i=client: leaf[i], reference.end.clients)
                chex.assert_trees_all_equal(state.clients[client], row)


@pytest.mark.all
@over(ALL)
def test_the_mean_gives_the_results_of_the_algorithm(reference):
    """To rounding, with unequal numbers of examples and steps; or it refuses, with the reason."""
    if reference.case.name in WITHOUT_MEAN:
        with pytest.raises(ValueError, match=WITHOUT_MEAN[reference.case.name]):
            fa.wrappers.mean(reference.algorithm)
        return
    _, end, *_ = scanned(fa.wrappers.mean(reference.algorithm), reference.layout(0))
    assert_close(end, reference.end, rtol=1e-9)


def spoiled_by_nan(algorithm):
    """In its prelude a rate of NaN spoils the update, as it does in local steps."""
    prelude = algorithm.prelude
    if prelude is None:
        return algorithm

    def client_update(broadcast, data, dispatch, key):
        update = prelude.client_update(broadcast, data, dispatch, key)
        nan = jax.tree.map(lambda leaf: leaf * np.nan, update)
        return select(dispatch.learning_rate > 0, update, nan)

    return algorithm._replace(prelude=prelude._replace(client_update=client_update))


@pytest.mark.all
@over(ONE_EACH)
def test_clients_that_do_not_answer(reference, monkeypatch):
    """Those that fail, or compute numbers that are not finite, as if they were not in the cohort.

    What those that fail compute is not finite here, and they are not counted as excluded. A run
    that is saved and goes on is in the same program, and so is a cohort of one.
    """
    # lets rates of NaN through, which spoil a client's update
    monkeypatch.setattr("fedjax_algos.engine.checks.check_dispatches", lambda *arguments: None)
    for non_finite in ("exclude", "keep")[: 1 + (reference.number % 5 == 0)]:
        check_holes(reference, non_finite)


def check_holes(reference, non_finite):
    algorithm = spoiled_by_nan(reference.algorithm)
    engine = fa.make_engine(algorithm, reference.layout(2), non_finite=non_finite)
    excluded = () if non_finite == "keep" else reference.start.excluded
    usual = drawn()._replace(arrives=np.ones_like(ARRIVES))

    def rounds(dispatches, state=None, number=None):
        state = reference.own_start(excluded=excluded) if state is None else state
        return engine.rounds(state, data(), dispatches, number)

    def spoiled(which):
        return np.where(which, np.nan, usual.learning_rate)

    # by their few steps they are in the last chunk, as empty slots are, so that sums have its bits
    steps = np.where(ARRIVES, usual.num_steps, 1)
    failing = usual._replace(learning_rate=spoiled(~ARRIVES), arrives=ARRIVES, num_steps=steps)
    state, metrics = rounds(failing)
    chex.assert_tree_all_finite((state, metrics))
    assert_close(
        host((state._replace(excluded=()), metrics)),
        (reference.end._replace(excluded=()), reference.metrics),
    )

    # in the same program: empty slots, and a run that is saved after two rounds and goes on
    absent = np.where(ARRIVES, usual.client, EMPTY)
    empty = failing._replace(client=absent, num_steps=failing.num_steps * ARRIVES)
    chex.assert_trees_all_equal((state, metrics), rounds(empty))
    half, _ = rounds(failing, number=2)
    saved = flax.serialization.to_bytes(half)
    like = reference.own_start(excluded=excluded)
    half = jax.device_put(flax.serialization.from_bytes(like, saved))
    rest = jax.tree.map(lambda leaf: np.roll(leaf, -2, axis=0), failing)
    chex.assert_trees_all_equal(rounds(rest, half, 3)[0], state)

    before, nobody = host(state), failing._replace(arrives=np.zeros_like(ARRIVES))
    state, metrics = rounds(nobody, state)
    chex.assert_trees_all_equal(host(state), before)
    assert all(float(mean.weight) == 0 for mean in metrics.values())
    # a cohort of one
    state, _ = rounds(failing._replace(arrives=ARRIVES & (usual.client == 2)), state)
    chex.assert_tree_all_finite(state)
    moved = jax.tree.map(lambda a, b: (a != b).any(), state.server.params, before.server.params)
    assert any(jax.tree.leaves(moved))
    if non_finite == "keep":
        return

    uploads = 1 + (algorithm.prelude is not None)
    poisoned = usual._replace(learning_rate=spoiled(~ARRIVES))
    state, metrics = rounds(poisoned)
    expected, measured = rounds(usual._replace(client=absent))
    chex.assert_trees_all_equal(
        (state._replace(excluded=()), metrics), (expected._replace(excluded=()), measured)
    )
    assert [int(leaf) for leaf in state.excluded] == [5 * uploads, 0, FIRST]
    assert int(expected.excluded.number) == 0
    first, _ = rounds(poisoned, number=1)
    row = algorithm.client_init(first.origin, client_key(first.seed, np.int32(FIRST)))
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[FIRST], first.clients), row)

    before = host(expected[:2])
    none_finite = usual._replace(learning_rate=spoiled(True))
    nothing_left, metrics = rounds(none_finite, expected, 1)
    chex.assert_trees_all_equal(host(nothing_left[:2]), before)
    assert all(float(mean.weight) == 0 for mean in metrics.values())
    assert [int(leaf) for leaf in nothing_left.excluded] == [4 * uploads, 0, 0]


def test_the_list_of_stateful_algorithms_is_complete():
    params = small_network().problem.init(jax.random.key(0)).params
    key = jax.random.key(0)
    stateful = {
        case.name
        for case in CASES
        if jax.tree.leaves(
            jax.eval_shape(case.build(small_network().problem, LOCAL).client_init, params, key)
        )
    }
    assert stateful == WITH_ROWS


@pytest.mark.all
@pytest.mark.parametrize("name", sorted(ASYNCHRONOUS))
def test_flat_params_and_clients_smaller_than_a_batch(name):
    """The params are one array; test_pure_round.py has such params for the other algorithms."""
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)} for n in (1, 6, 3)]

    def apply(model, batch, key, training):
        products = batch["x"] * model.params[None]
        return Outputs(products.sum(1), products), ()

    def loss(outputs, batch):
        return (outputs.logits - batch["y"]) ** 2

    problem = fa.Problem(lambda key: fa.Model(jnp.ones(3)), apply, loss)
    local = LOCAL._replace(batch_size=4)
    engine = fa.make_engine(fa.algorithms.algorithms[name](problem, local), "sequential")
    flat = stored(clients)
    start = engine.init(0, fa.Population(3, 1, 10))
    state, _ = engine.rounds(start, flat, dispatches_of(flat, local, [(1,), (0,), (2,), (1,)]))
    assert state.server.params.shape == (3,)
    assert np.isfinite(state.server.params).all()
    assert (np.asarray(state.server.params) != 1).all()
