"""Gives a penalty what it reads: another model's outputs, features, logits, labels, class counts.

A penalty, `(outputs, batch) -> float[batch]`, is added to the loss of local training. If it depends
on the received model or on the client's state, `client_update` makes it and calls
`local_training(problem, local, penalty)` itself; `moon.py` is an example.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_algos.base.errors import require
from fedjax_algos.core.checks import apply_model
from fedjax_algos.core.client_data import ClientData
from fedjax_algos.core.local_steps import repeat
from fedjax_algos.core.types import Batch, Key, Local, Model, Outputs, Problem


def teacher(problem: Problem, model: Model, key: Key) -> Callable[[Batch], Outputs]:
    """Returns a function from a batch to the outputs of a model, as in an evaluation.

    The model is not the one that local steps differentiate, so its outputs have no gradient there.

    Args:
      problem: the model's functions.
      model: the params and the other arrays, such as `data.model(x)`.
      key: for noise of the model in evaluation, if it has any.
    """

    def outputs_of(batch):
        return apply_model(problem, model, batch, key, False)[0]

    return outputs_of


def sown_features(outputs: Outputs) -> Any:
    """Returns the outputs' field `features`, which a classifier's module may sow, or None."""
    return getattr(outputs, "features", None)


def logits_of(outputs: Outputs) -> Any:
    """Returns the outputs' field `logits`, or the outputs themselves."""
    return getattr(outputs, "logits", outputs)


def labels_of(batch: Batch) -> jax.Array:
    """Returns the batch's array "y"."""
    return batch["y"]


def matrix(name: str, found: Any, what: str) -> jax.Array:
    """Checks that an algorithm found float[batch, number] in the outputs, and returns them."""
    if not isinstance(found, jax.Array) or found.ndim != 2:
        shape = f"of shape {found.shape}" if isinstance(found, jax.Array) else f"{found!r}"
        fix = f'sow them in the module as "features", or give features=... to {name}'
        fix = fix if what == "features" else f"give {what}=... to {name}"
        raise ValueError(f"{name} needs {what}, float[batch, number], but found {shape}; {fix}")
    return found


def class_counts(
    name: str,
    problem: Problem,
    local: Local,
    data: ClientData,
    logits: Callable[[Outputs], Any] = logits_of,
    labels: Callable[[Batch], jax.Array] = labels_of,
) -> jax.Array:
    """Counts the client's examples of each class, float[classes].

    Args:
      name: the algorithm, for messages.
      problem: the model; its logits, float[batch, classes], give the number of classes.
      local: gives the size of the pieces that are read.
      data: the client's examples.
      logits: returns the logits from the model's outputs.
      labels: returns int[batch] from a batch.

    Raises:
      ValueError: unless the model has logits, and each example one label.
    """
    width = min(local.batch_size, data.indices.shape[0])

    def outputs(model, batch, key):
        return matrix(name, logits(apply_model(problem, model, batch, key, False)[0]), "logits")

    batch, _ = data.piece(jnp.int32(0), width)
    shapes = jax.eval_shape(outputs, problem.shapes(), batch, jax.eval_shape(jax.random.key, 0))

    def add(number, counts):
        batch, mask = data.piece(number, width)
        found = labels(batch)
        text = f"{name} needs one label for each example, but found shape {found.shape}"
        require(found.shape == mask.shape, f"{text}; give labels=...")
        return counts.at[found.astype(jnp.int32)].add(mask.astype(counts.dtype))

    most = None if local.reverse is None else -(-local.reverse.max_examples // width)
    zeros = jnp.zeros(shapes.shape[1], jnp.result_type(float))
    return repeat(add, -(-data.num_examples // width), zeros, most)
