"""Metrics of classifiers by name, beside the accuracy of `adapters.py`."""

import functools

import jax
import jax.numpy as jnp

from fedjax_algos.core import Batch, ClassMean, MetricValues, Problem
from fedjax_algos.core.options import Count
from fedjax_algos.models.adapters import Outputs, mean_over_labels
from fedjax_algos.models.registry import metrics as registry


@registry.register
def top_k_accuracy(outputs: Outputs, batch: Batch, *, k: Count = 5) -> MetricValues:
    """Top-k accuracy: 1 if the label is among the k classes of the largest logits, and else 0.

    Of equal logits those of the first classes count as larger, as in `accuracy`, which is that of
    k = 1. scikit-learn's `top_k_accuracy_score` prefers the last classes.

    Args:
      outputs: of the model.
      batch: with "y", int32[batch, ...], the labels.
      k: number of classes, at least 1 and at most all.

    Returns:
      "top_5_accuracy", with the number k, float[batch].

    Raises:
      ValueError: for more classes than the model has.
    """
    num_classes = outputs.logits.shape[-1]
    if k > num_classes:
        raise ValueError(
            f"k={k} is out of range: the model has {num_classes} classes; give at most as many"
        )
    _, largest = jax.lax.top_k(outputs.logits, k)
    correct = (largest == batch["y"][..., None]).any(-1)
    return {f"top_{k}_accuracy": mean_over_labels(jnp.asarray(correct, float))}


@registry.register
def balanced_accuracy(outputs: Outputs, batch: Batch) -> MetricValues:
    """Balanced accuracy: the mean over classes of the share of a class's labels that are found.

    Classes that no label has are left out, as by scikit-learn's `balanced_accuracy_score`. The
    classes are those of all examples of an evaluation, not those of a batch.

    Args:
      outputs: of the model.
      batch: with "y", int32[batch, ...], the labels.

    Returns:
      "balanced_accuracy", a `ClassMean` of float[batch, classes].
    """
    labels, logits = batch["y"], outputs.logits
    correct = jnp.asarray(logits.argmax(-1) == labels, float)
    weight = jax.nn.one_hot(labels, logits.shape[-1], dtype=correct.dtype)
    total, others = correct[..., None] * weight, range(1, labels.ndim)
    return {"balanced_accuracy": ClassMean(total.sum(others), weight.sum(others))}


def with_metrics(problem: Problem, metrics: str) -> Problem:
    """The same problem with further metrics, beside those that it has; `loss` is unchanged.

    Args:
      problem: a classifier, or any problem for metrics of your own.
      metrics: names with their options, separated by commas, as in
        "balanced_accuracy,top_k_accuracy:k=3"; or functions of your own, `FILE.py:NAME` or
        `package.module:NAME`: `(outputs, batch, *, ...) -> {name: float[batch] or Mean}`, as
        `Problem.metrics`.

    Raises:
      ValueError: for an unknown name or option, a value out of range, or a metric that is given
        twice; when evaluated, for two metrics of the same name.
    """
    parsed = registry.parse_all(metrics)
    specs = tuple((name, frozenset(values.items())) for name, values in parsed)
    return problem._replace(metrics=_joined(problem.metrics, specs))


@functools.lru_cache(maxsize=1024)
def _joined(first, specs):
    """The same object for equal metrics, so that programs are shared."""
    others = [functools.partial(registry[name], **dict(values)) for name, values in specs]

    def joined(outputs: Outputs, batch: Batch) -> MetricValues:
        found: dict = {}
        for function in (first, *others):
            new = function(outputs, batch)
            if twice := sorted(found.keys() & new.keys()):
                raise ValueError(f"{twice[0]!r} is measured twice; leave out one of the metrics")
            found |= new
        return found

    return joined
