"""Outputs of classifiers, their losses and metrics by name, and labels that are classes of them."""

import functools
import inspect
import re
import textwrap
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

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

F = TypeVar("F", bound=Callable)
P = ParamSpec("P")
T = TypeVar("T")
_OUTPUTS_AND_LABELS = {
    "outputs": "the model's outputs, with logits float[batch, ..., classes].",
    "batch": """a batch with "y", int32[batch, ...], the labels: one of each example, or more, such
        as those of the voxels of a mask, or the tokens after the positions of a text.""",
}


class Outputs(NamedTuple):
    """A classifier's outputs for a batch."""

    logits: jax.Array  # float[batch, ..., classes]: of each label of an example
    features: Any = ()  # float[batch, width]: inputs of the last layer, if the module sows them

    def __repr__(self) -> str:
        return describe(self, **{name: describe_tree(x) for name, x in self._asdict().items()})


Loss: TypeAlias = Callable[[Outputs, Batch], jax.Array]


def with_args(entries: Mapping[str, str]) -> Callable[[F], F]:
    """Decorates a function: adds to its docstring the entries of `Args` that it leaves out."""

    def entry(name: str) -> str:
        text = " ".join(f"{name}: {entries[name]}".split())
        return textwrap.fill(text, 98, initial_indent="  ", subsequent_indent="    ")

    def decorate(function: F) -> F:
        text = inspect.cleandoc(function.__doc__ or "")
        before, own, after = re.fullmatch(  # type: ignore[union-attr]
            r"(.*?)(?:\n\nArgs:\n(.*?))?(\n\n(?:Returns|Raises):\n.*)?", text, re.DOTALL
        ).groups()
        found = re.finditer(r"^  (\w+):.*(?:\n    .*)*", own or "", re.MULTILINE)
        written = {each[1]: each[0] for each in found}
        names = inspect.signature(function).parameters
        lines = [written[name] if name in written else entry(name) for name in names]
        function.__doc__ = "\n".join([before, "", "Args:", *lines]) + (after or "")
        return function

    return decorate


