"""Several devices that compute a client together: what each holds, and the same results."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import small_network
from jax.sharding import PartitionSpec as P
from same_runs import host

import fedjax_algos as fa
from fedjax_algos import asynchrony
from fedjax_algos.algorithms import algorithms
from fedjax_algos.data.stored.stored_data import source_of
from fedjax_algos.engine.placed.devices import client_mesh, one_copy
from fedjax_algos.engine.placed.model_sharding import check_rules
from fedjax_algos.models import classifier, models, nnx_classifier
from fedjax_algos.participation import Cohorts

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
HALVES = {"hidden/w": P(None, "model"), "out": P("model")}
PAIRS = {"devices": 4, "devices_per_client": 2, "model_sharding": HALVES}
TEST = {"x": np.ones((5, 3)), "y": np.ones(5)}


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((64, 32), P("model")),
        ((32, 64), P(None, "model")),
        ((3, 63, 64), P(None, None, "model")),
        ((3, 4), P()),  # it has few entries
        ((33, 63), P()),
        ((), P()),
    ],
)
def test_large_arrays_are_divided_along_their_longest_axis(shape, spec):
    assert client_mesh(4, 2).spec("any", shape) == spec
    assert client_mesh(4).spec("any", shape) == P()


@pytest.mark.parametrize(
    ("path", "shape", "spec"),
    [
        ("server/params/hidden/w", (3, 4), P(None, "model")),
        ("server/ring/hidden/w", (7, 3, 4), P(None, None, "model")),
        ("server/optimizer_state/0/mu/out", (4,), P("model")),
        ("clients/out", (5,), P()),  # it cannot be divided
        ("out", (), P()),
        ("server/params/hidden/b", (4,), P()),
    ],
)
def test_rules_are_for_the_last_axes_of_all_that_is_like_a_param(path, shape, spec):
    rules = check_rules(small_network().problem, HALVES, 2)
    assert client_mesh(4, 2, rules).spec(path, shape) == spec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices_per_client": 0}, "devices_per_client=0 is out of range; give a whole number"),
        (
            {"devices": 4, "devices_per_client": 3},
            "4 devices of a process are no groups of",
        ),
        ({"model_sharding": HALVES}, "is for devices of one client; give devices_per_client=2"),
        (
            PAIRS | {"model_sharding": {"no": P()}},
            "'no' matches none of the params, such as",
        ),
        (
            PAIRS | {"model_sharding": {"out": "model"}},
            "'out' has 'model'; give a tree of",
        ),
        (PAIRS | {"model_sharding": {"out": P("data")}}, "names the axis 'data'; give 'model'"),
        (
            PAIRS | {"model_sharding": {"hidden": {"w": P("model", None)}}},
            r"'hidden/w' has P\('model', None\), but hidden/w has the shape \[3, 4\], whi",
        ),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        fa.make_engine(algorithms["fedavg"](small_network().problem, LOCAL), **options)


def run(algorithm, data=None, rounds=3, checkpoints=None, **options):
    """The last state and the rows, without the time."""
    engine = fa.make_engine(algorithm, **options)
    data = small_network().data if data is None else data
    given = {"cohort_size": 2, "rounds": rounds, "eval_every": 1, "seed": 1, "test": TEST}
    state, rows = fa.simulate(engine, data, checkpoints=checkpoints, **given)
    rows = [{n: v for n, v in row.items() if n != "wall_seconds"} for row in rows]
    clients = () if isinstance(state.dispatched, tuple) else fa.client_states(engine, state)
    return host((state.server, clients, rows))


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)


@pytest.mark.all
@pytest.mark.usefixtures("x64")
def test_rows_and_examples_in_all_places_and_a_run_in_two_parts(tmp_path):
    """SCAFFOLD and FedAdam on two pairs of devices, or one pair, and on one device."""
    counts = small_network().data.counts()
    rows = np.split(np.asarray(small_network().data.indices), np.cumsum(counts)[:-1])
    examples = jax.device_get(small_network().data.examples)
    stored = fa.data.StoredData(source_of(examples, fa.Partition.of(rows), list("abcd")))
    scaffold = algorithms["scaffold"](small_network().problem, LOCAL)
    expected = run(scaffold)
    pair = PAIRS | {"devices": 2}
    assert_same(run(scaffold, **pair), expected)
    assert_same(run(scaffold, stored, **PAIRS), expected)
    places = {"client_state": "host"}, {"client_state": fa.RowsOnDisk(tmp_path / "rows")}
    for place in (*places, {"examples": "sharded", "layout": 2}):
        assert_same(run(scaffold, **PAIRS | place), expected)
    begun, saved = run(scaffold, rounds=1, checkpoints=tmp_path / "run", **PAIRS), tmp_path / "run"
    assert len(begun[2]) == 2
    assert_same(run(scaffold, checkpoints=saved, **PAIRS), expected)
    adam = algorithms["fedadam"](small_network().problem, LOCAL)
    assert_same(run(adam, **PAIRS), run(adam))


@pytest.mark.all
@pytest.mark.usefixtures("x64")
def test_the_virtual_clock():
    ends = []
    algorithm = algorithms["fedbuff"](small_network().problem, LOCAL)
    for options in ({}, PAIRS, PAIRS | {"devices": 2}):
        executor = fa.make_executor(algorithm, **options)
        how = small_network().data, asynchrony.buffered(steps=2, size=2), asynchrony.simulated()
        result = fa.simulate_async(executor, *how, seconds=4.0, seed=1, evaluations=2, test=TEST)
        rows = [{n: v for n, v in row.items() if n != "wall_seconds"} for row in result.rows]
        ends.append(host((result.state.server, rows)))
    assert_same(ends[1], ends[0])
    assert_same(ends[2], ends[0])


def trained(algorithm, examples, **options):
    """An engine with the state after one round, and what the round was given."""
    data = fa.federate(examples, fa.Partition.of(np.split(np.arange(len(examples["y"])), 4)))
    engine = fa.make_engine(algorithm, **options)
    state = engine.init(0, fa.Population(4, 4, len(examples["y"])))
    cohorts = Cohorts(data.counts(), algorithm.local, cohort_size=4, seed=0)
    first = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
    memory = engine.memory(state, data, first)
    state, _ = engine.round(state, engine.put_data(data), first)
    return state, memory


def assert_divided(state):
    """Large params, and what is like them, are divided over pairs, and rows over clients, too."""
    for tree in (state.server, state.clients):
        for leaf in jax.tree.leaves(tree):
            held = [shard.data.size for shard in leaf.addressable_shards]
            rows = 4 if leaf.ndim and tree is state.clients else 1
            assert len(held) == 8
            assert set(held) == {leaf.size // rows // (2 if leaf.size // rows >= 1024 else 1)}


@pytest.mark.all
def test_rows_are_divided_over_clients_and_over_devices_of_each(optimised):
    """SCAFFOLD's controls after a round, of a layer with 64 x 32 params."""
    rng = np.random.default_rng(0)
    examples = {"x": rng.normal(size=(8, 64)), "y": rng.integers(0, 10, 8).astype(np.int32)}
    examples["x"] = examples["x"].astype(np.float32)
    algorithm = algorithms["scaffold"](models.make("mlp:hidden=32", (64,), 10), LOCAL)
    state, _ = trained(algorithm, examples, devices=8, devices_per_client=2)
    assert_divided(state)


