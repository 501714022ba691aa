"""Every algorithm in all layouts, and one of each kind in other settings, against naive rounds."""

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
    Toy,
    by_kind,
    dispatches_of,
    one_round,
    small_network,
    stored,
    with_statistics,
)
from jax.sharding import PartitionSpec
from naive_rounds import After, Naive
from same_runs import host
from wrapper_helpers import later

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core.options import options
from fedjax_algos.core.randomness import client_key
from fedjax_algos.engine.non_finite import select
from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.state import HostClientState
from fedjax_algos.models.outputs import Outputs

pytestmark = pytest.mark.usefixtures("x64")

KINDS = [param.values[0] for param in by_kind() if not param.marks]
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=4, batches="persistent")
FULL = LOCAL._replace(batches="full")
POPULATION = fa.Population(4, 3, 17)
with jax.enable_x64(True):
    DATA = small_network().data
STEPS = (3, 1, 4, 2)  # batches of 3 from 5, 1, 8 and 3 examples
# four clients are dispatched in each round, of which three answer
SETS = [(3, 0, 1, 2), (3, 0, 2, 1), (0, 3, 1, 2), (1, 0, 3, 2), (1, 2, 3, 0)]
ARRIVES = np.arange(4) != np.array([0, 1, 2, 3, 0])[:, None]
FIRST, EMPTY = 3, 4  # the client that fails first, and the id of an empty slot


def of(names, quick=()):
    """Kinds of algorithms by the names of their first ones; all other cases are nightly."""
    first = {case.name: case for case in KINDS}
    chosen = [first[name] for name in names.split()]
    rest = [pytest.param(c, marks=pytest.mark.nightly) for c in CASES if c not in chosen]
    tier = [pytest.param(c, marks=() if c.name in quick else pytest.mark.all) for c in chosen]
    return pytest.mark.parametrize("case", tier + rest, ids=str)


@functools.cache
def tiny():
    """Two numbers are learned; four clients have 5, 1, 8 and 3 examples."""
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=n), "y": rng.normal(size=n)} for n in (5, 1, 8, 3)]

    def init(key):
        b, out = jax.random.normal(key, (2,), float)
        return fa.Model({"hidden": {"b": b}, "out": out})

    def apply(model, batch, key, training):
        features = jnp.stack([batch["x"] * model.params["out"], batch["x"]], 1)
        shifted = jnp.tanh(features + model.params["hidden"]["b"])
        return Outputs(shifted.sum(1), shifted), ()

    problem = fa.Problem(init, apply, lambda outputs, batch: (outputs.logits - batch["y"]) ** 2)
    return Toy(problem, stored(clients), clients)


def answering(data, local):
    """The dispatches of five rounds of three clients, those that answer, [5, 3]."""
    drawn = dispatches_of(data, local, SETS, STEPS)
    return jax.tree.map(lambda leaf: leaf[ARRIVES].reshape(-1, 3), drawn)


def sums(metrics):
    return jax.tree.map(lambda *leaves: sum(map(np.asarray, leaves)), *metrics)


class Reference(NamedTuple):
    algorithm: fa.Algorithm
    history: list[After]
    loss: Any  # of all rounds
    keeps_rows: bool


@functools.cache
def _reference(number, small):
    problem, given, local = with_statistics(small_network().problem), DATA, LOCAL
    if small:
        problem, given, local = tiny().problem, tiny().data, FULL
    algorithm = CASES[number].build(problem, local)
    history = Naive(algorithm).rounds(given, answering(given, local), POPULATION)
    loss = sums([after.loss for after in history])
    return Reference(algorithm, history, loss, bool(jax.tree.leaves(history[0].clients)))


def reference_of(case, small=False):
    return _reference(CASES.index(case), small)  # cases have no hash


def layout_of(case, turn):
    return LAYOUTS[(CASES.index(case) + turn) % 3]


assert_close = functools.partial(chex.assert_trees_all_close, rtol=1e-11, atol=1e-11)