def of_classifiers(registry: Registry[T]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a loss or a metric: documents outputs and labels, and registers it."""
    return lambda function: registry.register(with_args(_OUTPUTS_AND_LABELS)(function))


def mean_over_labels(values: jax.Array) -> jax.Array:
    """The mean over the labels of each example: from float[batch, ...] to float[batch]."""
    return values.mean(range(1, values.ndim)) if values.ndim > 1 else values


@of_classifiers(losses)
def cross_entropy(outputs: Outputs, batch: Batch, *, label_smoothing: Decay = 0.0) -> jax.Array:
    """Softmax cross-entropy with the labels, float[batch].

    Args:
      label_smoothing: a share, from 0 to below 1, of the label that is divided over all classes.
    """
    of_label = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])
    if not label_smoothing:
        return mean_over_labels(of_label)
    of_all = -jax.nn.log_softmax(outputs.logits).mean(-1)
    return mean_over_labels((1 - label_smoothing) * of_label + label_smoothing * of_all)


@of_classifiers(losses)
def focal(outputs: Outputs, batch: Batch, *, gamma: NonNegative = 2.0) -> jax.Array:
    """Focal loss: `-(1 - p)^gamma log p`, where p is the label's probability.

    Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017,
    https://arxiv.org/abs/1708.02002, without the weights of classes.

    Args:
      gamma: at least 0: how little examples count whose label is likely; 0 is cross-entropy.
    """
    entropy = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])  # -log p
    # at p = 1 the derivative of the power would be infinite
    others = jnp.maximum(-jnp.expm1(-entropy), jnp.finfo(entropy.dtype).eps)
    return mean_over_labels(others**gamma * entropy)


@of_classifiers(losses)
def brier(outputs: Outputs, batch: Batch) -> jax.Array:
    """Brier score: `sum_k (p_k - 1[k = y])^2`, the squared error of the probabilities."""
    return _squared_error(jax.nn.softmax(outputs.logits), batch)


@of_classifiers(losses)
def squared_error(outputs: Outputs, batch: Batch) -> jax.Array:
    """Squared error of the logits: `sum_k (z_k - 1[k = y])^2`."""
    return _squared_error(outputs.logits, batch)


def _squared_error(values, batch):
    labels = jax.nn.one_hot(batch["y"], values.shape[-1], dtype=values.dtype)
    return mean_over_labels(optax.losses.squared_error(values, labels).sum(-1))


@of_classifiers(losses)
def hinge(outputs: Outputs, batch: Batch) -> jax.Array:
    """Multiclass hinge loss: `max_k (z_k + 1[k != y]) - z_y`, of Crammer and Singer."""
    return mean_over_labels(optax.losses.multiclass_hinge_loss(outputs.logits, batch["y"]))


@of_classifiers(metrics)
def accuracy(outputs: Outputs, batch: Batch) -> MetricValues:
    """Accuracy: 1 if the largest logit is that of the label, and else 0.

    The first of equal logits counts as the largest.

    Returns:
      "accuracy", float[batch].
    """
    correct = outputs.logits.argmax(-1) == batch["y"]
    return {"accuracy": mean_over_labels(jnp.asarray(correct, float))}


@of_classifiers(metrics)
def top_k_accuracy(outputs: Outputs, batch: Batch, *, k: Count = 5) -> MetricValues:
    """Top-k accuracy: 1 if the label is among the k classes of the largest logits, and else 0.

    Of equal logits those of the first classes count as larger, as in `accuracy`; scikit-learn's
    `top_k_accuracy_score` prefers the last classes.

    Args:
      k: number of classes, at least 1 and at most all.

    Returns:
      "top_5_accuracy", with the number k, float[batch].

    Raises:
      ValueError: for more classes than the model has.
    """
    num_classes = outputs.logits.shape[-1]
    large = f"k={k} is out of range: the model has {num_classes} classes"
    require(k <= num_classes, f"{large}; give at most as many")
    _, largest = jax.lax.top_k(outputs.logits, k)
    correct = (largest == batch["y"][..., None]).any(-1)
    return {f"top_{k}_accuracy": mean_over_labels(jnp.asarray(correct, float))}


@of_classifiers(metrics)
def balanced_accuracy(outputs: Outputs, batch: Batch) -> MetricValues:
    """Balanced accuracy: the mean over classes of the share of a class's labels that are found.

    Classes without labels are left out, as by scikit-learn's `balanced_accuracy_score`.

    Returns:
      "balanced_accuracy", a `ClassMean` of float[batch, classes].
    """
    labels, logits = batch["y"], outputs.logits
    correct = jnp.asarray(logits.argmax(-1) == labels, float)
    weight = jax.nn.one_hot(labels, logits.shape[-1], dtype=correct.dtype)
    total, others = correct[..., None] * weight, range(1, labels.ndim)
    return {"balanced_accuracy": ClassMean(total.sum(others), weight.sum(others))}


def with_loss(problem: Problem, loss: str) -> Problem:
    """The same problem with another loss, in training and in evaluation.

    Args:
      problem: a classifier, or any problem for a loss of your own.
      loss: the name of a loss with its options, as in "focal:gamma=2"; or a function of your own,
        `FILE.py:NAME` or `package.module:NAME`: `(outputs, batch, *, ...) -> float[batch]`.

    Raises:
      ValueError: for an unknown name or option, a value out of range, or a loss of this package for
        a problem whose own loss is none of them.
    """
    name, values = losses.parse(loss)
    wrong = f"loss={loss!r} is for classifiers, but the model has a loss of its own"
    fits = ":" in name or _reads_classes(problem.loss)
    require(fits, f"{wrong}; leave loss out, or give a function of your own")
    return problem._replace(loss=_made(name, frozenset(values.items())))


@functools.lru_cache(maxsize=1024)
def _made(name, values):
    """The same object for equal options, so that programs are shared."""
    return functools.partial(losses[name], **dict(values)) if values else losses[name]


def _reads_classes(loss: Loss) -> bool:
    """Whether a loss is one of this package, whose labels "y" are classes of the logits."""
    own = [function for name, function in losses.items() if ":" not in name]
    return getattr(loss, "func", loss) in own


def with_metrics(problem: Problem, metrics: str) -> Problem:
    """The same problem with further metrics, beside those that it has; `loss` is unchanged.

    Args:
      problem: a classifier, or any problem for metrics of your own.
      metrics: names with their options, separated by commas, as in
        "balanced_accuracy,top_k_accuracy:k=3"; or functions of your own, as for `with_loss`:
        `(outputs, batch, *, ...) -> {name: float[batch] or Mean}`, as `Problem.metrics`.

    Raises:
      ValueError: for an unknown name or option, a value out of range, or a metric that is given
        twice; when evaluated, for two metrics of the same name.
    """
    return problem._replace(metrics=_joined(problem.metrics, _specs(metrics)))


def _specs(text):
    return tuple((name, frozenset(values.items())) for name, values in metrics.parse_all(text))


@functools.lru_cache(maxsize=1024)
def _joined(first, specs):
    """The same object for equal metrics, so that programs are shared."""
    others = [functools.partial(metrics[name], **dict(values)) for name, values in specs]

    def joined(outputs: Outputs, batch: Batch) -> MetricValues:
        found: dict = {}
        for function in (first, *others):
            new = function(outputs, batch)
            twice = ", ".join(map(repr, sorted(found.keys() & new.keys())))
            require(not twice, f"{twice} is measured twice; leave out one of the metrics")
            found |= new
        return found

    return joined


def check_labels(problem: Problem, name: str, examples: Batch) -> None:
    """Raises ValueError for examples that a model does not take, or labels that are no classes."""
    # To a loss of the user's own, other whole numbers may mean something, such as examples to leave
    # out: they are refused if their loss is not finite, or that of a class, taken by indexing.
    leaves, tree = jax.tree.flatten(examples)
    shapes = tuple(jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype) for leaf in leaves)
    if not _reads_classes(problem.loss):
        _check_own_loss(problem, name, examples, tree, shapes)
        return
    num_classes = _num_classes(problem, name, tree, shapes)
    labels = np.asarray(examples["y"])
    fix = f"give whole numbers from 0 to {num_classes - 1}, or a model with more classes"
    require(labels.dtype.kind in "iu", f"{name} have labels y of type {labels.dtype}; {fix}")
    for label in (labels.min(), labels.max()) if labels.size else ():
        require(0 <= label < num_classes, f"{name} have label {label}; {fix}")


class LabelCheck:
    """`check_labels` of examples that the host can read; the same arrays are checked once."""

    def __init__(self, problem: Problem, name: str):
        self.problem, self.name = problem, name
        self._checked: list[weakref.ref] = []

    def __call__(self, examples: Batch) -> None:
        """Raises as `check_labels`."""
        leaves = jax.tree.leaves(examples)
        known = [id(reference()) for reference in self._checked]
        if known != list(map(id, leaves)) and all(map(is_readable, leaves)):
            check_labels(self.problem, self.name, examples)
            # the values of NumPy's arrays may change
            self._checked = [weakref.ref(leaf) for leaf in leaves if isinstance(leaf, jax.Array)]


@functools.lru_cache(maxsize=64)
def _outputs_of(problem: Problem, tree: Any, shapes: tuple) -> Any:
    """The shapes of an example's outputs; nothing is computed."""

    def outputs(key, batch):
        return apply_model(problem, problem.init(key), batch, key, False)[0]

    return jax.eval_shape(outputs, jax.eval_shape(jax.random.key, 0), tree.unflatten(shapes))


@functools.lru_cache(maxsize=64)
def _num_classes(problem: Problem, name: str, tree: Any, shapes: tuple) -> int:
    """The number of logits of an example."""
    batch = tree.unflatten(shapes)
    held = f"{name} hold {describe_tree(batch)} of one example"
    has_both = isinstance(batch, dict) and {"x", "y"} <= batch.keys()
    fix = "name the inputs x and the labels y"
    require(has_both, f"{held}, but a classifier reads x and y; {fix}")
    fix = "give examples {'x': [examples, ...], 'y': [examples]} of the shape of the model's inputs"
    jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0))  # raises errors of its own
    try:
        logits = _outputs_of(problem, tree, shapes).logits
    except Exception as error:  # of the module's own layers
        reason = str(error).splitlines()[0]
        raise ValueError(f"{held}, which the model does not take ({reason}); {fix}") from error
    require(batch["y"].shape == logits.shape[:-1], f"{held}; {fix}")
    return logits.shape[-1]


