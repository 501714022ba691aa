"""Outputs of classifiers, losses and metrics by name, and checks of labels."""

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import describe, describe_tree
from fedjax_algos.core import Batch, ClassMean, MetricValues, Problem
from fedjax_algos.core.checks import apply_model, losses_of
from fedjax_algos.core.options import Count, Decay, NonNegative
from fedjax_algos.core.registry import Registry
from fedjax_algos.data.federated_data import is_readable

losses = Registry[jax.Array]("loss", jax.Array)  # (outputs, batch, *, ...) -> float[batch]
# (outputs, batch, *, ...) -> {name: float[batch] or Mean}, as `Problem.metrics`
metrics = Registry[MetricValues]("metric", dict)


class Outputs(NamedTuple):
    """A classifier's outputs for a batch."""

    logits: jax.Array  # float[batch, ..., classes]: a row for each label
    features: Any = ()  # float[batch, width]: inputs of the last layer, if the module sows them

    def __repr__(self) -> str:
        return describe(self, **{name: describe_tree(x) for name, x in self._asdict().items()})


def mean_over_labels(values: jax.Array) -> jax.Array:
    """Averages over the labels of each example: float[batch, ...] to float[batch]."""
    return values.mean(range(1, values.ndim)) if values.ndim > 1 else values


@losses.register
def cross_entropy(outputs: Outputs, batch: Batch, *, label_smoothing: Decay = 0.0) -> jax.Array:
    """Softmax cross-entropy with the labels, float[batch].

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].
      label_smoothing: the share of the label, from 0 to below 1, that is spread over all classes.
    """
    of_label = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])
    if not label_smoothing:
        return mean_over_labels(of_label)
    of_all = -jax.nn.log_softmax(outputs.logits).mean(-1)
    return mean_over_labels((1 - label_smoothing) * of_label + label_smoothing * of_all)


@losses.register
def focal(outputs: Outputs, batch: Batch, *, gamma: NonNegative = 2.0) -> jax.Array:
    """Focal loss: `-(1 - p)^gamma log p`, where p is the label's probability.

    Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017,
    https://arxiv.org/abs/1708.02002, without the weights of classes.

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].
      gamma: at least 0. A large one plays down examples with a likely label; 0 is cross-entropy.
    """
    entropy = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])  # -log p
    # at p = 1 the derivative of the power would be infinite
    others = jnp.maximum(-jnp.expm1(-entropy), jnp.finfo(entropy.dtype).eps)
    return mean_over_labels(others**gamma * entropy)


@losses.register
def brier(outputs: Outputs, batch: Batch) -> jax.Array:
    """Brier score: `sum_k (p_k - 1[k = y])^2`, the squared error of the probabilities.

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].
    """
    return _squared_error(jax.nn.softmax(outputs.logits), batch)


@losses.register
def squared_error(outputs: Outputs, batch: Batch) -> jax.Array:
    """Squared error of the logits: `sum_k (z_k - 1[k = y])^2`.

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].
    """
    return _squared_error(outputs.logits, batch)


def _squared_error(values, batch):
    labels = jax.nn.one_hot(batch["y"], values.shape[-1], dtype=values.dtype)
    return mean_over_labels(optax.losses.squared_error(values, labels).sum(-1))


@losses.register
def hinge(outputs: Outputs, batch: Batch) -> jax.Array:
    """Multiclass hinge loss: `max_k (z_k + 1[k != y]) - z_y`, of Crammer and Singer.

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].
    """
    return mean_over_labels(optax.losses.multiclass_hinge_loss(outputs.logits, batch["y"]))


@metrics.register
def accuracy(outputs: Outputs, batch: Batch) -> MetricValues:
    """Accuracy: 1 if the label has the largest logit, else 0.

    The first of equal logits counts as the largest.

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].

    Returns:
      "accuracy", float[batch].
    """
    correct = outputs.logits.argmax(-1) == batch["y"]
    return {"accuracy": mean_over_labels(jnp.asarray(correct, float))}


@metrics.register
def top_k_accuracy(outputs: Outputs, batch: Batch, *, k: Count = 5) -> MetricValues:
    """Top-k accuracy: 1 if the label is among the k classes with the largest logits, else 0.

    Among equal logits the first classes count as larger, as in `accuracy`; scikit-learn's
    `top_k_accuracy_score` prefers the last classes.

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].
      k: number of classes, at least 1 and at most all.

    Returns:
      "top_5_accuracy" for k = 5, float[batch].

    Raises:
      ValueError: if k is above the number of classes.
    """
    _, largest = jax.lax.top_k(outputs.logits, k)
    correct = (largest == batch["y"][..., None]).any(-1)
    return {f"top_{k}_accuracy": mean_over_labels(jnp.asarray(correct, float))}