def assert_agrees(expected, state, metrics):
    """The last state, whose rows are those of all clients, and the sums of the metrics."""
    end = expected.history[-1]
    assert_close(host((state.server, state.statistics)), (end.server, end.statistics))
    if expected.keeps_rows:
        assert_close(host(state.clients), end.clients)
    assert_close(host(metrics["train_loss"]), expected.loss)


def layouts():
    """Of one kind each, the second layout is quick."""
    of_layouts = (True, 2, None), (False, "vmapped", None), (False, "sequential", 2)
    for quick, layout, devices in of_layouts:
        for param in by_kind(quick=quick):
            marks = () if devices and param.values[0] == Case("scaffold", {}) else param.marks
            yield pytest.param(*param.values, layout, devices, marks=marks)


@pytest.mark.parametrize(("case", "layout", "devices"), [*layouts()], ids=str)
def test_layouts(case, layout, devices):
    """Rounds one by one; on two devices, each has the examples of its own clients."""
    expected = reference_of(case, small=True)
    # `centralised` needs the examples of all clients on every device
    spread = devices and not expected.algorithm.traits.pools_examples
    options = {"examples": "sharded"} if spread else {}
    engine = fa.make_engine(expected.algorithm, layout, devices=devices, **options)
    state, given, metrics = engine.init(0, POPULATION), engine.put_data(tiny().data), []
    dispatches = answering(tiny().data, FULL)
    for index, after in enumerate(expected.history):
        state, found = engine.round(state, given, one_round(dispatches, index))
        assert_close(state.server.params, after.server.params)
        metrics.append(found)
    assert_agrees(expected, state, sums(metrics))


def scanned(algorithm, layout):
    """The last state of a scan of pure rounds."""
    round_fn = fa.pure_round(algorithm, layout)

    @jax.jit
    def scan(data, dispatches):
        step = lambda state, of_round: round_fn(state, data, of_round)  # noqa: E731
        return jax.lax.scan(step, round_fn.init(0, POPULATION), dispatches)[0]

    return scan(DATA, answering(DATA, LOCAL))


@pytest.mark.parametrize("case", {case.name: case for case in CASES}.values(), ids=str)
def test_whole_numbers_are_as_good_as_floats(case):
    """Options of 0 and 1 give states the types that 0.0 and 1.0 give them."""
    floats = [o for o in options(algorithms[case.name]).values() if o.kind is float]
    numbers = {o.name: o.range.holds(1) for o in floats if o.range.holds(0) or o.range.holds(1)}

    def begin(kind):
        settings = case.hyperparameters | {name: kind(one) for name, one in numbers.items()}
        algorithm = algorithms[case.name](small_network().problem, LOCAL, **settings)
        params = algorithm.problem.init(key := jax.random.key(0)).params
        return algorithm.init(params, POPULATION), algorithm.client_init(params, key)

    whole, real = (jax.eval_shape(functools.partial(begin, kind)) for kind in (int, float))
    assert whole == real
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(whole))


SHARED = {"hidden/w": PartitionSpec(None, "model"), "out": PartitionSpec("model")}


@of("mime scaffold fedlga ditto")
def test_two_devices_for_each_of_two_clients(case):
    """All rounds in one program; there are several slots on each device, some of them empty."""
    expected = reference_of(case)
    options = {"devices": 4, "devices_per_client": 2, "model_sharding": SHARED}
    if not expected.algorithm.traits.pools_examples:
        options["examples"] = "sharded"
    engine = fa.make_engine(expected.algorithm, layout_of(case, 1), **options)
    given = engine.init(0, POPULATION), engine.put_data(DATA), answering(DATA, LOCAL)
    state, metrics = engine.rounds(*given)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(state.server.params))
    assert_agrees(expected, state, metrics)
    specs = [leaf.sharding.spec for leaf in jax.tree.leaves(state.server.params)]
    assert [*map(tuple, specs)] == [(), (None, "model"), ("model",)]