@pytest.mark.all
def test_a_transformer_needs_little_more_than_half_of_the_memory(optimised):
    """The round is that of one device, up to rounding."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (64, 32, 32, 3)).astype(np.uint8)
    examples = {"x": x, "y": rng.integers(0, 10, 64).astype(np.int32)}
    problem = models.make("vit:patch_size=8,width=64,depth=1,heads=2", (32, 32, 3), 10)
    local = fa.Local(batch_size=16, learning_rate=0.1, steps=2)
    algorithm = algorithms["fedavg"](problem, local)
    alone, whole = trained(algorithm, examples)
    state, shared = trained(algorithm, examples, devices=8, devices_per_client=2)
    assert shared < 0.6 * whole
    assert_divided(state)
    found, expected = jax.device_get((state.server.params, alone.server.params))
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    copy = one_copy(state.server.params)
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(copy)} == {2}


class Linen(nn.Module):
    """Divided in two dense layers and between them, as Flax's pages show."""

    @nn.compact
    def __call__(self, x, training=False):
        normal = nn.initializers.lecun_normal()
        columns = nn.with_partitioning(normal, (None, "model"))
        x = fa.models.shard(nn.relu(nn.Dense(8, kernel_init=columns)(x)), None, "model")
        rows = nn.with_partitioning(normal, ("model", None))
        return nn.Dense(3, kernel_init=rows)(x)


class Nnx(nnx.Module):
    """The same first layer in NNX."""

    def __init__(self, rngs):
        columns = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
        self.first = nnx.Linear(6, 8, rngs=rngs, kernel_init=columns)
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(fa.models.shard(nnx.relu(self.first(x)), None, "model"))


def specs_of(kind):
    """The specs of Flax's own functions."""
    if kind == "linen":
        shapes = jax.eval_shape(Linen().init, jax.random.key(0), jnp.ones((1, 6)))
        return nn.get_partition_spec(shapes)["params"]
    with nnx.use_eager_sharding(False):
        params = nnx.eval_shape(lambda: nnx.state(Nnx(nnx.Rngs(0)), nnx.Param))
    return nnx.to_pure_dict(nnx.get_partition_spec(params))


@pytest.mark.all
@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_models_that_say_how_they_are_divided(kind):
    problem = classifier(Linen(), (6,)) if kind == "linen" else nnx_classifier(Nnx)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 24).astype(np.int32)
    examples = {"x": rng.normal(size=(24, 6)).astype(np.float32), "y": y}
    algorithm = algorithms["fedavg"](problem, fa.Local(3, 0.1, steps=2))
    alone, _ = trained(algorithm, examples)
    pairs = PAIRS | {"model_sharding": specs_of(kind)}
    state, _ = trained(algorithm, examples, **pairs)
    specs = {
        jax.tree_util.keystr(path, simple=True): tuple(leaf.sharding.spec)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.server.params)
    }
    divided = {name for name, spec in specs.items() if "model" in spec}
    assert divided == ({"Dense_0kernel", "Dense_1kernel"} if kind == "linen" else {"firstkernel"})
    found, expected = jax.device_get((state.server.params, alone.server.params))
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_activations_are_divided_where_devices_share_a_client():
    """Elsewhere the call adds nothing to the program."""
    assert (
        "sharding"
        not in jax.jit(lambda x: fa.models.shard(x, "model")).lower(1.0 * TEST["x"]).as_text()
    )
