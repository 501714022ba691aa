"""The check that the labels of examples are classes of a classifier."""

import functools
from typing import Any

import jax
import numpy as np

from fedjax_algos.core import Batch, Problem
from fedjax_algos.core.representation import describe_tree
from fedjax_algos.core.user_functions import apply_model
from fedjax_algos.models.loss_functions import reads_classes


def check_labels(problem: Problem, name: str, examples: Batch) -> None:
    """Checks the examples of a classifier: what it reads of them, and that labels are classes.

    A label out of range has no loss of its own: it would make the model NaN, or count as another
    class. Problems whose loss is none of this package are not checked.

    Args:
      problem: what is learned.
      name: of the examples.
      examples: leaves [total, ...], at least one example.

    Raises:
      ValueError: for examples that the model does not take, and labels that are no whole numbers or
        not below the number of classes.
    """
    if not reads_classes(problem.loss):
        return
    leaves, tree = jax.tree.flatten(examples)
    shapes = tuple(jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype) for leaf in leaves)
    num_classes = _num_classes(problem, name, tree, shapes)
    labels = np.asarray(examples["y"])
    if labels.dtype.kind not in "iu":
        raise ValueError(
            f"{name} have labels y of type {labels.dtype}; give whole numbers from 0 to "
            f"{num_classes - 1}, the classes of the model"
        )
    low, high = labels.min(), labels.max()
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"{name} have label {low if low < 0 else high}; give whole numbers from 0 to "
            f"{num_classes - 1}, the classes of the model, or a model with more classes"
        )


@functools.lru_cache(maxsize=64)
def _num_classes(problem: Problem, name: str, tree: Any, shapes: tuple) -> int:
    """The number of logits of an example; nothing is computed."""
    batch = tree.unflatten(shapes)
    fix = "give examples {'x': [examples, ...], 'y': [examples]} of the shape of the model's inputs"
    if isinstance(batch, dict) and not {"x", "y"} <= batch.keys():
        raise ValueError(
            f"{name} hold {describe_tree(batch)} of one example, but a classifier reads x and y; "
            "name the inputs x and the labels y"
        )
    if not isinstance(batch, dict):
        raise ValueError(f"{name} hold {describe_tree(batch)} of one example; {fix}")
    key = jax.eval_shape(jax.random.key, 0)
    model = jax.eval_shape(problem.init, key)

    def logits(model, batch, key):
        return apply_model(problem, model, batch, key, False)[0].logits

    try:
        outputs = jax.eval_shape(logits, model, batch, key)
    except Exception as error:  # of the module's own layers
        raise ValueError(
            f"{name} hold {describe_tree(batch)} of one example, which the model does not take "
            f"({str(error).splitlines()[0]}); {fix}"
        ) from error
    if batch["y"].shape != outputs.shape[:-1]:
        raise ValueError(f"{name} hold {describe_tree(batch)} of one example; {fix}")
    return outputs.shape[-1]
