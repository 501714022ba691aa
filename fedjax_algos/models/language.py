"""Texts: loss and accuracy of the next token, and recurrent networks that predict it.

Padding never counts. Of C classes, 0 is padding. Then come the words, the tokens for words out of
the vocabulary, and the begin (C - 2) and the end (C - 1) of a text, as in the StackOverflow task of
Reddi et al., "Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295, and
its code, https://github.com/google-research/federated.

In a recurrent network each gate has its own matrix products inside the loop over time, which on a
CPU is faster than one product that is split (`benchmarks/recurrent.py` compares with `nn.RNN`).
"""

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fedjax_algos.base.errors import require
from fedjax_algos.core import Batch, Mean, MetricValues, Problem
from fedjax_algos.core.options import Count, Layers
from fedjax_algos.data.readers.texts import PADDING
from fedjax_algos.models.adapters import TEXTS, classifier, model_of
from fedjax_algos.models.layers import native
from fedjax_algos.models.layers.common import Initialisation, initialisers, symmetric_uniform
from fedjax_algos.models.layers.native import Dense
from fedjax_algos.models.outputs import Outputs, losses, metrics

Cell = Literal["gru", "lstm"]
Biases = Literal["torch", "flax"]
Predicts = Literal["last", "every"]


@losses.register
def token_cross_entropy(
    outputs: Outputs, batch: Batch, *, divide_by: Literal["tokens", "positions"] = "tokens"
) -> jax.Array:
    """Softmax cross-entropy with the next tokens of a text, without padding; float[batch].

    A text of padding alone has loss 0.

    Deviation: the code of the task calls Keras, whose mean is over all positions of a batch.

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].
      divide_by: "tokens" is the mean over a text's tokens without padding, so each text has the
        same weight in a local step. "positions" divides their sum by the number of positions, so
        each token has the same weight, and padding lowers the loss.

    Raises:
      ValueError: if the labels do not have the shape of the positions.
    """
    _check_texts(outputs, batch)
    labels, is_token = batch["y"], batch["y"] != PADDING
    entropies = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, labels)
    total = jnp.where(is_token, entropies, 0).sum(-1)
    if divide_by == "positions":
        return total / labels.shape[-1]
    return total / jnp.maximum(is_token.sum(-1), 1).astype(total.dtype)


@metrics.register
def token_accuracy(
    outputs: Outputs,
    batch: Batch,
    *,
    counted: Literal["all", "known", "words"] = "words",
    buckets: Count = 1,
) -> MetricValues:
    """Accuracy of the next token: the share of the counted tokens that have the largest logit.

    It is the mean over all tokens, so a long text counts more. The labels decide what is counted;
    any class may be predicted.

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].
      counted: "all" counts every token except padding; "known" counts words in the vocabulary, and
        a text's begin and end; "words" counts words in the vocabulary.
      buckets: number of classes for words out of the vocabulary, at least 1.

    Returns:
      "accuracy_with_oov", "accuracy_no_oov" or "accuracy_no_oov_or_eos", which the task's code has
      for "all", "known" and "words"; a `Mean` over tokens, of float[batch].

    Raises:
      ValueError: as for the loss, and for fewer classes than special tokens.
    """
    _check_texts(outputs, batch)
    labels, begin = batch["y"], outputs.logits.shape[-1] - 2
    unknown = begin - buckets  # the first class of words out of the vocabulary
    found = f"{begin + 2} classes have no word beside padding, buckets={buckets}, begin and end"
    require(unknown > 1, f"{found}; give fewer buckets or a larger vocabulary")
    is_token = labels != PADDING
    is_counted, name = {
        "all": (is_token, "accuracy_with_oov"),
        "known": (is_token & ((labels < unknown) | (labels >= begin)), "accuracy_no_oov"),
        "words": (is_token & (labels < unknown), "accuracy_no_oov_or_eos"),
    }[counted]
    correct = is_counted & (outputs.logits.argmax(-1) == labels)
    return {name: Mean(*(jnp.asarray(flags.sum(-1), float) for flags in (correct, is_counted)))}


def word_accuracy(outputs: Outputs, batch: Batch) -> MetricValues:
    """Returns `token_accuracy` of words as "accuracy", the metric that runs compare."""
    (mean,) = token_accuracy(outputs, batch).values()
    return {"accuracy": mean}


