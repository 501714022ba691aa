"""Recurrent networks that read a text and predict its next symbol, at the end or at each position.

Each gate has its own matrix products inside the loop over time, which on a CPU is faster than one
product that is split into gates (`benchmarks/recurrent.py` compares the layer with `nn.RNN`).
"""

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_algos.core import Problem
from fedjax_algos.core.options import Count, Layers
from fedjax_algos.models.adapters import TEXTS, classifier, identity, model_of
from fedjax_algos.models.language import token_cross_entropy, word_accuracy
from fedjax_algos.models.layers.initialisation import (
    Initialisation,
    initialisers,
    symmetric_uniform,
)

Cell = Literal["gru", "lstm"]
Biases = Literal["torch", "flax"]
Predicts = Literal["last", "every"]


def _gru(gates, hidden, recurrent):
    """`r, z = sigmoid(...)`, `n = tanh(x W_n + r (h U_n))`, `h <- (1 - z) n + z h`."""
    reset = jax.nn.sigmoid(gates[0] + recurrent[0])
    update = jax.nn.sigmoid(gates[1] + recurrent[1])
    new = jnp.tanh(gates[2] + reset * recurrent[2])
    return ((1 - update) * new + update * hidden[0],)


def _lstm(gates, hidden, recurrent):
    """`i, f, o = sigmoid(...)`, `g = tanh(...)`, `c <- f c + i g`, `h <- o tanh(c)`."""
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
        one, and for the GRU also that of the recurrent product of the candidate.
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

        def parts(joint):
            return jnp.split(joint, num_gates, axis=-1)

        def gates(values, kernels, biases):
            both = zip(kernels, biases, strict=True)
            return [values @ kernel + bias.reshape(1, -1) for kernel, bias in both]

        input_parts = parts(kernel), parts(input_bias)
        recurrent_parts = parts(recurrent_kernel), parts(recurrent_bias)

        def advance(hidden, x):
            hidden = update(gates(x, *input_parts), hidden, gates(hidden[0], *recurrent_parts))
            return hidden, hidden[0]

        dtype = jnp.promote_types(x.dtype, kernel.dtype)
        initial = (jnp.zeros((x.shape[0], width), dtype),) * num_states
        _, outputs = jax.lax.scan(advance, initial, x.swapaxes(0, 1))
        return outputs.swapaxes(0, 1)


def _orthogonal_blocks(blocks):
    """Flax's initialisation of recurrent kernels: an orthogonal matrix for each gate."""

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
            x = nn.Dense(width, **initialisers(self.initialisation, x.shape[-1]))(x)
        self.sow("intermediates", "features", x)
        return nn.Dense(self.vocabulary, **initialisers(self.initialisation, x.shape[-1]))(x)


def _predictor(example_shape: tuple[int, ...], *fields: Any) -> Problem:
    return classifier(Reader(*fields), example_shape, inputs=identity, dtype=jnp.int32)


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

    It has 4,053,428 parameters for 10,004 classes: 10,000 words, padding, words out of the
    vocabulary, begin and end. With `biases="flax"` it has 4,050,748, as in the code of Reddi et
    al., "Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295, whose model
    it is.

    Deviations from that code: the initial parameters are those of Flax or PyTorch, not of Keras,
    which begins with a forget gate of bias 1. Padding is read like any other token; at the end of
    a text, where the task has it, no counted prediction depends on it.

    Args:
      predicts: "last" is the word after the text, with labels "y" int32[batch]. "every" is the
        token after each position, as in that code: labels are int32[batch, time], the loss is
        `token_cross_entropy`, and the accuracy is `token_accuracy` of words.
    """
    sizes = num_classes, embedding, hidden, 1, (embedding,)
    problem = _predictor(example_shape, "lstm", *sizes, biases, initialisation, predicts)
    if predicts == "last":
        return problem
    return problem._replace(loss=token_cross_entropy, metrics=word_accuracy)