@of("fedavg scaffold ditto ifca")
@pytest.mark.usefixtures("optimised")
def test_rounds_one_by_one(case, tmp_path):
    """With the clients' rows on the host and on disk, or by a scan, which give the same bits.

    Rounds after the first compile nothing, and the state keeps its shapes.
    """
    expected, ends = reference_of(case), []
    for place in ("host", fa.RowsOnDisk(tmp_path)) if expected.keeps_rows else ("device",):
        engine = fa.make_engine(expected.algorithm, layout_of(case, 0), client_state=place)
        state, compiled, metrics = engine.init(0, POPULATION), [], []
        shapes = jax.tree.map(jax.typeof, state._replace(clients=()))
        for index, after in enumerate(expected.history):
            dispatches = one_round(answering(DATA, LOCAL), index)
            with Compilations() as compilations:
                state, found = engine.round(state, DATA, dispatches)
            metrics.append(found)
            compiled.append(compilations.count)
            assert_close(state.server.params, after.server.params)
            if expected.keeps_rows and index == 0:
                assert sorted(state.clients) == [0, 1, 2]  # client 3 has not been sampled yet
        assert compiled[0] >= 2  # the cohort and the server update: so the counter works
        assert not any(compiled[1:])
        assert jax.tree.map(jax.typeof, state._replace(clients=())) == shapes
        rows = state.clients
        if expected.keeps_rows:
            assert type(rows) is (HostClientState if place == "host" else DiskClientState)
            rows = jax.tree.map(lambda *leaves: np.stack(leaves), *[rows[i] for i in range(4)])
        assert_agrees(expected, state._replace(clients=rows), sums(metrics))
        ends.append(host(state._replace(clients=rows)))
    chex.assert_trees_all_equal(*ends, ends[0])
    scan = scanned(expected.algorithm, layout_of(case, 0))
    chex.assert_trees_all_equal(host(scan), ends[0])


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


@pytest.mark.parametrize("non_finite", ["exclude", *later("keep", mark=pytest.mark.nightly)])
@of(" ".join(case.name for case in KINDS), quick=("scaffold",))
def test_clients_that_do_not_answer(case, non_finite, any_rate):
    """Those that fail, or compute numbers that are not finite, as if they were not in the cohort.

    What those that fail compute is not finite here, and they are not counted as excluded. A run
    that is saved and goes on is in the same program, and so is a cohort of one.
    """
    expected = reference_of(case)
    algorithm = spoiled_by_nan(expected.algorithm)
    engine = fa.make_engine(algorithm, layout_of(case, 2), non_finite=non_finite)
    start = host(engine.init(0, POPULATION))
    drawn = dispatches_of(DATA, LOCAL, SETS, STEPS)
    usual = drawn._replace(arrives=np.ones_like(ARRIVES))

    def rounds(dispatches, state=None, number=None):
        state = jax.tree.map(jnp.array, start) if state is None else state
        return engine.rounds(state, DATA, dispatches, number)

    # by their few steps they are in the last chunk, as empty slots are, so that sums have its bits
    poisoned = usual._replace(learning_rate=np.where(ARRIVES, usual.learning_rate, np.nan))
    steps = np.where(ARRIVES, usual.num_steps, 1)
    failing = poisoned._replace(arrives=ARRIVES, num_steps=steps)
    state, metrics = rounds(failing)
    chex.assert_tree_all_finite((state, metrics))
    assert_agrees(expected, state, metrics)

    # in the same program: empty slots, and a run that is saved after two rounds and goes on
    absent = np.where(ARRIVES, usual.client, EMPTY)
    empty = failing._replace(client=absent, num_steps=failing.num_steps * ARRIVES)
    chex.assert_trees_all_equal((state, metrics), rounds(empty))
    half, _ = rounds(failing, number=2)
    saved = flax.serialization.to_bytes(half)
    half = jax.device_put(flax.serialization.from_bytes(start, saved))
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
    state, metrics = rounds(poisoned)
    others, measured = rounds(usual._replace(client=absent))
    chex.assert_trees_all_equal(
        (state._replace(excluded=()), metrics), (others._replace(excluded=()), measured)
    )
    assert [int(leaf) for leaf in state.excluded] == [5 * uploads, 0, FIRST]
    assert int(others.excluded.number) == 0
    first, _ = rounds(poisoned, number=1)
    row = algorithm.client_init(first.origin, client_key(first.seed, np.int32(FIRST)))
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[FIRST], first.clients), row)