def _check_texts(outputs, batch):
    labels, logits = batch["y"].shape, outputs.logits.shape
    fix = "give labels [batch, time] and logits [batch, time, classes], as of predicts=every"
    fits = len(labels) == 2 and labels == logits[:-1]
    require(fits, f"the labels y have shape {labels} and the logits {logits}; {fix}")


def _gru(gates, hidden, recurrent):
    """Computes `r, z = sigmoid(...)`, `n = tanh(x W_n + r (h U_n))`, `h <- (1 - z) n + z h`."""
    reset = jax.nn.sigmoid(gates[0] + recurrent[0])
    update = jax.nn.sigmoid(gates[1] + recurrent[1])
    new = jnp.tanh(gates[2] + reset * recurrent[2])
    return ((1 - update) * new + update * hidden[0],)


def _lstm(gates, hidden, recurrent):
    """Computes `i, f, o = sigmoid(...)`, `g = tanh(...)`, `c <- f c + i g`, `h <- o tanh(c)`."""
    enter, forget, new, leave = map(jnp.add, gates, recurrent)
    cell = jax.nn.sigmoid(forget) * hidden[1] + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return jax.nn.sigmoid(leave) * jnp.tanh(cell), cell


class Recurrent(nn.Module):
    """A GRU or LSTM layer from float[batch, time, features] to float[batch, time, width].

    Hidden states are 0 at the start.

    Attributes:
      cell: "gru" or "lstm".
      width: width of the hidden state.
      biases: "torch" has a bias for the input and one for the recurrent product; "flax" has only
        the input's, and a GRU has a recurrent one for the candidate.
      initialisation: "torch" draws all params uniformly, "flax" as Flax does.
    """

    cell: Cell
    width: int
    biases: Biases = "torch"
    initialisation: Initialisation = "flax"

    @nn.compact
    def __call__(self, x):
        width = self.width
        update, num_gates, num_states = {"gru": (_gru, 3, 1), "lstm": (_lstm, 4, 2)}[self.cell]
        if self.initialisation == "torch":
            inputs = recurrents = bias = symmetric_uniform(width**-0.5)
        else:
            inputs, bias = nn.initializers.lecun_normal(), nn.initializers.zeros
            recurrents = _orthogonal_blocks(num_gates)

        def param(name, draw, *shape):
            return self.param(name, draw, shape, jnp.float32)  # as in Flax's layers, also with x64

        kernel = param("input_kernel", inputs, x.shape[-1], num_gates * width)
        input_bias = param("input_bias", bias, num_gates * width)
        recurrent_kernel = param("recurrent_kernel", recurrents, width, num_gates * width)
        if self.biases == "torch":
            recurrent_bias = param("recurrent_bias", bias, num_gates * width)
        elif self.cell == "gru":
            candidate = param("recurrent_bias", bias, width)
            recurrent_bias = jnp.concatenate([jnp.zeros(2 * width, candidate.dtype), candidate])
        else:
            recurrent_bias = jnp.zeros(num_gates * width, x.dtype)

        is_native = native.applies(x, kernel)  # then one product of all gates is faster
        multiply = native.multiply if is_native else jnp.matmul

        def parts(joint):
            return jnp.split(joint, num_gates, axis=-1)

        def gates_of(kernel, bias):
            pairs = [(kernel, bias)]
            pairs = pairs if is_native else [*zip(parts(kernel), parts(bias), strict=True)]

            def gates(values):
                sums = [multiply(values, part) + own.reshape(1, -1) for part, own in pairs]
                return parts(sums[0]) if is_native else sums

            return gates

        of_input = gates_of(kernel, input_bias)
        of_state = gates_of(recurrent_kernel, recurrent_bias)

        def advance(hidden, x):
            hidden = update(of_input(x), hidden, of_state(hidden[0]))
            return hidden, hidden[0]

        dtype = jnp.promote_types(x.dtype, kernel.dtype)
        initial = (jnp.zeros((x.shape[0], width), dtype),) * num_states
        _, outputs = jax.lax.scan(advance, initial, x.swapaxes(0, 1))
        return outputs.swapaxes(0, 1)