@metrics.register
def balanced_accuracy(outputs: Outputs, batch: Batch) -> MetricValues:
    """Balanced accuracy: the mean over classes of the accuracy on the class's labels.

    Classes without labels are left out, as in scikit-learn's `balanced_accuracy_score`.

    Args:
      outputs, batch: logits float[batch, ..., classes] and labels "y", int32[batch, ...].

    Returns:
      "balanced_accuracy", a `ClassMean` of float[batch, classes].
    """
    labels, logits = batch["y"], outputs.logits
    correct = jnp.asarray(logits.argmax(-1) == labels, float)
    weight = jax.nn.one_hot(labels, logits.shape[-1], dtype=correct.dtype)
    total, others = correct[..., None] * weight, range(1, labels.ndim)
    return {"balanced_accuracy": ClassMean(total.sum(others), weight.sum(others))}


def with_loss(problem: Problem, loss: str) -> Problem:
    """Returns the problem with another loss, in training and in evaluation.

    Args:
      problem: a classifier, or any problem for a custom loss.
      loss: the name of a loss with its options, as in "focal:gamma=2"; or a custom function,
        `FILE.py:NAME` or `package.module:NAME`: `(outputs, batch, *, ...) -> float[batch]`.

    Raises:
      ValueError: for an unknown name or option, a value out of range, or a loss of this package for
        a problem with a custom loss.
    """
    name, values = losses.parse(loss)
    text = f"loss={loss!r} is for classifiers, but the model has a loss of its own; leave loss out"
    fits = ":" in name or _reads_classes(problem.loss)
    require(fits, f"{text}, or give a function of your own")
    return problem._replace(loss=_with_options(losses[name], frozenset(values.items())))


@functools.lru_cache(maxsize=1024)
def _with_options(function, values):
    """Returns the same object for equal options, so that programs are shared."""
    return functools.partial(function, **dict(values)) if values else function


def _reads_classes(loss: Callable) -> bool:
    """Returns whether a loss is of this package, where labels "y" are classes of the logits."""
    of_package = [function for name, function in losses.items() if ":" not in name]
    return getattr(loss, "func", loss) in of_package


def with_metrics(problem: Problem, metrics: str) -> Problem:
    """Returns the problem with more metrics; its own metrics and `loss` are unchanged.

    Args:
      problem: a classifier, or any problem for custom metrics.
      metrics: names with their options, separated by commas, as in
        "balanced_accuracy,top_k_accuracy:k=3"; or custom functions, as for `with_loss`:
        `(outputs, batch, *, ...) -> {name: float[batch] or Mean}`, as `Problem.metrics`.

    Raises:
      ValueError: for an unknown name or option, a value out of range, or a metric given twice; when
        evaluated, for two metrics of the same name.
    """
    return problem._replace(metrics=_joined(problem.metrics, *_metrics_of(metrics)))


def _metrics_of(text):
    parsed = metrics.parse_all(text)
    return [_with_options(metrics[name], frozenset(values.items())) for name, values in parsed]


@functools.lru_cache(maxsize=1024)
def _joined(*functions):
    """Returns the same object for equal metrics, so that programs are shared."""

    def joined(outputs: Outputs, batch: Batch) -> MetricValues:
        found: dict = {}
        for function in functions:
            new = function(outputs, batch)
            twice = ", ".join(map(repr, sorted(found.keys() & new.keys())))
            require(not twice, f"{twice} is measured twice; leave out one of the metrics")
            found |= new
        return found

    return joined


def check_labels(problem: Problem, name: str, examples: Batch) -> None:
    """Raises ValueError if a model rejects the examples, or if labels are not classes."""
    leaves, tree = jax.tree.flatten(examples)
    shapes = tuple(jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype) for leaf in leaves)
    if not _reads_classes(problem.loss):
        return _check_own_loss(problem, name, leaves, tree, shapes)
    found = f"{name} hold {describe_tree(jax.tree.unflatten(tree, shapes))} of one example"
    fix = "give examples {'x': [examples, ...], 'y': [examples]} of the shape of the model's inputs"
    try:
        logits = _outputs_of(problem, tree, shapes).logits
        labels = np.asarray(examples["y"])
        fits = (1, *labels.shape[1:]) == logits.shape[:-1]
    except Exception as error:  # of the module's own layers
        reason = str(error).splitlines()[0]
        raise ValueError(f"{found}, which the model does not accept ({reason}); {fix}") from error
    require(fits, f"{found}, for which the model returns logits {list(logits.shape)}; {fix}")
    fix = f"give whole numbers from 0 to {logits.shape[-1] - 1}, or a model with more classes"
    for label in (labels.min(), labels.max()) if labels.size else ():
        is_class = labels.dtype.kind in "iu" and 0 <= label < logits.shape[-1]
        require(is_class, f"{name} have label {label} of type {labels.dtype} in y; {fix}")


