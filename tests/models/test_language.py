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
KEY = jax.random.key(0)
NAMES = "accuracy_with_oov", "accuracy_no_oov", "accuracy_no_oov_or_eos"


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


@jax.jit
def accuracies(logits, labels):
    """Those with one and with two classes for words out of the vocabulary."""
    given = Outputs(logits), {"y": labels}
    return [
        metrics["token_accuracy"](*given, counted=counted, buckets=buckets)
        for buckets in (1, 2)
        for counted in ("all", "known", "words")
    ]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_accuracies_are_means_over_the_counted_tokens(seed):
    logits, labels = texts(6, seed)
    unknown = {UNKNOWN}, {WORDS, UNKNOWN}
    excluded = [{0} | own for each in unknown for own in (set(), each, each | {BEGIN, END})]
    found = accuracies(logits, labels)
    for name, own, of_name in zip(NAMES * 2, excluded, found, strict=True):
        counted = ~np.isin(labels, [*own])
        right = counted & (logits.argmax(-1) == labels)
        assert of_name[name].total.tolist() == right.sum(-1).tolist()
        assert of_name[name].weight.tolist() == counted.sum(-1).tolist()


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


make_model = partial(models["lstm_words"], (TIME,), CLASSES, embedding=3, hidden=4, biases="flax")
LAST, EVERY = make_model(), make_model(predicts="every")
TOKENS = np.random.default_rng(1).integers(0, CLASSES, (7, TIME + 1), np.int32)
SENTENCES = {"x": TOKENS[:, :-1], "y": TOKENS[:, 1:]}  # the labels are the next tokens


@pytest.mark.all
def test_each_position_predicts_from_what_was_read_before():
    """At the last position it is the model of one word; later tokens have no effect."""
    made, x = jax.jit(EVERY.init)(KEY), SENTENCES["x"]
    changed = np.where(np.arange(TIME) < 3, x, 1)

    @jax.jit
    def logits_of(x):
        return [each.apply(made, {"x": x}, KEY, False)[0].logits for each in (EVERY, LAST)]

    (logits, of_last), (again, _) = map(logits_of, (x, changed))
    assert logits.shape == (7, TIME, CLASSES)
    np.testing.assert_allclose(logits[:, -1], of_last, atol=1e-6)
    np.testing.assert_array_equal(logits[:, :3], again[:, :3])
    assert (logits[:, 3:] != again[:, 3:]).any()


def test_wrong_texts_and_options():
    x, y = SENTENCES.values()
    check_labels(EVERY, "the examples", SENTENCES)
    with pytest.raises(ValueError, match=f"have label {y.max() + WORDS}"):
        check_labels(EVERY, "the examples", {"x": x, "y": y + WORDS})
    with pytest.raises(ValueError, match=r"x int32\[1, 5\], y int32\[1\] of one example"):
        check_labels(EVERY, "the examples", {"x": x, "y": y[:, 0]})
    flat = Outputs(jnp.zeros((2, CLASSES))), {"y": jnp.zeros(2, int)}
    for function in (losses["token_cross_entropy"], metrics["token_accuracy"], word_accuracy):
        with pytest.raises(ValueError, match=r"labels y have shape \(2,\)"):
            function(*flat)
    with pytest.raises(ValueError, match="4 classes have no word beside padding, buckets=1"):
        metrics["token_accuracy"](Outputs(jnp.zeros((2, 3, 4))), {"y": jnp.zeros((2, 3), int)})
    with pytest.raises(ValueError, match="divide_by='texts'"):
        with_loss(EVERY, "token_cross_entropy:divide_by=texts")


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def gru_of_pytorch(a, b, h, _):
    """Gates r, z and n of the inputs and of the state."""
    r, z = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
    return (1 - z) * np.tanh(a[2] + r * b[2]) + z * h, None


def lstm_of_pytorch(a, b, _, cell):
    """Gates i, f, g and o, which are sums."""
    i, f, g, o = map(np.add, a, b)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


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
    bias = np.concatenate([np.zeros(5 * gates - bias.size), bias])
    h, state, expected = np.zeros((3, 5)), np.zeros((3, 5)), []
    for t in range(7):
        of_inputs = x[:, t] @ p["input_kernel"] + p["input_bias"]
        of_state = h @ p["recurrent_kernel"] + bias
        both = (np.split(each, gates, -1) for each in (of_inputs, of_state))
        h, state = reference(*both, h, state)
        expected.append(h)
    found = jax.jit(layer.apply)({"params": jax.tree.map(np.float32, p)}, x)
    np.testing.assert_allclose(found, np.stack(expected, 1), atol=2e-6)