def _orthogonal_blocks(blocks):
    """Returns Flax's initialiser of recurrent kernels: an orthogonal matrix for each gate."""

    def draw(key, shape, dtype):
        make, block = nn.initializers.orthogonal(), (shape[0], shape[1] // blocks)
        parts = [make(key, block, dtype) for key in jax.random.split(key, blocks)]
        return jnp.concatenate(parts, axis=1)

    return draw


class Reader(nn.Module):
    """An embedding, recurrent layers, and dense layers on the last or on every hidden state."""

    cell: Cell
    vocabulary: int  # number of symbols
    embedding: int  # width of the embedding
    hidden: int  # width of the recurrent layers
    layers: int  # number of recurrent layers
    widths: tuple[int, ...]  # of the dense layers before the last one
    biases: Biases
    initialisation: Initialisation
    predicts: Predicts = "last"

    @nn.compact
    def __call__(self, x):
        is_torch = self.initialisation == "torch"
        options = {"embedding_init": nn.initializers.normal(1.0)} if is_torch else {}
        x = nn.Embed(self.vocabulary, self.embedding, **options)(x.astype(jnp.int32))
        for _ in range(self.layers):
            x = Recurrent(self.cell, self.hidden, self.biases, self.initialisation)(x)
        x = x if self.predicts == "every" else x[:, -1]
        for width in self.widths:
            x = Dense(width, **initialisers(self.initialisation, x.shape[-1]))(x)
        self.sow("intermediates", "features", x)
        return Dense(self.vocabulary, **initialisers(self.initialisation, x.shape[-1]))(x)


def _predictor(example_shape: tuple[int, ...], *fields: Any) -> Problem:
    return classifier(Reader(*fields), example_shape, inputs=lambda x: x, dtype=jnp.int32)


@model_of(TEXTS)
def gru(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    embedding: Count = 8,
    hidden: Count = 128,
    layers: Layers = 2,
    biases: Biases = "torch",
    initialisation: Initialisation = "flax",
) -> Problem:
    """FedGBO's network for Shakespeare: an embedding of 8 and two GRU layers of 128.

    It has 162,887 parameters for 79 symbols.

    Args:
      example_shape, num_classes: shape of one text of integer codes, [length], and the number of
        symbols, which are inputs and labels.
      embedding: width of the embedding, at least 1.
      hidden, layers: width and number of the recurrent layers, at least 1.
      biases: biases of a layer, as in PyTorch or as in Flax; see `Recurrent`.
      initialisation: distribution of the initial parameters, as in Flax or as in PyTorch.
    """
    sizes = num_classes, embedding, hidden, layers, ()
    return _predictor(example_shape, "gru", *sizes, biases, initialisation)


@model_of(TEXTS)
def lstm(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    embedding: Count = 8,
    hidden: Count = 100,
    layers: Layers = 2,
    biases: Biases = "torch",
    initialisation: Initialisation = "flax",
) -> Problem:
    """GHBM's network for Shakespeare: an embedding of 8 and two LSTM layers of 100.

    It has 133,520 parameters for 80 symbols.

    Args:
      example_shape, num_classes, embedding, hidden, layers, biases, initialisation: as for `gru`.
    """
    sizes = num_classes, embedding, hidden, layers, ()
    return _predictor(example_shape, "lstm", *sizes, biases, initialisation)


@model_of(TEXTS)
def lstm_words(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    embedding: Count = 96,
    hidden: Count = 670,
    biases: Biases = "torch",
    initialisation: Initialisation = "flax",
    predicts: Predicts = "last",
) -> Problem:
    """GHBM's network for StackOverflow: an embedding and a projection of 96, and an LSTM of 670.

    It has 4,053,428 parameters for 10,004 classes: 10,000 words, padding, other words, begin and
    end. With `biases="flax"` it has 4,050,748, as in the code of Reddi et al., "Adaptive Federated
    Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295, whose model it is.

    Deviations from that code: parameters start as in Flax or PyTorch, not as in Keras, where the
    forget gate has bias 1 at first. Padding is read like any other token. The task has it at the
    end of a text, where no counted prediction depends on it.

    Args:
      example_shape, num_classes, embedding, hidden, biases, initialisation: as for `gru`.
      predicts: "last" predicts the word after the text, with labels "y" int32[batch]. "every"
        predicts the token after each position, as in that code: labels are int32[batch, time], the
        loss is `token_cross_entropy`, and the accuracy is `token_accuracy` of words.
    """
    sizes = num_classes, embedding, hidden, 1, (embedding,)
    problem = _predictor(example_shape, "lstm", *sizes, biases, initialisation, predicts)
    if predicts == "last":
        return problem
    return problem._replace(loss=token_cross_entropy, metrics=word_accuracy)
