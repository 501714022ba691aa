"""Parameter counts to the unit, initialisations, the adapters, and what BatchNorm sees."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import LAYOUTS, fixed

import fedjax_algos as fa
from fedjax_algos.core import Model
from fedjax_algos.models import classifier, models, nnx_classifier
from fedjax_algos.schedules import Synchronous

GREY, COLOUR, TEXT = (28, 28), (32, 32, 3), (80,)
COUNTS = [
    ("linear", (5000,), 2, 10_002),
    ("mlp:hidden=400", GREY, 10, 318_010),
    ("cnn_fedgbo", COLOUR, 100, 1_250_852),
    ("cnn_fedgbo", GREY, 62, 870_334),
    ("lenet", COLOUR, 10, 797_962),
    ("lenet", COLOUR, 100, 815_332),
    ("resnet20", COLOUR, 10, 269_722),
    ("resnet20", COLOUR, 100, 275_572),
    ("resnet18", COLOUR, 10, 11_173_962),
    ("resnet18:norm=group", COLOUR, 10, 11_173_962),
    ("cnn_fedcompass", GREY, 10, 582_026),
    ("gru", TEXT, 79, 162_887),
    ("gru:biases=flax", TEXT, 79, 162_375),
    ("lstm", TEXT, 80, 133_520),
    ("lstm_words", (20,), 10_004, 4_053_428),
]


def test_every_model_is_counted():
    assert {spec.partition(":")[0] for spec, *_ in COUNTS} == set(models)


@pytest.mark.parametrize(("spec", "shape", "classes", "expected"), COUNTS)
def test_parameter_counts(spec, shape, classes, expected):
    problem = models.make(spec, shape, classes)
    model = jax.eval_shape(problem.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(model.params)) == expected


@pytest.mark.parametrize(("spec", "shape", "classes", "expected"), COUNTS)
def test_outputs_have_the_promised_shapes(spec, shape, classes, expected):
    del expected
    problem = models.make(spec, shape, classes)
    batch = {"x": jnp.zeros((3, *shape), jnp.uint8), "y": jnp.zeros(3, jnp.int32)}

    def evaluate(key):
        model = problem.init(key)
        outputs, statistics = problem.apply(model, batch, key, True)
        return model, outputs, statistics, problem.loss(outputs, batch)

    model, outputs, statistics, loss = jax.eval_shape(evaluate, jax.random.key(0))
    assert outputs.logits.shape == (3, classes)
    assert outputs.features.shape[0] == 3
    assert loss.shape == (3,)
    same = functools.partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
    assert same(statistics) == same(model.statistics)


def by_flax(params, x):
    """A small convolutional network with Flax's layers, from end to end."""
    for index in range(2):
        layer = params[f"Conv_{index}"]
        size = layer["kernel"].shape[:2]
        x = nn.Conv(layer["bias"].size, size, padding="VALID").apply({"params": layer}, x)
        x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
    x = x.reshape(len(x), -1)
    for index in range(len(params["Perceptron_0"])):
        layer = params["Perceptron_0"][f"Dense_{index}"]
        x = (nn.relu(x) if index else x) @ layer["kernel"] + layer["bias"][None]
    return x


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "size"),
    [("cnn_fedgbo", (28, 31)), ("cnn_fedgbo", (13, 10)), ("lenet", (29, 30)), ("lenet", (16, 19))],
)
def test_what_no_pool_sees_is_left_out_of_nothing_else(name, size):
    """Values and gradients of the params, where pools leave rows out and where they do not."""
    problem, key = models[name]((*size, 1), 10), jax.random.key(0)
    params = jax.tree.map(lambda leaf: leaf.astype(float), problem.init(key).params)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, *size, 1)))

    def loss(predict, params):
        outputs = predict(params)
        return jnp.sin(outputs).sum(), outputs

    mine, theirs = (
        jax.jit(jax.grad(functools.partial(loss, predict), has_aux=True))(params)
        for predict in (
            lambda params: problem.apply(Model(params), {"x": x}, key, False)[0].logits,
            lambda params: by_flax(params, x),
        )
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-10), mine, theirs)


def test_images_too_small_for_the_pools_are_refused():
    jax.eval_shape(models["cnn_fedgbo"]((10, 10), 10).init, jax.random.key(0))
    with pytest.raises(ValueError, match=r"\(4, 3\) are too small: .* leaves \[2, 1\], .* larger"):
        models["cnn_fedgbo"]((10, 9), 10).init(jax.random.key(0))


