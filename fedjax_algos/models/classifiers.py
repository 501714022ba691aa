"""Classifiers in Flax, and the step from a Flax module to a `Problem`."""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fedjax_algos.core import Model, Problem
from fedjax_algos.registry import Range, Registry

models = Registry("model")

Width = Annotated[int, Range(1)]


class Outputs(NamedTuple):
    """A classifier's outputs for a batch."""

    logits: jax.Array  # float[batch, classes]


def classifier(module: nn.Module, example_shape: tuple[int, ...]) -> Problem:
    """A Flax module from images to logits, as a problem with cross-entropy and accuracy.

    Batches are dicts of "x" [batch, *example_shape] and "y" int32[batch]. Integer pixels are
    divided by 255 inside, so that the store can keep them as bytes.
    """

    def scaled(x):
        return x / 255 if jnp.issubdtype(x.dtype, jnp.integer) else x

    def init(key):
        return Model(module.init(key, jnp.zeros((1, *example_shape)))["params"])

    def apply(model, batch, key, training):
        del key, training
        return Outputs(module.apply({"params": model.params}, scaled(batch["x"]))), ()

    def loss(outputs, batch):
        return optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])

    def metrics(outputs, batch):
        return {"accuracy": jnp.asarray(outputs.logits.argmax(-1) == batch["y"], float)}

    return Problem(init, apply, loss, metrics)


class _Perceptron(nn.Module):
    widths: tuple[int, ...]
    activation: Callable = nn.relu

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for width in self.widths[:-1]:
            x = self.activation(nn.Dense(width)(x))
        return nn.Dense(self.widths[-1])(x)


@models
def linear(example_shape: tuple[int, ...], num_classes: int) -> Problem:
    """Multinomial logistic regression."""
    return classifier(_Perceptron((num_classes,)), example_shape)


@models
def mlp(example_shape: tuple[int, ...], num_classes: int, *, hidden: Width = 64) -> Problem:
    """One hidden layer of ReLUs."""
    return classifier(_Perceptron((hidden, num_classes)), example_shape)
