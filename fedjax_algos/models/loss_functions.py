"""Losses of classifiers by name, as alternatives to the cross-entropy of `adapters.py`.

If an example has several labels, such as the voxels of a mask, its loss is the mean of theirs.
"""

import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.core import Batch, Problem
from fedjax_algos.core.options import NonNegative
from fedjax_algos.models.adapters import Outputs, mean_over_labels
from fedjax_algos.models.registry import losses

Loss: TypeAlias = Callable[[Outputs, Batch], jax.Array]


@losses.register
def focal(outputs: Outputs, batch: Batch, *, gamma: NonNegative = 2.0) -> jax.Array:
    """Focal loss: `-(1 - p)^gamma log p`, where p is the label's probability.

    Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017,
    https://arxiv.org/abs/1708.02002, without the weights of classes.

    Args:
      outputs: of the model.
      batch: with "y", int32[batch, ...], the labels.
      gamma: gamma, at least 0: how little examples count whose label is likely; 0 is cross-entropy.
    """
    entropy = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])  # -log p
    # at p = 1 the derivative of the power would be infinite
    others = jnp.maximum(-jnp.expm1(-entropy), jnp.finfo(entropy.dtype).eps)
    return mean_over_labels(others**gamma * entropy)


@losses.register
def brier(outputs: Outputs, batch: Batch) -> jax.Array:
    """Brier score: `sum_k (p_k - 1[k = y])^2`, the squared error of the probabilities.

    Args:
      outputs: of the model.
      batch: with "y", int32[batch, ...], the labels.
    """
    return _squared_error(jax.nn.softmax(outputs.logits), batch)


@losses.register
def squared_error(outputs: Outputs, batch: Batch) -> jax.Array:
    """Squared error of the logits: `sum_k (z_k - 1[k = y])^2`.

    Args:
      outputs: of the model.
      batch: with "y", int32[batch, ...], the labels.
    """
    return _squared_error(outputs.logits, batch)


def _squared_error(values, batch):
    labels = jax.nn.one_hot(batch["y"], values.shape[-1], dtype=values.dtype)
    return mean_over_labels(optax.losses.squared_error(values, labels).sum(-1))


@losses.register
def hinge(outputs: Outputs, batch: Batch) -> jax.Array:
    """Multiclass hinge loss: `max_k (z_k + 1[k != y]) - z_y`, of Crammer and Singer.

    Args:
      outputs: of the model.
      batch: with "y", int32[batch, ...], the labels.
    """
    return mean_over_labels(optax.losses.multiclass_hinge_loss(outputs.logits, batch["y"]))


def reads_classes(loss: Loss) -> bool:
    """Whether a loss is one of this package, whose labels "y" are classes of the logits.

    Args:
      loss: of a problem.
    """
    own = [function for name, function in losses.items() if ":" not in name]
    return getattr(loss, "func", loss) in own


def with_loss(problem: Problem, loss: str) -> Problem:
    """The same problem with another loss, in training and in evaluation.

    Args:
      problem: a classifier, or any problem for a loss of your own.
      loss: the name of a loss with its options, as in "cross_entropy:label_smoothing=0.1" or
        "focal:gamma=2"; or a function of your own, `FILE.py:NAME` or `package.module:NAME`:
        `(outputs, batch, *, ...) -> float[batch]`.

    Raises:
      ValueError: for an unknown name or option, a value out of range, or a loss of this package for
        a problem whose own loss is none of them.
    """
    name, values = losses.parse(loss)
    if ":" not in name and not reads_classes(problem.loss):
        raise ValueError(
            f"loss={loss!r} is for classifiers, but the model has a loss of its own; leave loss "
            "out, or give a function of your own"
        )
    return problem._replace(loss=_made(name, frozenset(values.items())))


@functools.lru_cache(maxsize=1024)
def _made(name, values):
    """The same object for equal options, so that programs are shared."""
    return functools.partial(losses[name], **dict(values)) if values else losses[name]
