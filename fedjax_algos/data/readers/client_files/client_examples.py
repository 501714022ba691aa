"""From the features of clients to a data set: which are "x" and "y", and texts as ids."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_algos.core.limits import MAX_INT32
from fedjax_algos.core.reprs import printable
from fedjax_algos.data.dataset import checked_examples, checked_labels
from fedjax_algos.data.federated_data import ClientDataset, ClientSource
from fedjax_algos.data.images import ImageFormat
from fedjax_algos.data.readers.client_files.client_features import ClientFeatures
from fedjax_algos.data.readers.client_files.texts import (
    CHARACTERS,
    Vocabulary,
    character_sequences,
    num_character_sequences,
    word_sequences,
)

INPUTS = ("pixels", "image", "snippets", "tokens")  # TFF's names of what is "x"
LABEL = "label"
WORDS = "tokens"  # TFF's name of a text of words
_MAX_CLASSES = 2**20  # larger labels are treated as errors
Stored = dict[str, Any]  # "x" and "y" of a client; files of images are a list
Convert = Callable[[Mapping[str, Any], str], Stored]  # the second argument is a name for messages


def client_dataset(
    train: ClientFeatures,
    test: ClientFeatures,
    *,
    x: str | None,
    y: str | None,
    num_classes: int | None,
    vocabulary: Vocabulary | None = None,
    length: int | None = None,
    max_examples: int | None = None,
    max_test_examples: int | None = None,
    image_format: ImageFormat | None = None,
) -> ClientDataset:
    """The data set of two features, or of a text and the ids that follow in it.

    Args:
      train, test: the features of the clients.
      x: name of a feature; None for the first that there is of those of TFF's data sets.
      y: name of the labels; None for `label`, or for a text the ids that follow.
      num_classes: one more than the largest label if None, for which all labels are read.
      vocabulary: of the words; None if texts are sequences of characters.
      length: of a sequence; 20 words or 80 characters if None.
      max_examples: of a training client, the first ones as they are in the file.
      max_test_examples: of all test clients together, drawn at random.
      image_format: of the decoded images, if `x` is their files.

    Raises:
      ValueError: for features that do not exist or do not fit.
    """
    notes = tuple(
        f"{lost} {kind} clients have no examples and are left out"
        for kind, features in (("training", train), ("test", test))
        if (lost := int((features.counts == 0).sum()))
    )
    train, test = train.non_empty(), test.non_empty()
    if max_test_examples is not None:
        test = test.drawn(max_test_examples)
    x = x or next((name for name in INPUTS if name in train.features), None)
    if x is None:
        known = printable(", ".join(train.features), 200)
        raise ValueError(f"{train.name}: has the features {known}; give x=NAME and y=NAME")
    for features in (train, test):
        features.require(x)
    is_text = image_format is None and isinstance(train.read(0, [x], 1)[x], list)
    names = [x] if is_text and y is None else [x, y or LABEL]
    for features in (train, test):
        features.require(names[-1])
    is_labelled = len(names) > 1
    if is_text:
        if is_labelled and vocabulary is None:
            raise ValueError(f"{train.name}: {x} is a text with labels; give vocabulary=PATH")
        cut, count, num_ids = _cutting(train.name, x, vocabulary, length)
    if not is_labelled:
        if num_classes is not None:
            raise ValueError(
                f"{train.name}: num_classes is for labels; leave it out, or give y=NAME"
            )
        num_classes = num_ids
    elif num_classes is None:
        num_classes = _count_classes((train, test), names[1])

    def convert(stored: Mapping[str, Any], source: str) -> Stored:
        if isinstance(stored[x], list) is not (is_text or image_format is not None):
            raise ValueError(
                f"{source}: {x} is of another kind than that of the first client; fetch it again"
            )
        if is_text:
            tokens = cut(stored[x])
            values, targets = tokens[:, :-1], tokens[:, 1:]
        elif image_format is not None:
            values = stored[x]
        else:
            values = checked_examples(stored[x], f"{source}: {x}")
        if is_labelled:
            targets = _labels(stored[names[1]], len(values), num_classes, source)
        return {"x": values, "y": targets}

    def counts(features: ClientFeatures, limit: int | None) -> np.ndarray:
        if is_text and vocabulary is None:  # a text becomes one or more sequences
            texts = (features.read(i, [x], limit)[x] for i in range(len(features.counts)))
            return np.array([count(each) for each in texts])
        return np.minimum(features.counts, limit or MAX_INT32)

    options = (names, num_classes, vocabulary, length, max_examples, image_format)
    train_source, test_source = (
        _source(features, names, convert, counts(features, limit), limit, image_format, options)
        for features, limit in ((train, max_examples), (test, None))
    )
    if dict(train_source.example) != dict(test_source.example):
        raise ValueError(
            f"{test.name}: its examples are {_kinds(test_source.example)}, those of {train.name} "
            f"{_kinds(train_source.example)}; give files of one data set"
        )
    return ClientDataset(train_source, test_source, num_classes, notes)


def _cutting(
    source: str, x: str, vocabulary: Vocabulary | None, length: int | None
) -> tuple[Callable[[Sequence[bytes]], np.ndarray], Callable[[Sequence[bytes]], int], int]:
    """How texts become sequences, how many become of some texts, and the number of ids."""
    if vocabulary is not None:
        steps = length or 20
        return lambda texts: word_sequences(texts, vocabulary, steps), len, vocabulary.num_classes
    if x == WORDS:
        raise ValueError(
            f"{source}: {WORDS} are words; give vocabulary=PATH of stackoverflow.word_count"
        )
    steps = length or 80

    def count(texts: Sequence[bytes]) -> int:
        lengths = np.array([len(text) for text in texts], np.int64)
        return int(num_character_sequences(lengths, steps).sum())

    return lambda texts: character_sequences(texts, steps), count, CHARACTERS.num_classes


def _source(
    features: ClientFeatures,
    names: Sequence[str],
    convert: Convert,
    counts: np.ndarray,
    limit: int | None,
    image_format: ImageFormat | None,
    options: object,
) -> ClientSource:
    """The source of converted examples, which all have the shapes of the first client's."""

    def read(client: int) -> Stored:
        return convert(features.read(client, names, limit), features.client(client))

    first = {k: v for k, v in read(0).items() if not isinstance(v, list)}
    example = {k: jax.ShapeDtypeStruct(v.shape[1:], v.dtype) for k, v in first.items()}
    if image_format is not None:
        example = {"x": jax.ShapeDtypeStruct(tuple(image_format[:3]), np.dtype(np.uint8))} | example
    facts = "\n".join([repr(options), features.identity, *features.client_ids])
    identity = hashlib.sha256(facts.encode(errors="surrogateescape")).hexdigest()
    images = {} if image_format is None else {"x": image_format}
    counts = counts.astype(np.int32)
    return ClientSource(features.name, features.client_ids, counts, example, read, images, identity)


def _kinds(example: Mapping[str, jax.ShapeDtypeStruct]) -> str:
    return ", ".join(f"{k} {v.dtype}{list(v.shape)}" for k, v in example.items())


def _count_classes(parts: Sequence[ClientFeatures], y: str) -> int:
    """One more than the largest label; all labels are read."""
    largest = 0
    for features in parts:
        for client, count in enumerate(features.counts.tolist()):
            values = features.read(client, [y], None)[y]
            labels = _labels(values, count, _MAX_CLASSES, features.client(client))
            largest = max(largest, int(labels.max()))
    return 1 + largest


def _labels(values: Any, count: int, num_classes: int | None, source: str) -> np.ndarray:
    labels = np.asarray(values)
    labels = labels[:, 0] if labels.shape == (count, 1) else labels  # as in older files of TFF
    return checked_labels(labels, count, num_classes or _MAX_CLASSES, f"{source}: labels")
