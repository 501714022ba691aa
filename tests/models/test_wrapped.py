"""Problems of problems: frozen params, which are never sent, and computing in bfloat16."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from helpers import dispatches_of, one_round, small_network, stored
from jax.extend.core import ClosedJaxpr, Jaxpr
from model_kinds import KINDS, PHOTO, SHALLOW, TEXTS, in_all, model_of_kind, nightly

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import immediate, traced
from fedjax_algos.core.local_steps import batch_gradient
from fedjax_algos.core.randomness import model_key
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.models import compute_in, freeze, freeze_model, lora, store_frozen_in
from fedjax_algos.models.wrapped import matrix_sides

X64 = pytest.mark.usefixtures("x64")
LOCAL = fa.Local(batch_size=2, learning_rate=0.05, steps=3)
POPULATION = fa.Population(4, 2, 17)
KEY = model_key(0)
equal = partial(jax.tree.map, np.testing.assert_array_equal)


def with_constants(problem):
    """The problem with the hidden layer as constants of its functions."""
    hidden = problem.init(KEY).params["hidden"]

    def init(key):
        return fa.Model({"out": problem.init(key).params["out"]})

    def apply(model, batch, key, training):
        whole = fa.Model({"hidden": hidden, "out": model.params["out"]})
        return problem.apply(whole, batch, key, training)

    return problem._replace(init=init, apply=apply)


@pytest.fixture
def toy():
    return small_network()


@X64
def test_gradients_are_as_if_they_were_constants(toy):
    found = []
    for problem in (freeze(toy.problem, "out"), with_constants(toy.problem)):
        gradient = jax.jit(batch_gradient(problem))
        found.append(gradient(problem.init(KEY), toy.clients[0], np.arange(5) < 4, KEY))
    equal(*found)
    assert list(found[0][0]) == ["out"]


# with a prelude; with client state and models
@X64
@pytest.mark.parametrize("name", [*in_all("mime"), *nightly("apfl")])
def test_training_is_as_if_they_were_constants(name, toy):
    """Two rounds; the frozen params are in no broadcast, update, row or server state."""
    dispatches = dispatches_of(toy.data, LOCAL, [[0, 2], [3, 1]])
    ends = []
    for problem in (freeze(toy.problem, "out"), with_constants(toy.problem)):
        engine = fa.make_engine(algorithms[name](problem, LOCAL))
        state = engine.init(0, POPULATION)
        sizes = tree_bytes(state.server), tree_bytes(state.clients)
        sizes += engine.transfer(state, toy.data, one_round(dispatches, 0))
        ends.append((sizes, engine.rounds(state, toy.data, dispatches)[0]))
    (sizes, frozen), (expected_sizes, constant) = ends
    assert sizes == expected_sizes
    chex.assert_trees_all_close(*map(jax.tree.leaves, (frozen[:3], constant[:3])), rtol=1e-12)
    equal(frozen.frozen["hidden/w"], toy.problem.init(KEY).params["hidden"]["w"])


@X64
@pytest.mark.nightly
def test_merged_plans_and_sweeps_have_frozen_params_for_each_seed(toy):
    problem, test = freeze(toy.problem, "out"), toy.data.examples
    executor = fa.make_executor(algorithms["fedasync"](problem, LOCAL), slots=2)
    given = immediate(steps=3), traced(np.array([1.0, 2.0, 2.5, 4.0]) / 3)
    options, data = {"seconds": 10, "evaluations": 2, "test": test}, dict.fromkeys((0, 1), toy.data)
    merged = fa.simulate_async_seeds(executor, data, *given, merged_bytes=10**9, **options)
    rounds = {"cohort_size": 2, "rounds": 4, "eval_every": 2, "test": test}
    swept = fa.sweep("fedavg", problem, LOCAL, toy.data, grid={}, seeds=[0, 1], **rounds).rows
    engine = fa.make_engine(algorithms["fedavg"](problem, LOCAL))
    for seed in (0, 1):
        alone = fa.simulate_async(executor, toy.data, *given, seed=seed, **options).rows
        history = fa.simulate(engine, toy.data, seed=seed, **rounds)[1]
        own = [row for row in swept if row["seed"] == seed]
        for found, expected in (merged[seed].rows, alone), (own, history):
            losses = [[row["test_loss"] for row in rows] for rows in (found, expected)]
            np.testing.assert_allclose(*losses, rtol=1e-12)


class Adapted(nnx.Module):
    def __init__(self, rngs):
        self.base = nnx.Linear(6, 3, rngs=rngs)
        self.adapter = nnx.LoRA(6, 2, 3, base_module=self.base, rngs=rngs)

    def __call__(self, x):
        return self.adapter(x)


@X64
@pytest.mark.all
def test_an_adapter_of_a_pretrained_model(tmp_path):
    """LoRA on an NNX layer: its two factors are trained; a checkpoint has the frozen params."""
    problem = fa.models.nnx_classifier(Adapted, trainable=nnx.LoRAParam)
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(3, 6)), "y": rng.integers(3, size=3)} for _ in range(4)]
    data, pretrained = stored(clients), problem.init(model_key(7))
    engine = fa.make_engine(algorithms["scaffold"](problem, LOCAL))
    options = {"cohort_size": 2, "rounds": 3, "params": pretrained, "checkpoints": tmp_path}
    state, _ = fa.simulate(engine, data, **options)
    equal(fa.simulate(engine, data, **options)[0], state)
    equal(state.frozen, pretrained.frozen)
    assert sum(leaf.size for leaf in jax.tree.leaves(state.frozen)) == 6 * 3 + 3
    assert sum(leaf.size for leaf in jax.tree.leaves(state.server.params)) == 6 * 2 + 2 * 3
    leaves = [jax.tree.leaves(params) for params in (state.server.params, pretrained.params)]
    assert all(np.abs(new - old).max() > 0 for new, old in zip(*leaves, strict=True))


@X64
def test_frozen_arrays_in_bfloat16_are_rounded_once(toy):
    """Outputs are those with rounded arrays in float64, in half or less of the memory."""
    freezing = freeze(toy.problem, "out")
    narrow = store_frozen_in(freezing)
    start, wide = narrow.init(KEY), freezing.init(KEY)
    assert tree_bytes(start.frozen) * 4 <= tree_bytes(wide.frozen) * 2
    assert {leaf.dtype for leaf in jax.tree.leaves(start.frozen)} == {np.dtype("bfloat16")}
    rounded = start._replace(frozen=jax.tree.map(lambda leaf: leaf.astype(float), start.frozen))
    batch = toy.clients[0]
    equal(narrow.apply(start, batch, KEY, True), freezing.apply(rounded, batch, KEY, True))
    with pytest.raises(ValueError, match="the problem has no frozen arrays"):
        store_frozen_in(toy.problem)


@X64
def test_low_rank_changes(toy):
    """W + 2 A B; A, B and what is trained as a whole are the params."""
    problem = lora(toy.problem, "hidden/w", rank=2, alpha=4, trained="out")
    model, original = problem.init(KEY), toy.problem.init(KEY).params
    shapes = {path: leaf.shape for path, leaf in model.params.items()}
    assert shapes == {"hidden/w/A": (3, 2), "hidden/w/B": (2, 4), "out": (4,)}
    assert sorted(model.frozen) == ["hidden/b", "hidden/w"]

    def outputs(problem, params, frozen=()):
        given = fa.Model(params, (), frozen)
        return jax.jit(problem.apply, static_argnums=3)(given, toy.clients[0], KEY, False)[0]

    equal(outputs(problem, model.params, model.frozen), outputs(toy.problem, original))
    other = np.random.default_rng(0).normal(size=(2, 4))
    changed = outputs(problem, model.params | {"hidden/w/B": other}, model.frozen)
    w = original["hidden"]["w"] + 2 * model.params["hidden/w/A"] @ other
    expected = outputs(toy.problem, original | {"hidden": original["hidden"] | {"w": w}})
    chex.assert_trees_all_close(changed, expected, rtol=1e-12)


def test_sides_of_params_of_several_axes():
    """Of query and output kernels of attention, of a convolution and of a bias."""
    shapes = (768, 12, 64), (12, 64, 768), (3, 3, 64, 128), (5,), ()
    assert list(map(matrix_sides, shapes)) == [(768, 768), (768, 768), (576, 128), (0, 0), (0, 0)]


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        x = nn.Dense(3)(nn.BatchNorm(use_running_average=not training)(x))
        return nn.BatchNorm(use_running_average=not training)(x)


@X64
@pytest.mark.all
def test_pretrained_params_are_split_by_the_same_pattern_and_statistics_are_kept():
    problem = fa.models.classifier(Normalised(), (4,))
    whole = problem.init(model_key(3))
    moved = jax.tree.map(lambda leaf: leaf + np.arange(leaf.size) / 7, whole.statistics)
    whole = whole._replace(statistics=moved)
    model = freeze_model(problem, "Dense_0/*", whole)
    assert sorted(model.params) == ["Dense_0/bias", "Dense_0/kernel"]
    equal(model.statistics, moved)
    batch = {"x": np.random.default_rng(0).normal(size=(5, 4))}
    given = (freeze(problem, "Dense_0/*"), model), (problem, whole)
    equal(*(jax.jit(each.apply, static_argnums=3)(m, batch, KEY, False)[0] for each, m in given))
    with pytest.raises(ValueError, match=r"statistics\[.*\] is missing"):
        freeze_model(problem, "Dense_0/*", whole.params)


@X64
def test_wrong_calls(toy):
    whole, problem = toy.problem.init(KEY).params, freeze(toy.problem, "out")
    engine = fa.make_engine(algorithms["fedavg"](problem, LOCAL))
    half, wrong = problem.init(KEY).params, whole | {"out": np.zeros(5)}
    assert sorted(freeze_model(toy.problem, "hidden/*", whole).params) == ["hidden/b", "hidden/w"]
    for call, message in (
        (lambda: freeze(toy.problem, ""), "freeze: trainable='' matches none of the params hidden"),
        (lambda: freeze_model(toy.problem, "last", whole), "freeze_model: trainable='last' match"),
        (lambda: freeze_model(toy.problem, "out", wrong), r"shape \[5\], .* \[4\] is expected"),
        (lambda: freeze_model(toy.problem, "out", None), r"params: params\[.* is missing"),
        (lambda: freeze(problem, "out"), "the model has frozen arrays already"),
        (lambda: lora(problem, "out", rank=1), "the model has frozen arrays already"),
        (lambda: lora(toy.problem, "hidden/*", rank=2), r"hidden/b is float64\[4\]; match"),
        (lambda: lora(toy.problem, "hidden/w", rank=4), r"hidden/w is float64\[3, 4\]; match"),
        (
            lambda: lora(toy.problem, "*/w", rank=1, trained="*w"),
            "`trained` does not match",
        ),
        (lambda: lora(toy.problem, "*/w", rank=1, alpha=0), "alpha=0 is out of range"),
        (lambda: engine.init(0, POPULATION, half), r"frozen.*give fedjax_algos\.Model\(params, st"),
        (lambda: compute_in(problem, "float16"), "dtype='float16'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def products(jaxpr):
    """The matrix products and convolutions of a trace, as dtypes of their operands."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
            yield tuple(var.aval.dtype.name for var in eqn.invars)
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                if isinstance(inner, ClosedJaxpr | Jaxpr):
                    yield from products(getattr(inner, "jaxpr", inner))