@pytest.mark.parametrize("spec", ["mlp", "cnn_fedgbo", "gru"])
def test_torch_starts_are_uniform_within_the_bound(spec):
    shape = TEXT if spec == "gru" else GREY
    model = models.make(f"{spec}:initialisation=torch", shape, 62).init(jax.random.key(1))
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
        name = jax.tree_util.keystr(path)
        if "embedding" in name:
            assert float(leaf.std()) == pytest.approx(1, rel=0.1)
        elif leaf.size > 5000:
            fan_in = 128 if "ecurrent" in name or "input_" in name else np.prod(leaf.shape[:-1])
            bound = fan_in**-0.5
            assert 0.99 * bound < float(jnp.abs(leaf).max()) <= bound, name
            assert float(leaf.std()) == pytest.approx(bound / 3**0.5, rel=0.03)


def test_pixels_as_bytes_are_scaled():
    problem = models["linear"]((4,), 3)
    model = problem.init(jax.random.key(0))
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4))
    logits = [
        problem.apply(model, {"x": x}, jax.random.key(0), False)[0].logits
        for x in (jnp.asarray(pixels, jnp.uint8), jnp.asarray(pixels / 255, jnp.float32))
    ]
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-5, atol=1e-6)


def gru_of_pytorch(x, p):
    """PyTorch's equations of a GRU layer in NumPy, gates in the order r, z, n."""
    sigmoid = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731
    w, u = np.split(p["input_kernel"], 3, 1), np.split(p["recurrent_kernel"], 3, 1)
    b, c = np.split(p["input_bias"], 3), np.split(p["recurrent_bias"], 3)
    h, outputs = np.zeros((len(x), len(u[0]))), []
    for t in range(x.shape[1]):
        r, z = (sigmoid(x[:, t] @ w[i] + b[i] + h @ u[i] + c[i]) for i in (0, 1))
        n = np.tanh(x[:, t] @ w[2] + b[2] + r * (h @ u[2] + c[2]))
        h = (1 - z) * n + z * h
        outputs.append(h)
    return np.stack(outputs, 1)


def lstm_of_pytorch(x, p):
    """PyTorch's equations of an LSTM layer in NumPy, gates in the order i, f, g, o."""
    sigmoid = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731
    width = p["recurrent_kernel"].shape[0]
    h, c, outputs = np.zeros((len(x), width)), np.zeros((len(x), width)), []
    for t in range(x.shape[1]):
        gates = x[:, t] @ p["input_kernel"] + p["input_bias"]
        gates = gates + h @ p["recurrent_kernel"] + p["recurrent_bias"]
        i, f, g, o = np.split(gates, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs, 1)


@pytest.mark.parametrize(
    ("cell", "reference"), [("gru", gru_of_pytorch), ("lstm", lstm_of_pytorch)]
)
def test_recurrent_layers_are_pytorch_s(cell, reference):
    layer = fa.models.Recurrent(cell, 5, initialisation="torch")
    x = np.random.default_rng(0).normal(size=(3, 7, 4)).astype(np.float32)
    params = layer.init(jax.random.key(0), x)
    expected = reference(x.astype(float), jax.tree.map(np.asarray, params["params"]))
    np.testing.assert_allclose(layer.apply(params, x), expected, atol=2e-6)


def test_the_gru_with_flax_s_biases_is_flax_s():
    """nn.GRUCell, whose r and z have one bias and whose candidate has two."""
    cell = nn.GRUCell(5)
    x = np.random.default_rng(0).normal(size=(3, 7, 4)).astype(np.float32)
    theirs = nn.RNN(cell)
    variables = theirs.init(jax.random.key(0), x)
    p = variables["params"]["cell"]
    stack = lambda part: jnp.concatenate([p[name][part] for name in ("ir", "iz", "in")], -1)  # noqa: E731
    mine = {
        "input_kernel": stack("kernel"),
        "input_bias": stack("bias"),
        "recurrent_kernel": jnp.concatenate([p[n]["kernel"] for n in ("hr", "hz", "hn")], -1),
        "recurrent_bias": p["hn"]["bias"],
    }
    outputs = fa.models.Recurrent("gru", 5, biases="flax").apply({"params": mine}, x)
    np.testing.assert_allclose(outputs, theirs.apply(variables, x), atol=1e-6)


class Small(nn.Module):
    @nn.compact
    def __call__(self, x, training=False, mask=None):
        x = nn.BatchNorm(not training, momentum=0.5)(
            x, mask=None if mask is None else mask[:, None]
        )
        return nn.Dense(2)(x)


