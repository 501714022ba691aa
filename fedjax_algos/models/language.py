"""Loss and accuracy of the next token at each position of a text, in which padding never counts.

Of C classes, 0 is padding, then come the words, the tokens that stand for words out of the
vocabulary, the begin (C - 2) and the end (C - 1) of a text, as in the StackOverflow task of
Reddi et al., "Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295, and
its code, https://github.com/google-research/federated.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.core import Batch, Mean, MetricValues
from fedjax_algos.core.options import Count
from fedjax_algos.data.readers.client_files.texts import PADDING
from fedjax_algos.models.outputs import Outputs, losses, metrics, of_classifiers


@of_classifiers(losses)
def token_cross_entropy(
    outputs: Outputs, batch: Batch, *, divide_by: Literal["tokens", "positions"] = "tokens"
) -> jax.Array:
    """Softmax cross-entropy with the next tokens of a text, without padding; float[batch].

    A text of padding alone has loss 0.

    Deviation: the code of the task calls Keras, whose mean is over all positions of a batch
    together.

    Args:
      divide_by: "tokens" is the mean over a text's tokens that are no padding, so that each text
        has the same weight in a local step. "positions" divides their sum by the number of
        positions, so that each token has the same weight, and padding makes the loss smaller.

    Raises:
      ValueError: for labels of another shape than that of the positions.
    """
    _check_texts(outputs, batch)
    labels, is_token = batch["y"], batch["y"] != PADDING
    each = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, labels)
    total = jnp.where(is_token, each, 0).sum(-1)
    if divide_by == "positions":
        return total / labels.shape[-1]
    return total / jnp.maximum(is_token.sum(-1), 1).astype(total.dtype)


@of_classifiers(metrics)
def token_accuracy(
    outputs: Outputs,
    batch: Batch,
    *,
    counted: Literal["all", "known", "words"] = "words",
    buckets: Count = 1,
) -> MetricValues:
    """Accuracy of the next token: the share of the counted tokens that have the largest logit.

    It is the mean over the tokens of all texts, so a long text counts more. The labels decide what
    is counted; any class may be predicted.

    Args:
      counted: "all" tokens are those that are no padding; "known" ones are in the vocabulary, or a
        text's begin or end; "words" are in the vocabulary.
      buckets: number of classes for words out of the vocabulary, at least 1.

    Returns:
      "accuracy_with_oov", "accuracy_no_oov" or "accuracy_no_oov_or_eos", the names in the task's
      code of "all", "known" and "words"; a `Mean` over tokens, of float[batch].

    Raises:
      ValueError: as for the loss, and for fewer classes than there are special ones.
    """
    _check_texts(outputs, batch)
    labels, num_classes = batch["y"], outputs.logits.shape[-1]
    begin, unknown = num_classes - 2, num_classes - 2 - buckets  # the first classes of each kind
    if unknown < 2:
        raise ValueError(
            f"{num_classes} classes have no word beside padding, buckets={buckets}, begin and end; "
            "give fewer buckets or a larger vocabulary"
        )
    is_counted, name = {
        "all": (labels != PADDING, "accuracy_with_oov"),
        "known": (
            (labels != PADDING) & ((labels < unknown) | (labels >= begin)),
            "accuracy_no_oov",
        ),
        "words": ((labels != PADDING) & (labels < unknown), "accuracy_no_oov_or_eos"),
    }[counted]
    correct = is_counted & (outputs.logits.argmax(-1) == labels)
    return {name: Mean(*(jnp.asarray(flags.sum(-1), float) for flags in (correct, is_counted)))}


def word_accuracy(outputs: Outputs, batch: Batch) -> MetricValues:
    """`token_accuracy` of words, under the name "accuracy", in which runs are compared."""
    (mean,) = token_accuracy(outputs, batch).values()
    return {"accuracy": mean}


def _check_texts(outputs, batch):
    labels, logits = batch["y"].shape, outputs.logits.shape
    if len(labels) != 2 or labels != logits[:-1]:
        raise ValueError(
            f"the labels y have shape {labels} and the logits {logits}; give labels [batch, time], "
            "the token after each position, and a model with logits [batch, time, classes], such "
            "as lstm_words:predicts=every"
        )
