"""From a Flax module, Linen or NNX, to a `Problem` of classification."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.traverse_util import flatten_dict

from fedjax_algos.core import Batch, Model, Problem

Inputs = Callable[[jax.Array], jax.Array]


class Outputs(NamedTuple):
    """A classifier's outputs for a batch."""

    logits: jax.Array  # float[batch, classes]
    features: Any = ()  # float[batch, width]: what enters the last layer, where the module sows it


def scale_pixels(x: jax.Array) -> jax.Array:
    """Integer pixels divided by 255, floats as they are: the store can keep images as bytes."""
    return x / 255 if jnp.issubdtype(x.dtype, jnp.integer) else x


def as_is(x: jax.Array) -> jax.Array:
    """The inputs as they are stored, such as the codes of a text."""
    return x


def cross_entropy(outputs: Outputs, batch: Batch) -> jax.Array:
    """float[batch]: softmax cross-entropy with the labels `batch["y"]`."""
    return optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])


def accuracy(outputs: Outputs, batch: Batch) -> dict[str, jax.Array]:
    """float[batch]: 1 where the largest logit is the label's."""
    return {"accuracy": jnp.asarray(outputs.logits.argmax(-1) == batch["y"], float)}


def classifier(
    module: nn.Module,
    example_shape: tuple[int, ...],
    *,
    inputs: Inputs = scale_pixels,
    dtype: Any = jnp.float32,
) -> Problem:
    """A Linen module from inputs to logits, as a problem with cross-entropy and accuracy.

    Batches are dicts of "x" [batch, *example_shape] and "y" int32[batch]. Collections other than
    "params" become the model's statistics and are updated in training. The module is told of
    training by its argument `training`, `train` or `deterministic`, if it has one, and of short
    batches by `mask` (bool[batch], for BatchNorm); its dropout is keyed by client, visit and step.
    What it sows as "features" are the outputs' features.

    Args:
      module: called with inputs of the shape [batch, *example_shape].
      example_shape: of one example.
      inputs: applied first. For augmentation see `preprocessed`, whose floats pass as they are.
      dtype: of the example that initialises the module; an integer type for codes.
    """
    known = inspect.signature(type(module).__call__).parameters

    def options(training, mask=None):
        flags = {"training": training, "train": training, "deterministic": not training}
        chosen = {name: flag for name, flag in flags.items() if name in known}
        return chosen | ({"mask": mask} if "mask" in known else {})

    def init(key):
        blank = inputs(jnp.zeros((1, *example_shape), dtype))
        variables = module.init({"params": key, "dropout": key}, blank, **options(False))
        statistics = {k: v for k, v in variables.items() if k not in ("params", "intermediates")}
        return Model(variables["params"], statistics or ())

    def apply(model, batch, key, training):
        statistics = model.statistics or {}
        logits, changed = module.apply(
            {"params": model.params, **statistics},
            inputs(batch["x"]),
            **options(training, batch.get("mask")),
            rngs={"dropout": key},
            mutable=[*(statistics if training else ()), "intermediates"],
        )
        sown = flatten_dict(changed.pop("intermediates", {}))
        features = [values[0] for path, values in sown.items() if path[-1] == "features"]
        return Outputs(logits, *features), (dict(changed) if training else statistics) or ()

    return Problem(init, apply, cross_entropy, accuracy)


def nnx_classifier(
    constructor: Callable[[nnx.Rngs], nnx.Module], *, inputs: Inputs = scale_pixels
) -> Problem:
    """An NNX module from inputs to logits, as a problem with cross-entropy and accuracy.

    The module is made anew where it is applied, with the step's key for its random streams, and
    then given the params and statistics; the compiler removes the initialisation that is thereby
    unused. So no NNX object lives in a loop.

    Args:
      constructor: makes the module from its random streams, like `lambda rngs: Net(rngs=rngs)`.
      inputs: as for `classifier`.
    """

    def init(key):
        module = constructor(nnx.Rngs(key))
        statistics = nnx.state(module, nnx.BatchStat)
        return Model(
            nnx.to_pure_dict(nnx.state(module, nnx.Param)), nnx.to_pure_dict(statistics) or ()
        )

    def apply(model, batch, key, training):
        module = constructor(nnx.Rngs(key))
        for kind, values in ((nnx.Param, model.params), (nnx.BatchStat, model.statistics)):
            state = nnx.state(module, kind)
            nnx.replace_by_pure_dict(state, values or {})
            nnx.update(module, state)
        module.train() if training else module.eval()
        logits = module(inputs(batch["x"]))
        return Outputs(logits), nnx.to_pure_dict(nnx.state(module, nnx.BatchStat)) or ()

    return Problem(init, apply, cross_entropy, accuracy)