def batch_of(x):
    return {"x": jnp.asarray(x), "y": jnp.zeros(len(x), jnp.int32)}


def test_batch_norm_leaves_masked_rows_out():
    problem = classifier(Small(), (3,))
    model = problem.init(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    padded = batch_of(np.concatenate([x, x[-1:] + 50]))
    padded["mask"] = jnp.arange(6) < 5
    outputs, statistics = problem.apply(model, padded, jax.random.key(0), True)
    expected, alone = problem.apply(model, batch_of(x), jax.random.key(0), True)
    np.testing.assert_allclose(outputs.logits[:5], expected.logits, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), statistics, alone)
    mean = statistics["batch_stats"]["BatchNorm_0"]["mean"]
    np.testing.assert_allclose(mean, 0.5 * x.mean(0), rtol=1e-4, atol=1e-6)
    _, unchanged = problem.apply(model, batch_of(x), jax.random.key(0), False)
    jax.tree.map(np.testing.assert_array_equal, unchanged, model.statistics)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_statistics_are_averaged_over_the_cohort_and_not_corrected(layout):
    """Three clients in one epoch of one short or whole batch: the mean of what each would have."""
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(n, 3)).astype(np.float32) for n in (2, 4, 3)]
    examples = batch_of(np.concatenate(clients))
    data = fa.federate(examples, fa.Partition.of(np.split(np.arange(9), [2, 6])))
    local = fa.Local(4, 0.1, epochs=1)
    engine = fa.make_engine(fa.algorithms.fedgbo(classifier(Small(), (3,)), local), layout)
    schedule = Synchronous(data.counts(), local, cohort_size=3, seed=0, sampler=fixed([(0, 1, 2)]))
    visits = jax.tree.map(lambda leaf: leaf[0], schedule.visits(1))
    state = engine.init(0, fa.Population(3, 3, 9))
    state, _ = engine.round(state, data, visits)
    found = state.statistics["batch_stats"]["BatchNorm_0"]
    means = np.mean([0.5 * x.mean(0) for x in clients], axis=0)
    np.testing.assert_allclose(found["mean"], means, rtol=1e-4, atol=1e-6)
    variances = np.mean([0.5 + 0.5 * x.var(0) for x in clients], axis=0)
    np.testing.assert_allclose(found["var"], variances, rtol=1e-4)


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(3, momentum=0.5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.dense = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.dropout(self.norm(x)))


def test_nnx_modules():
    problem = nnx_classifier(NnxNet)
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    model = jax.jit(problem.init)(jax.random.key(0))
    apply = jax.jit(problem.apply, static_argnums=3)
    first, statistics = apply(model, batch_of(x), jax.random.key(1), True)
    again, _ = apply(model, batch_of(x), jax.random.key(1), True)
    other, _ = apply(model, batch_of(x), jax.random.key(2), True)
    assert (first.logits == again.logits).all()
    assert (first.logits != other.logits).any()  # dropout follows the key
    np.testing.assert_allclose(statistics["norm"]["mean"], 0.5 * x.mean(0), rtol=1e-5, atol=1e-6)
    still, same = apply(model, batch_of(x), jax.random.key(2), False)
    dense = jax.tree.map(np.asarray, model.params["dense"])
    expected = x / np.sqrt(1 + 1e-5) @ dense["kernel"] + dense["bias"]
    np.testing.assert_allclose(still.logits, expected, rtol=1e-4, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, same, model.statistics)


def test_nnx_and_linen_learn_alike():
    """The same dense layer from the same params gives the same rounds."""
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    examples = {"x": x, "y": (x.sum(1) > 0).astype(np.int32)}
    data = fa.federate(examples, fa.Partition.of(np.array_split(np.arange(20), 4)))
    params = {"kernel": jnp.ones((3, 2)) * 0.1, "bias": jnp.zeros(2)}
    nnx_problem = nnx_classifier(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
    histories = []
    for problem in (classifier(nn.Dense(2), (3,)), nnx_problem):
        engine = fa.make_engine(fa.algorithms.fedavg(problem, fa.Local(2, 0.3, epochs=1)))
        _, history = fa.simulate(
            engine, data, cohort_size=2, rounds=5, params=params, test=examples, eval_every=1
        )
        histories.append([row["test_loss"] for row in history])
    np.testing.assert_allclose(histories[0], histories[1], rtol=1e-6)
    assert histories[0][-1] < 0.8 * histories[0][0]
