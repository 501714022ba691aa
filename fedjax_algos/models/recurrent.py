"""Recurrent networks that read a text and predict its next symbol.

Each gate has products of its own inside the loop over time. On a CPU that is faster, mapped over
clients or not, than one product that is then cut into gates, and than multiplying the whole input
before the loop (`benchmarks/recurrent.py` compares the layer with `nn.RNN`).
"""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_algos.core import Problem
from fedjax_algos.models.adapters import as_is, classifier
from fedjax_algos.models.layers.initialisation import Initialisation, starts, symmetric_uniform
from fedjax_algos.models.registry import Width, models

Cell = Literal["gru", "lstm"]
Biases = Literal["torch", "flax"]


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
    """A GRU or LSTM layer over [batch, time, width], from hidden states of 0.

    `biases="torch"` has a bias of the input and one of the recurrent product, as PyTorch has;
    "flax" has only what differs: one, and for the GRU also that of the recurrent candidate.
    """

    cell: Cell
    width: int
    biases: Biases = "torch"
    initialisation: Initialisation = "flax"

    @nn.compact
    def __call__(self, x):
        width = self.width
        step, size, states = {"gru": (_gru, 3, 1), "lstm": (_lstm, 4, 2)}[self.cell]
        if self.initialisation == "torch":
            inputs = recurrents = bias = symmetric_uniform(width**-0.5)
        else:
            inputs, bias = nn.initializers.lecun_normal(), nn.initializers.zeros
            recurrents = _orthogonal_blocks(size)
        kernel = self.param("input_kernel", inputs, (x.shape[-1], size * width))
        input_bias = self.param("input_bias", bias, (size * width,))
        recurrent_kernel = self.param("recurrent_kernel", recurrents, (width, size * width))
        if self.biases == "torch":
            recurrent_bias = self.param("recurrent_bias", bias, (size * width,))
        elif self.cell == "gru":
            candidate = self.param("recurrent_bias", bias, (width,))
            recurrent_bias = jnp.concatenate([jnp.zeros(2 * width, candidate.dtype), candidate])
        else:
            recurrent_bias = jnp.zeros(size * width, x.dtype)

        def gates_of(joint):
            return jnp.split(joint, size, axis=-1)

        layers = [
            list(zip(gates_of(k), gates_of(b), strict=True))
            for k, b in ((kernel, input_bias), (recurrent_kernel, recurrent_bias))
        ]

        def turn(hidden, x):
            gates, recurrent = (
                [values @ part + bias.reshape(1, -1) for part, bias in layer]
                for values, layer in zip((x, hidden[0]), layers, strict=True)
            )
            hidden = step(gates, hidden, recurrent)
            return hidden, hidden[0]

        by_time = x.swapaxes(0, 1)
        start = (jnp.zeros((x.shape[0], width), x.dtype),) * states
        _, outputs = jax.lax.scan(turn, start, by_time)
        return outputs.swapaxes(0, 1)


def _orthogonal_blocks(blocks):
    """Flax's start of recurrent kernels: an orthogonal matrix for each gate."""

    def draw(key, shape, dtype=jnp.float32):
        make = nn.initializers.orthogonal()
        parts = [
            make(key, (shape[0], shape[1] // blocks), dtype)
            for key in jax.random.split(key, blocks)
        ]
        return jnp.concatenate(parts, axis=1)

    return draw


class Reader(nn.Module):
    """Embedding, recurrent layers, and dense layers on the last hidden state."""

    cell: Cell
    vocabulary: int
    embedding: int
    hidden: int
    layers: int
    widths: tuple[int, ...]
    biases: Biases
    initialisation: Initialisation

    @nn.compact
    def __call__(self, x):
        start = nn.initializers.normal(1.0) if self.initialisation == "torch" else None
        options = {"embedding_init": start} if start else {}
        x = nn.Embed(self.vocabulary, self.embedding, **options)(x.astype(jnp.int32))
        for _ in range(self.layers):
            x = Recurrent(self.cell, self.hidden, self.biases, self.initialisation)(x)
        x = x[:, -1]
        for width in self.widths:
            x = nn.Dense(width, **starts(self.initialisation, x.shape[-1]))(x)
        self.sow("intermediates", "features", x)
        return nn.Dense(self.vocabulary, **starts(self.initialisation, x.shape[-1]))(x)


def _reader(example_shape, num_classes, *settings):
    module = Reader(settings[0], num_classes, *settings[1:])
    return classifier(module, example_shape, inputs=as_is, dtype=jnp.int32)


@models
def gru(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    embedding: Width = 8,
    hidden: Width = 128,
    layers: Width = 2,
    biases: Biases = "torch",
    initialisation: Initialisation = "flax",
) -> Problem:
    """FedGBO's for Shakespeare: embedding 8, two GRU layers of 128 (79 symbols: 162,887)."""
    settings = ("gru", embedding, hidden, layers, (), biases, initialisation)
    return _reader(example_shape, num_classes, *settings)


@models
def lstm(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    embedding: Width = 8,
    hidden: Width = 100,
    layers: Width = 2,
    biases: Biases = "torch",
    initialisation: Initialisation = "flax",
) -> Problem:
    """GHBM's for Shakespeare: embedding 8, two LSTM layers of 100 (80 symbols: 133,520)."""
    settings = ("lstm", embedding, hidden, layers, (), biases, initialisation)
    return _reader(example_shape, num_classes, *settings)


@models
def lstm_words(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    embedding: Width = 96,
    hidden: Width = 670,
    biases: Biases = "torch",
    initialisation: Initialisation = "flax",
) -> Problem:
    """GHBM's for StackOverflow: embedding and projection 96, an LSTM of 670 (10,004: 4,053,428)."""
    settings = ("lstm", embedding, hidden, 1, (embedding,), biases, initialisation)
    return _reader(example_shape, num_classes, *settings)
