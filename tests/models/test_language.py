"""Texts: the next token against NumPy loops, recurrent layers against PyTorch's and Flax's."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_algos as fa
from fedjax_algos.models import losses, metrics, models, with_loss
from fedjax_algos.models.language import word_accuracy
from fedjax_algos.models.outputs import Outputs, check_labels

WORDS, TIME = 4, 5
CLASSES = WORDS + 4
UNKNOWN, BEGIN, END = WORDS + 1, WORDS + 2, WORDS + 3
EXCLUDED = {
    "accuracy_with_oov": {0},
    "accuracy_no_oov": {0, UNKNOWN},
    "accuracy_no_oov_or_eos": {0, UNKNOWN, BEGIN, END},
}
KEY = jax.random.key(0)
COUNTED = dict(zip(EXCLUDED, ("all", "known", "words"), strict=True))


def texts(number, seed):
    """Texts of random lengths, one of which is empty, and logits that are often right."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(1, CLASSES, (number, TIME))
    lengths = rng.integers(1, TIME + 1, number)
    lengths[rng.integers(number)] = 0
    labels[np.arange(TIME) >= lengths[:, None]] = 0
    right = rng.random(labels.shape) < 0.5
    guesses = np.where(right, labels, rng.integers(0, CLASSES, labels.shape))
    return rng.normal(size=(number, TIME, CLASSES)) + 4 * np.eye(CLASSES)[guesses], labels


def of(logits, labels):
    return Outputs(jnp.asarray(logits)), {"y": jnp.asarray(labels)}


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_accuracies_are_means_over_the_counted_tokens(seed):
    logits, labels = texts(6, seed)
    for name, excluded in EXCLUDED.items():
        right = counted = 0
        for text, own in zip(labels, logits, strict=True):
            for token, scores in zip(text, own, strict=True):
                if token not in excluded:
                    right, counted = right + (scores.argmax() == token), counted + 1
        found = metrics["token_accuracy"](*of(logits, labels), counted=COUNTED[name])
        assert list(found) == [name]
        mean = found[name]
        assert (mean.total.sum(), mean.weight.sum()) == (right, counted)
        assert mean.weight.shape == (6,)


def test_several_classes_of_unknown_words():
    """With two buckets the last word is one of them."""
    logits, labels = np.zeros((1, 3, CLASSES)), np.array([[WORDS - 1, WORDS, UNKNOWN]])
    for buckets, weight in ((1, [2]), (2, [1])):
        found = metrics["token_accuracy"](*of(logits, labels), buckets=buckets)
        assert found["accuracy_no_oov_or_eos"].weight.tolist() == weight


def test_the_loss_leaves_padding_out():
    logits, labels = texts(6, 0)

    @jax.jit
    def values(logits):
        loss = losses["token_cross_entropy"]
        return [loss(*of(logits, labels), divide_by=each) for each in ("tokens", "positions")]

    for found, by_position in zip(values(logits), (False, True), strict=True):
        for text, own, value in zip(labels, logits, found, strict=True):
            each = [np.log(np.exp(z).sum()) - z[y] for y, z in zip(text, own, strict=True) if y]
            expected = sum(each) / (TIME if by_position else max(len(each), 1))
            assert value == pytest.approx(expected, rel=2e-5)
    slope = jax.jit(jax.grad(lambda z: sum(each.sum() for each in values(z))))(jnp.asarray(logits))
    np.testing.assert_array_equal((slope != 0).any(-1), labels != 0)
    assert (labels == 0).all(-1).any()


def model(predicts="every"):
    options = {"embedding": 3, "hidden": 4, "biases": "flax"}
    return models["lstm_words"]((TIME,), CLASSES, **options, predicts=predicts)


def sentences(number=7, seed=1):
    """Texts w, w + 1, ... of the words, modulo their number, with begin and end."""
    rng = np.random.default_rng(seed)
    tokens = np.zeros((number, TIME + 1), np.int32)
    for row in tokens:
        length = rng.integers(1, TIME + 1)
        row[: length + 1] = [BEGIN, *((rng.integers(WORDS) + np.arange(length)) % WORDS + 1)]
        if length < TIME:
            row[length + 1] = END
    return {"x": tokens[:, :-1], "y": tokens[:, 1:]}


