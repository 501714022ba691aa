"""From the features of clients to a data set: which are "x" and "y", and texts as ids."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_algos.core.files import reading, require
from fedjax_algos.core.limits import MAX_INT32
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

    `x` and `y` are names of features; `None` for `x` is the first that there is of those of TFF's
    data sets, and for `y` it is `label`, or for a text the ids that follow. A text without a
    vocabulary is a sequence of characters, of 80 ids unless `length` is given, and otherwise of 20
    words. Without `num_classes` all labels are read. `max_examples` are the first of each training
    client, and `max_test_examples` are drawn at random of all test clients together. With an
    `image_format`, `x` are the files of images.
    """
    notes = tuple(
        f"{lost} {kind} clients have no examples and are left out"
        for kind, features in (("training", train), ("test", test))
        if (lost := int((features.counts == 0).sum()))
    )
    train, test = train.non_empty(), test.non_empty()
    if max_test_examples is not None:
        test = test.drawn(max_test_examples)
    x = x or next((name for name in INPUTS if name in train.features), "")
    with reading(train.name, "a data set of this form", "give x=NAME, y=NAME or vocabulary=PATH"):
        require(x, f"it has the features {', '.join(train.features)[:200]}")
        for features in (train, test):
            features.require(x)
        is_text = image_format is None and isinstance(train.read(0, [x], 1)[x], list)
        names = [x] if is_text and y is None else [x, y or LABEL]
        for features in (train, test):
            features.require(names[-1])
        is_labelled = len(names) > 1
        if is_text:
            known = vocabulary is not None or not (is_labelled or x == WORDS)
            require(known, f"{x} is a text of words or with labels")
            cut, count, num_ids = _cutting(vocabulary, length)
        if not is_labelled:
            require(num_classes is None, "num_classes is for labels; leave it out, or give y=NAME")
            num_classes = num_ids
        elif num_classes is None:
            num_classes = _count_classes((train, test), names[1])

    def convert(stored: Mapping[str, Any], source: str) -> Stored:
        with reading(source, "a client of this data set", "fetch it again"):
            listed = isinstance(stored[x], list)
            require(listed is (is_text or image_format is not None), f"{x} is of another kind")
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
    with reading(test.name, "of the same data set", "give files of one data set"):
        kinds = [_kinds(source.example) for source in (train_source, test_source)]
        require(kinds[0] == kinds[1], f"its examples are {kinds[1]}, the training ones {kinds[0]}")
    return ClientDataset(train_source, test_source, num_classes, notes)


def _cutting(
    vocabulary: Vocabulary | None, length: int | None
) -> tuple[Callable[[Sequence[bytes]], np.ndarray], Callable[[Sequence[bytes]], int], int]:
    """How texts become sequences, how many become of some texts, and the number of ids."""
    if vocabulary is not None:
        steps = length or 20
        return lambda texts: word_sequences(texts, vocabulary, steps), len, vocabulary.num_classes
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
