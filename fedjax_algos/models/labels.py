"""The check that the labels of examples are classes of a classifier."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Batch, Problem
from fedjax_algos.core.representation import describe_tree
from fedjax_algos.core.user_functions import apply_model, losses_of
from fedjax_algos.models.loss_functions import reads_classes


def check_labels(problem: Problem, name: str, examples: Batch) -> None:
    """Checks the examples of a classifier: what it reads of them, and that labels are classes.

    A label out of range has no loss of its own: it would make the model NaN, or count as another
    class. If the loss is none of this package, whole numbers that are no classes of the outputs may
    have a meaning for it, such as examples that it leaves out. So they are refused only if their
    loss is not finite, or exactly that of a class, which indexing in JAX takes for them.

    Args:
      problem: what is learned.
      name: of the examples.
      examples: leaves [total, ...], at least one example.

    Raises:
      ValueError: for examples that the model does not take, and labels that are no whole numbers or
        not below the number of classes.
    """
    if not reads_classes(problem.loss):
        _check_own_loss(problem, name, examples)
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


def _check_own_loss(problem, name, examples):
    """Raises ValueError for labels that a loss of the user's own takes for another class."""
    leaves, tree = jax.tree.flatten(examples)
    shapes = tuple(jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype) for leaf in leaves)
    outputs = _outputs_of(problem, tree, shapes)
    logits = getattr(outputs, "logits", outputs)
    if not hasattr(logits, "shape") or len(logits.shape) < 2 or logits.shape[-1] < 2:
        return
    num_classes = logits.shape[-1]
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(examples)]
    for position, leaf in enumerate(leaves):
        if leaf.dtype.kind not in "iu" or leaf.shape[1:] != logits.shape[1:-1] or not leaf.size:
            continue
        labels = np.asarray(leaf)
        for label in int(labels.min()), int(labels.max()):
            if 0 <= label < num_classes:
                continue
            row = np.argwhere(labels == label)[0][0]
            batch = tree.unflatten([np.asarray(each[row : row + 1]) for each in leaves])
            taken = _taken_for(problem, outputs, batch, position, label, num_classes)
            if taken:
                raise ValueError(
                    f"{name} have label {label} in {jax.tree_util.keystr(paths[position])}, but "
                    f"the model has {num_classes} classes, and the loss {taken}; give whole "
                    f"numbers from 0 to {num_classes - 1}, or a model with more classes"
                )


@functools.lru_cache(maxsize=64)
def _outputs_of(problem: Problem, tree: Any, shapes: tuple) -> Any:
    """The shapes of an example's outputs; None if they cannot be computed, which a run explains."""
    key = jax.eval_shape(jax.random.key, 0)

    def outputs(model, batch, key):
        return apply_model(problem, model, batch, key, False)[0]

    try:
        model = jax.eval_shape(problem.init, key)
        return jax.eval_shape(outputs, model, tree.unflatten(shapes), key)
    except Exception:
        return None


def _taken_for(problem, outputs, batch, position, label, num_classes):
    """What a loss makes of a label that is no class, in words; an empty text if it may be right.

    At random outputs, the losses of different classes differ if the loss reads the label.
    """
    # indexing takes the last class for what is above it, and counts negative labels from the end
    classes = [0, num_classes - 1, *([label % num_classes] if -num_classes <= label < 0 else [])]
    tried = np.array([label, *classes])
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda x: x.repeat(len(tried), axis=0), batch))
    shape = len(tried), *[1] * (leaves[position].ndim - 1)
    leaves[position] = np.broadcast_to(tried.reshape(shape), leaves[position].shape)
    leaves[position] = leaves[position].astype(np.int32)
    rng = np.random.default_rng(0)

    def random(leaf):
        values = rng.normal(size=leaf.shape).repeat(len(tried), axis=0)
        return jnp.asarray(values, leaf.dtype)

    try:
        losses = np.asarray(
            losses_of(problem, jax.tree.map(random, outputs), tree.unflatten(leaves))
        )
        wrong, first, *others = losses.tolist()
    except Exception:  # which a run explains
        return ""
    if first == others[0] or not np.isfinite([first, *others]).all():
        return ""
    if not np.isfinite(wrong):
        return f"of this label is {wrong}"
    same = [known for known, loss in zip(classes, [first, *others], strict=True) if loss == wrong]
    return f"takes it for class {same[0]}" if same else ""