def _check_own_loss(problem, name, examples, tree, shapes):
    """Raises ValueError for labels that a loss of the user's own takes for another class."""
    try:
        outputs = _outputs_of(problem, tree, shapes)
    except Exception:  # which a run explains
        return
    logits = getattr(outputs, "logits", outputs)
    if not hasattr(logits, "shape") or len(logits.shape) < 2 or logits.shape[-1] < 2:
        return
    num_classes = logits.shape[-1]
    for position, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(examples)):
        if leaf.dtype.kind not in "iu" or leaf.shape[1:] != logits.shape[1:-1] or not leaf.size:
            continue
        labels = np.asarray(leaf)
        fix = f"give whole numbers from 0 to {num_classes - 1}, or a model with more classes"
        for label in int(labels.min()), int(labels.max()):
            if 0 <= label < num_classes:
                continue
            row = np.argwhere(labels == label)[0][0]
            batch = jax.tree.map(lambda leaf, row=row: np.asarray(leaf[row : row + 1]), examples)
            taken = _taken_for(problem, outputs, batch, position, label, num_classes)
            found = f"{name} have label {label} in {jax.tree_util.keystr(path)}, but the model has"
            require(not taken, f"{found} {num_classes} classes, and the loss {taken}; {fix}")


def _taken_for(problem, outputs, batch, position, label, num_classes):
    """What a loss makes of a label that is no class, in words; an empty text if it may be right."""
    # indexing takes the last class for what is above it, and counts negative labels from the end
    classes = [0, num_classes - 1, *([label % num_classes] if -num_classes <= label < 0 else [])]
    tried = np.array([label, *classes]).astype(np.int32)
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda x: x.repeat(len(tried), axis=0), batch))
    shape = len(tried), *[1] * (leaves[position].ndim - 1)
    leaves[position] = np.broadcast_to(tried.reshape(shape), leaves[position].shape)
    rng = np.random.default_rng(0)  # the losses of classes differ at random outputs, if it is read

    def random(leaf):
        values = rng.normal(size=leaf.shape).repeat(len(tried), axis=0)
        return jnp.asarray(values, leaf.dtype)

    try:
        values = losses_of(problem, jax.tree.map(random, outputs), tree.unflatten(leaves))
        wrong, *known = np.asarray(values).tolist()
    except Exception:  # which a run explains
        return ""
    if known[0] == known[1] or not np.isfinite(known).all():
        return ""
    if not np.isfinite(wrong):
        return f"of this label is {wrong}"
    return f"takes it for class {classes[known.index(wrong)]}" if wrong in known else ""
