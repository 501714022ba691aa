"""Several devices that compute a client together: what each holds, and the same results."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_helpers import in_files, in_tier
from flax import nnx
from helpers import one_round, small_network
from jax.sharding import PartitionSpec as P
from same_runs import assert_close, host, without_time

import fedjax_algos as fa
from fedjax_algos import asynchrony
from fedjax_algos.algorithms import algorithms
from fedjax_algos.engine.placed.devices import bytes_of_device, check_rules, client_mesh, one_copy
from fedjax_algos.models import classifier, models, nnx_classifier
from fedjax_algos.participation import Cohorts

LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
HALVES = {"hidden/w": P(None, "model"), "out": P("model")}
PAIRS = {"devices": 4, "devices_per_client": 2, "model_sharding": HALVES}
TEST = {"x": np.ones((5, 3)), "y": np.ones(5)}


@pytest.mark.parametrize(
    ("path", "shape", "spec"),
    [
        ("any", (64, 32), P("model")),  # without rules, along the longest axis
        ("any", (32, 64), P(None, "model")),
        ("any", (3, 63, 64), P(None, None, "model")),
        ("any", (3, 4), P()),  # it has few entries
        ("any", (33, 63), P()),
        ("any", (), P()),
        ("server/params/hidden/w", (3, 4), P(None, "model")),  # a rule is for the last axes
        ("server/ring/hidden/w", (7, 3, 4), P(None, None, "model")),
        ("server/optimizer_state/0/mu/out", (4,), P("model")),
        ("clients/out", (5,), P()),  # it cannot be divided
        ("out", (), P()),
        ("server/params/hidden/b", (4,), P()),
    ],
)
def test_which_axis_of_an_array_is_divided(path, shape, spec):
    rules = None if path == "any" else check_rules(small_network().problem, HALVES, 2)
    assert client_mesh(4, 2, rules).spec(path, shape) == spec
    assert client_mesh(4).spec(path, shape) == P()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"devices_per_client": 0}, "devices_per_client=0"),
        ({"devices": 4, "devices_per_client": 3}, "4 of process 0; .* devices_per_client=3"),
        ({"model_sharding": HALVES}, "give devices_per_client=2"),
        (PAIRS | {"model_sharding": {"no": P()}}, "'no' matches none"),
        (PAIRS | {"model_sharding": {"out": "model"}}, "'out' has 'model'"),
        (PAIRS | {"model_sharding": {"out": P("data")}}, "'out' has .*'data'"),
        (PAIRS | {"model_sharding": {"hidden/w": P("model", None)}}, r"'hidden/w' .* \[3, 4\]"),
    ],
)
def test_wrong_options(options, named):
    with pytest.raises(ValueError, match=named):
        fa.make_engine(algorithms["fedavg"](small_network().problem, LOCAL), **options)


def test_memory_is_checked_by_what_a_device_holds():
    shapes = {"small": np.zeros(100, np.float32), "large": np.zeros((64, 32), np.float32)}
    assert bytes_of_device(None, shapes) == 4 * (100 + 2048)
    assert bytes_of_device(client_mesh(4, 2), shapes) == 4 * (100 + 1024)
    rows = {"large": np.zeros((6, 64, 32), np.float32)}
    assert bytes_of_device(client_mesh(4, 2), rows, rows=True) == 4 * 3 * 1024
    assert bytes_of_device(client_mesh(8, 2), rows, rows=True) == 4 * 6 * 1024  # not over clients


def run(algorithm, data, rounds=3, checkpoints=None, **options):
    """The last state and the rows, without the time."""
    engine = fa.make_engine(algorithm, **options)
    given = {"cohort_size": 2, "rounds": rounds, "eval_every": 1, "seed": 1, "test": TEST}
    state, rows = fa.simulate(engine, data, checkpoints=checkpoints, **given)
    clients = () if isinstance(state.dispatched, tuple) else fa.client_states(engine, state)
    return host((state.server, clients, without_time(rows)))


def assert_same(found, expected):
    chex.assert_trees_all_close(found, expected, rtol=1e-11, atol=1e-13)


SHARDED = {"examples": "sharded", "layout": 2}
PLACES = {"devices": 2}, {"client_state": "host"}, {"client_state": "disk"}, SHARDED, {"files": 1}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "options", [*in_tier(pytest.mark.all, {}), *in_tier(pytest.mark.nightly, *PLACES)], ids=str
)
def test_a_run_in_two_parts(options, tmp_path):
    """On two pairs of devices, or one pair, and on one device; rows and examples in all places."""
    options, saved, toy = PAIRS | options, tmp_path / "run", small_network()
    if options.get("client_state") == "disk":
        options["client_state"] = fa.RowsOnDisk(tmp_path / "rows")
    data = in_files(toy.data) if options.pop("files", 0) else toy.data
    algorithm = algorithms["scaffold"](toy.problem, LOCAL)
    begun = run(algorithm, data, rounds=1, checkpoints=saved, **options)
    assert len(begun[2]) == 2
    found = run(algorithm, data, checkpoints=saved, **options)
    assert_same(found, run(algorithm, toy.data))


@pytest.mark.nightly
@pytest.mark.usefixtures("x64")
def test_the_virtual_clock():
    ends = []
    algorithm = algorithms["fedbuff"](small_network().problem, LOCAL)
    for options in ({}, PAIRS, PAIRS | {"devices": 2}):
        executor = fa.make_executor(algorithm, **options)
        how = small_network().data, asynchrony.buffered(steps=2, size=2), asynchrony.simulated()
        result = fa.simulate_async(executor, *how, seconds=4.0, seed=1, evaluations=2, test=TEST)
        ends.append(host((result.state.server, without_time(result.rows))))
    assert_same(ends[1:], ends[:1] * 2)


def trained(problem, x, name="fedavg", **options):
    """The state after one round."""
    y = np.arange(len(x), dtype=np.int32) % 3
    data = fa.federate({"x": x, "y": y}, fa.Partition.of(np.split(np.arange(len(x)), 4)))
    engine = fa.make_engine(algorithms[name](problem, LOCAL), **options)
    first = Cohorts(data.counts(), LOCAL, cohort_size=4, seed=0).dispatches(1)
    state = engine.init(0, fa.Population(4, 4, len(x)))
    return engine.round(state, engine.put_data(data), one_round(first, 0))[0]


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.nightly
def test_a_device_holds_its_part_of_large_arrays(optimised):
    """Of params, and of rows also those of its clients. The round is that of one device."""
    given = models.make("mlp:hidden=32", (64,), 10), normal(8, 64), "scaffold"
    state = trained(*given, devices=8, devices_per_client=2)
    for tree, parts in ((state.server, 1), (state.clients, 4)):
        for leaf in jax.tree.leaves(tree):
            held = [shard.data.size for shard in leaf.addressable_shards]
            size = leaf.size // (parts if leaf.ndim else 1)
            assert held == [size // (2 if size >= 1024 else 1)] * 8
    assert_close(state.server.params, trained(*given).server.params)
    copy = one_copy(state.server.params)
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(copy)} == {2}


class Linen(nn.Module):
    """Divided in its first layer and after it, as Flax's pages show."""

    @nn.compact
    def __call__(self, x, training=False):
        columns = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
        x = nn.relu(nn.Dense(8, kernel_init=columns)(x))
        return nn.Dense(3)(fa.models.shard(x, None, "model"))