class LabelCheck:
    """Calls `check_labels` on examples that the host can read, once for each store."""

    def __init__(self, problem: Problem, name: str):
        self.problem, self.name = problem, name
        self._checked: list[weakref.ref] = []

    def __call__(self, examples: Batch) -> None:
        """Raises as `check_labels`."""
        leaves = jax.tree.leaves(examples)
        known = [id(reference()) for reference in self._checked]
        if known != list(map(id, leaves)) and all(map(is_readable, leaves)):
            check_labels(self.problem, self.name, examples)
            # NumPy arrays are checked again: their values may have changed
            self._checked = [weakref.ref(leaf) for leaf in leaves if isinstance(leaf, jax.Array)]


@functools.lru_cache(maxsize=64)
def _outputs_of(problem: Problem, tree: Any, shapes: tuple) -> Any:
    """Returns the shapes of an example's outputs; nothing is computed."""

    def outputs(key, batch):
        return apply_model(problem, problem.init(key), batch, key, False)[0]

    return jax.eval_shape(outputs, jax.eval_shape(jax.random.key, 0), tree.unflatten(shapes))


def _check_own_loss(problem, name, leaves, tree, shapes):
    """Raises ValueError for labels that a custom loss mistakes for another class."""
    # A custom loss may give a meaning to other integers, such as examples to leave out. Such a
    # label is refused if its loss is not finite, or equals the loss of a class by wrong indexing.
    try:
        outputs = _outputs_of(problem, tree, shapes)
        *shape, num_classes = getattr(outputs, "logits", outputs).shape
    except Exception:  # a run explains it, or there are no logits
        return
    with_paths = jax.tree_util.tree_leaves_with_path(tree.unflatten(leaves))
    for position, (path, leaf) in enumerate(with_paths if shape and num_classes > 1 else ()):
        if leaf.dtype.kind not in "iu" or list(leaf.shape[1:]) != shape[1:] or not leaf.size:
            continue
        labels = np.asarray(leaf)
        for label in int(labels.min()), int(labels.max()):
            if 0 <= label < num_classes:
                continue
            row = np.argwhere(labels == label)[0][0]
            example = [np.asarray(each[row : row + 1]) for each in leaves]
            taken = _taken_for(problem, outputs, example, tree, position, label, num_classes)
            found = f"{name} have label {label} in {jax.tree_util.keystr(path)}, but the model has"
            found += f" {num_classes} classes, and the loss {taken}"
            fix = f"give whole numbers from 0 to {num_classes - 1}, or a model with more classes"
            require(not taken, f"{found}; {fix}")


def _taken_for(problem, outputs, example, tree, position, label, num_classes):
    """Describes a wrong loss of a label that is not a class; "" if the loss may be right."""
    # JAX reads index C or more as the last class, and counts negative ones from the end
    classes = [0, num_classes - 1, *([label % num_classes] if -num_classes <= label < 0 else [])]
    tried = np.array([label, *classes]).astype(np.int32)
    batch = [each.repeat(len(tried), axis=0) for each in example]
    shape = len(tried), *[1] * (batch[position].ndim - 1)
    batch[position] = np.broadcast_to(tried.reshape(shape), batch[position].shape)
    rng = np.random.default_rng(0)  # with random outputs, each class has its own loss

    def random(leaf):
        return jnp.asarray(rng.normal(size=leaf.shape).repeat(len(tried), axis=0), leaf.dtype)

    try:
        values = losses_of(problem, jax.tree.map(random, outputs), tree.unflatten(batch))
        wrong, *known = np.asarray(values).tolist()
    except Exception:  # a run explains it
        return ""
    if known[0] == known[1] or not np.isfinite(known).all():
        return ""
    if not np.isfinite(wrong):
        return f"of this label is {wrong}"
    return f"takes it for class {classes[known.index(wrong)]}" if wrong in known else ""
