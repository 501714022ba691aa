"""Texts: the next token against NumPy loops, and recurrent layers against PyTorch's equations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_kinds import in_all

from fedjax_algos.models import Recurrent, losses, metrics, models, with_loss
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
COUNTED = "all", "known", "words"


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


@partial(jax.jit, static_argnames="buckets")
def accuracies(logits, labels, buckets=1):
    given = Outputs(logits), {"y": labels}
    return [metrics["token_accuracy"](*given, counted=c, buckets=buckets) for c in COUNTED]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_accuracies_are_means_over_the_counted_tokens(seed):
    logits, labels = texts(6, seed)
    for (name, excluded), found in zip(EXCLUDED.items(), accuracies(logits, labels), strict=True):
        right = counted = 0
        for token, scores in zip(labels.ravel(), logits.reshape(-1, CLASSES), strict=True):
            if token not in excluded:
                right, counted = right + (scores.argmax() == token), counted + 1
        assert (found[name].total.sum(), found[name].weight.sum()) == (right, counted)
        assert found[name].weight.shape == (6,)


def test_several_classes_of_unknown_words():
    """With two buckets the last word is one of them."""
    given = np.zeros((1, 3, CLASSES)), np.array([[WORDS - 1, WORDS, UNKNOWN]])
    for buckets, weight in ((1, [2]), (2, [1])):
        found = accuracies(*given, buckets)[2]["accuracy_no_oov_or_eos"]
        assert found.weight.tolist() == weight


def test_the_loss_leaves_padding_out():
    logits, labels = texts(6, 0)
    assert (labels == 0).all(-1).any()

    def both(logits):
        loss = losses["token_cross_entropy"]
        values = [loss(*of(logits, labels), divide_by=each) for each in ("tokens", "positions")]
        return sum(each.sum() for each in values), values

    slope, values = jax.jit(jax.grad(both, has_aux=True))(jnp.asarray(logits))
    for found, by_position in zip(values, (False, True), strict=True):
        for text, own, value in zip(labels, logits, found, strict=True):
            each = [np.log(np.exp(z).sum()) - z[y] for y, z in zip(text, own, strict=True) if y]
            expected = sum(each) / (TIME if by_position else max(len(each), 1))
            assert value == pytest.approx(expected, rel=2e-5)
    np.testing.assert_array_equal((slope != 0).any(-1), labels != 0)


def model(predicts="every"):
    options = {"embedding": 3, "hidden": 4, "biases": "flax"}
    return models["lstm_words"]((TIME,), CLASSES, **options, predicts=predicts)


def sentences(number=7):
    """Texts of the words with begin and end; the labels are the next tokens."""
    rng = np.random.default_rng(1)
    tokens = np.zeros((number, TIME + 1), np.int32)
    for row in tokens:
        length = rng.integers(1, TIME + 1)
        row[: length + 2] = [BEGIN, *rng.integers(1, WORDS + 1, length), END][: TIME + 1]
    return {"x": tokens[:, :-1], "y": tokens[:, 1:]}


@pytest.mark.all
def test_each_position_predicts_from_what_was_read_before():
    """At the last position it is the model of one word; later tokens have no effect."""
    every, last, x = model(), model("last"), sentences()["x"]
    made = jax.jit(every.init)(KEY)
    changed = x.copy()
    changed[:, 3:] = 1

    @jax.jit
    def logits_of(x):
        return [each.apply(made, {"x": x}, KEY, False)[0].logits for each in (every, last)]

    (logits, of_last), (again, _) = map(logits_of, (x, changed))
    assert logits.shape == (7, TIME, CLASSES)
    np.testing.assert_allclose(logits[:, -1], of_last, atol=1e-6)
    np.testing.assert_array_equal(logits[:, :3], again[:, :3])
    assert (logits[:, 3:] != again[:, 3:]).any()


def test_wrong_texts_and_options():
    examples = sentences()
    check_labels(model(), "the examples", examples)
    with pytest.raises(ValueError, match=f"have label {END + WORDS}"):
        check_labels(model(), "the examples", examples | {"y": examples["y"] + WORDS})
    with pytest.raises(ValueError, match=r"x int32\[1, 5\], y int32\[1\] of one example"):
        check_labels(model(), "the examples", examples | {"y": examples["y"][:, 0]})
    flat = Outputs(jnp.zeros((2, CLASSES))), {"y": jnp.zeros(2, int)}
    for function in (losses["token_cross_entropy"], metrics["token_accuracy"], word_accuracy):
        with pytest.raises(ValueError, match=r"labels y have shape \(2,\)"):
            function(*flat)
    with pytest.raises(ValueError, match="4 classes have no word beside padding, buckets=1"):
        metrics["token_accuracy"](Outputs(jnp.zeros((2, 3, 4))), {"y": jnp.zeros((2, 3), int)})
    with pytest.raises(ValueError, match="divide_by='texts'"):
        with_loss(model(), "token_cross_entropy:divide_by=texts")


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def gru_of_pytorch(x, w, u, b, c):
    """PyTorch's equations of a GRU layer in NumPy, gates in the order r, z, n."""
    h, outputs = np.zeros((len(x), len(u[0]))), []
    for t in range(x.shape[1]):
        r, z = (sigmoid(x[:, t] @ w[i] + b[i] + h @ u[i] + c[i]) for i in (0, 1))
        n = np.tanh(x[:, t] @ w[2] + b[2] + r * (h @ u[2] + c[2]))
        h = (1 - z) * n + z * h
        outputs.append(h)
    return np.stack(outputs, 1)


def lstm_of_pytorch(x, w, u, b, c):
    """PyTorch's equations of an LSTM layer in NumPy, gates in the order i, f, g, o."""
    h = cell = np.zeros((len(x), len(u[0])))
    outputs = []
    for t in range(x.shape[1]):
        i, f, g, o = (x[:, t] @ w[k] + b[k] + h @ u[k] + c[k] for k in range(4))
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(cell)
        outputs.append(h)
    return np.stack(outputs, 1)


LAYERS = [
    ("gru", "torch", gru_of_pytorch, 3),
    ("gru", "flax", gru_of_pytorch, 3),  # r and z have one bias, the candidate has two
    ("lstm", "torch", lstm_of_pytorch, 4),
    *in_all(("lstm", "flax", lstm_of_pytorch, 4)),
]


@pytest.mark.parametrize(("cell", "biases", "reference", "gates"), LAYERS)
def test_recurrent_layers_agree_with_pytorch(cell, biases, reference, gates):
    layer, rng = Recurrent(cell, 5, biases), np.random.default_rng(0)
    x = rng.normal(size=(3, 7, 4)).astype(np.float32)
    shapes = jax.eval_shape(layer.init, KEY, x)["params"]
    p = {name: rng.normal(size=leaf.shape) / 2 for name, leaf in shapes.items()}
    bias = p.get("recurrent_bias", np.zeros(0))
    joint = p["input_kernel"], p["recurrent_kernel"], p["input_bias"]
    joint = *joint, np.concatenate([np.zeros(5 * gates - bias.size), bias])
    expected = reference(x.astype(float), *(np.split(each, gates, -1) for each in joint))
    given = {"params": jax.tree.map(np.float32, p)}
    np.testing.assert_allclose(jax.jit(layer.apply)(given, x), expected, atol=2e-6)