class Nnx(nnx.Module):
    """The same in NNX."""

    def __init__(self, rngs):
        columns = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
        self.first = nnx.Linear(6, 8, rngs=rngs, kernel_init=columns)
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(fa.models.shard(nnx.relu(self.first(x)), None, "model"))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_models_that_say_how_they_are_divided(kind):
    """By the specs that Flax's own functions make of them."""
    if kind == "linen":
        problem, divided = classifier(Linen(), (6,)), "Dense_0kernel"
        shapes = jax.eval_shape(Linen().init, jax.random.key(0), jnp.ones((1, 6)))
        specs = nn.get_partition_spec(shapes)["params"]
    else:
        problem, divided = nnx_classifier(Nnx), "firstkernel"
        with nnx.use_eager_sharding(False):
            params = nnx.eval_shape(lambda: nnx.state(Nnx(nnx.Rngs(0)), nnx.Param))
        specs = nnx.to_pure_dict(nnx.get_partition_spec(params))
    params = trained(problem, normal(24, 6), **PAIRS | {"model_sharding": specs}).server.params
    leaves = jax.tree.leaves_with_path(params)
    on_model = [path for path, leaf in leaves if "model" in tuple(leaf.sharding.spec)]
    assert [jax.tree_util.keystr(path, simple=True) for path in on_model] == [divided]
    assert_close(params, trained(problem, normal(24, 6)).server.params)


def test_activations_are_not_divided_where_devices_share_no_client():
    shard = jax.jit(lambda x: fa.models.shard(x, "model"))
    assert "sharding" not in shard.lower(1.0 * TEST["x"]).as_text()