@pytest.mark.all
def test_each_position_predicts_from_what_was_read_before():
    """At the last position it is the model of one word; later tokens have no effect."""
    every, last, x = model(), model("last"), sentences()["x"]
    made = jax.jit(every.init)(KEY)
    jax.tree.map(np.testing.assert_array_equal, made, jax.jit(last.init)(KEY))
    of_every = jax.jit(lambda x: every.apply(made, {"x": x}, KEY, False)[0].logits)
    logits = of_every(x)
    assert logits.shape == (7, TIME, CLASSES)
    of_last = jax.jit(lambda x: last.apply(made, {"x": x}, KEY, False)[0].logits)(x)
    np.testing.assert_allclose(logits[:, -1], of_last, atol=1e-6)
    changed = x.copy()
    changed[:, 3:] = 1
    again = of_every(changed)
    np.testing.assert_array_equal(logits[:, :3], again[:, :3])
    assert (logits[:, 3:] != again[:, 3:]).any()


def test_tokens_of_texts_are_checked():
    examples = sentences()
    check_labels(model(), "the examples", examples)
    with pytest.raises(ValueError, match=f"have label {END + WORDS}; give whole numbers from 0 to"):
        check_labels(model(), "the examples", examples | {"y": examples["y"] + WORDS})
    with pytest.raises(ValueError, match=r"x int32\[1, 5\], y int32\[1\] of one example"):
        check_labels(model(), "the examples", examples | {"y": examples["y"][:, 0]})


def test_errors_name_the_fix():
    flat = Outputs(jnp.zeros((2, CLASSES))), {"y": jnp.zeros(2, int)}
    for function in (losses["token_cross_entropy"], metrics["token_accuracy"], word_accuracy):
        with pytest.raises(ValueError, match=r"labels y have shape \(2,\).*lstm_words:predicts=ev"):
            function(*flat)
    with pytest.raises(ValueError, match=r"4 classes have no word beside padding, buckets=1.* gi"):
        metrics["token_accuracy"](Outputs(jnp.zeros((2, 3, 4))), {"y": jnp.zeros((2, 3), int)})
    with pytest.raises(ValueError, match="divide_by='texts' is unknown; choose tokens or pos"):
        with_loss(model(), "token_cross_entropy:divide_by=texts")


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def gru_of_pytorch(x, p):
    """PyTorch's equations of a GRU layer in NumPy, gates in the order r, z, n."""
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
def test_recurrent_layers_agree_with_pytorch(cell, reference):
    layer = fa.models.Recurrent(cell, 5, initialisation="torch")
    x = np.random.default_rng(0).normal(size=(3, 7, 4)).astype(np.float32)
    params = jax.jit(layer.init)(jax.random.key(0), x)
    expected = reference(x.astype(float), jax.tree.map(np.asarray, params["params"]))
    np.testing.assert_allclose(jax.jit(layer.apply)(params, x), expected, atol=2e-6)


def test_the_gru_with_flax_biases_agrees_with_flax():
    """In nn.GRUCell r and z have one bias and the candidate has two."""
    cell = nn.GRUCell(5)
    x = np.random.default_rng(0).normal(size=(3, 7, 4)).astype(np.float32)
    theirs = nn.RNN(cell)
    variables = jax.jit(theirs.init)(jax.random.key(0), x)
    p = variables["params"]["cell"]
    stack = lambda part: jnp.concatenate([p[name][part] for name in ("ir", "iz", "in")], -1)  # noqa: E731
    mine = {
        "input_kernel": stack("kernel"),
        "input_bias": stack("bias"),
        "recurrent_kernel": jnp.concatenate([p[n]["kernel"] for n in ("hr", "hz", "hn")], -1),
        "recurrent_bias": p["hn"]["bias"],
    }
    outputs = jax.jit(fa.models.Recurrent("gru", 5, biases="flax").apply)({"params": mine}, x)
    np.testing.assert_allclose(outputs, jax.jit(theirs.apply)(variables, x), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "biases", "initialisation"),
    [("gru", "flax", "torch"), ("lstm_words", "torch", "flax")],
)
def test_models_with_x64(name, biases, initialisation):
    """The same params as without it, in float32; wider ones and wider inputs give wider outputs."""
    problem = fa.models.models[name]((5,), 7, embedding=3, hidden=4, biases=biases)
    before = jax.eval_shape(problem.init, jax.random.key(0))
    with jax.enable_x64(True):
        assert jax.eval_shape(problem.init, jax.random.key(0)) == before
        wide = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64), before)
        batch = {"x": jax.ShapeDtypeStruct((2, 5), np.int32)}
        for model, dtype in (before, np.float32), (wide, np.float64):
            apply = lambda model, batch: problem.apply(model, batch, jax.random.key(0), True)  # noqa: E731
            assert jax.eval_shape(apply, model, batch)[0].logits.dtype == dtype