TEXT, FLOATS = ("gru:layers=1", *TEXTS), ("cnn_fedgbo", (16, 16, 3), np.float32)
OTHERS = in_all(FLOATS, *(kind for kind in KINDS if kind[0] not in SHALLOW and kind != TEXT))
OTHERS += nightly(*((name, *PHOTO) for name in SHALLOW))


@pytest.mark.parametrize(("name", "shape", "dtype"), [TEXT, *OTHERS])
def test_every_kind_of_model_multiplies_in_bfloat16(name, shape, dtype):
    """All products of the gradient; the gradient itself and the statistics are float32."""
    narrow = compute_in(model_of_kind(name, shape))
    model = jax.eval_shape(narrow.init, jax.random.key(0))
    labels = (2, *shape) if "unet" in name else (2,)
    batch = {"x": np.zeros((2, *shape), dtype), "y": np.zeros(labels, np.int32)}
    given = model, batch, np.ones(2, bool), jax.random.key(0)
    jaxpr, shapes = jax.make_jaxpr(batch_gradient(narrow), return_shape=True)(*given)
    found = list(products(jaxpr.jaxpr))
    assert len(found) >= 2
    assert set(found) == {("bfloat16", "bfloat16")}
    assert shapes[0] == model.params
    assert shapes[1] == model.statistics
    assert shapes[2].total.dtype == jnp.float32
