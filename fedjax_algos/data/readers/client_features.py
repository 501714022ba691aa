"""From the named features of each client, as files hold them, to the "x" and "y" of a data set."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.core import Batch
from fedjax_algos.core.limits import MAX_INT32
from fedjax_algos.core.texts import printable
from fedjax_algos.data.dataset import PathLike, checked_examples, checked_labels
from fedjax_algos.data.readers.errors import explain_read_errors
from fedjax_algos.data.readers.tokens import (
    CHARACTERS,
    character_sequences,
    num_character_sequences,
    read_vocabulary,
    word_sequences,
)
from fedjax_algos.data.stored.client_source import ClientDataset, ClientSource

INPUTS = ("pixels", "image", "snippets", "tokens")  # TFF's names of what is "x"
LABEL = "label"
WORDS = "tokens"  # TFF's name of a text of words
_MAX_CLASSES = 2**20  # larger labels are treated as errors
Convert = Callable[[Mapping[str, Any], str], Batch]  # features and a name for messages to x and y


class ClientFeatures(NamedTuple):
    """The named features of each client in a file, of which one client's are read at a time.

    Attributes:
      name: of the file in messages.
      client_ids: the clients' names.
      counts: int64[num_clients]: examples of each client.
      features: their names.
      read: `(client, features, limit) -> {feature: values}`: of the first `limit` examples, or of
        all if it is None, an array [n, ...] of numbers or a list of n texts as bytes.
      identity: a text that changes if the file does.
    """

    name: str
    client_ids: Sequence[str]
    counts: np.ndarray
    features: Sequence[str]
    read: Callable[[int, Sequence[str], int | None], Mapping[str, Any]]
    identity: str

    def client(self, client: int) -> str:
        """The name of a client for messages.

        Args:
          client: its id.
        """
        return printable(f"{self.name}: client {self.client_ids[client]!r}")

    def non_empty(self) -> "ClientFeatures":
        """The clients that have examples."""
        kept = np.flatnonzero(self.counts)
        if len(kept) == len(self.counts):
            return self
        if not len(kept):
            raise ValueError(f"{self.name}: none of the clients has an example; fetch it again")
        return self._replace(
            client_ids=[self.client_ids[client] for client in kept.tolist()],
            counts=self.counts[kept],
            read=lambda client, *arguments: self.read(int(kept[client]), *arguments),
        )


def file_identity(path: PathLike) -> str:
    """A text that changes if a file does: its size, and when it was written.

    Args:
      path: of the file; it may be too large to be read twice.
    """
    with explain_read_errors(path, "fetch the file again"):
        status = os.stat(path)
    return f"{status.st_size} bytes, written {status.st_mtime_ns}"


def client_dataset(
    train: ClientFeatures,
    test: ClientFeatures,
    *,
    x: str | None,
    y: str | None,
    num_classes: int | None,
    vocabulary: PathLike | None,
    words: int,
    length: int | None,
    max_examples: int | None,
) -> ClientDataset:
    """The data set of two features, or of a text and the ids that follow in it.

    Args:
      train, test: the features of the clients.
      x: name of a feature; None for the first that there is of those of TFF's data sets.
      y: name of the labels; None for `label`, or for a text the next ids.
      num_classes: one more than the largest label if None, for which all labels are read.
      vocabulary: file of the words; None if texts are sequences of characters.
      words: the number of words of the vocabulary.
      length: of a sequence; 20 words or 80 characters if None.
      max_examples: of a training client, the first ones as they are in the file.

    Raises:
      ValueError: for features that do not exist or do not fit.
    """
    notes = tuple(
        f"{lost} {kind} clients have no examples and are left out"
        for kind, features in (("training", train), ("test", test))
        if (lost := int((features.counts == 0).sum()))
    )
    train, test = train.non_empty(), test.non_empty()
    x = x or next((name for name in INPUTS if name in train.features), None)
    if x is None:
        raise ValueError(f"{train.name}: has the features {_listed(train)}; give x=NAME and y=NAME")
    for features in (train, test):
        _require(features, x)
    is_text = isinstance(train.read(0, [x], 1)[x], list)
    names, sizes = [x], (train.counts, test.counts)
    convert: Convert
    if is_text and y is None:
        num_classes, convert, sizes = _next_symbols(
            train, test, x, vocabulary, words, length, max_examples
        )
    else:
        y = y or LABEL
        for features in (train, test):
            _require(features, y)
        names, num_classes = [x, y], num_classes or _count_classes(train, test, y)
        if is_text:
            convert = _labelled_words(train, x, y, num_classes, vocabulary, words, length)
        else:
            convert = _labelled_numbers(x, y, num_classes)
        sizes = (np.minimum(train.counts, max_examples or MAX_INT32), test.counts)
    options = repr((x, y, num_classes, os.fspath(vocabulary or ""), words, length, max_examples))
    train_source = _source(train, names, convert, sizes[0], max_examples, options)
    test_source = _source(test, names, convert, sizes[1], None, options)
    if dict(test_source.example) != dict(train_source.example):
        raise ValueError(
            f"{test.name}: its examples are {_kinds(test_source.example)}, those of {train.name} "
            f"{_kinds(train_source.example)}; give files of one data set"
        )
    return ClientDataset(train_source, test_source, num_classes, notes)


def _next_symbols(
    train: ClientFeatures,
    test: ClientFeatures,
    x: str,
    path: PathLike | None,
    words: int,
    length: int | None,
    max_examples: int | None,
) -> tuple[int, Convert, tuple[np.ndarray, np.ndarray]]:
    """The number of ids, the cutting of texts, and the sequences of each client."""
    if path is None and x == WORDS:
        raise ValueError(
            f"{train.name}: {WORDS} are words; give vocabulary=PATH of stackoverflow.word_count"
        )
    if path is None:
        steps = length or 80

        def cut(texts: Sequence[bytes]) -> np.ndarray:
            return character_sequences(texts, steps)

        def count(features: ClientFeatures, limit: int | None) -> np.ndarray:
            texts = (features.read(i, [x], limit)[x] for i in range(len(features.counts)))
            lengths = (np.array([len(text) for text in each], np.int64) for each in texts)
            return np.array([num_character_sequences(each, steps).sum() for each in lengths])

        num_classes = CHARACTERS.num_classes
    else:
        known = read_vocabulary(path, words)

        def cut(texts: Sequence[bytes]) -> np.ndarray:
            return word_sequences(texts, known, length or 20)

        def count(features: ClientFeatures, limit: int | None) -> np.ndarray:
            return np.minimum(features.counts, limit or MAX_INT32)

        num_classes = known.num_classes

    def convert(features: Mapping[str, Any], source: str) -> Batch:
        tokens = cut(_texts(features[x], x, source))
        return {"x": tokens[:, :-1], "y": tokens[:, 1:]}

    return num_classes, convert, (count(train, max_examples), count(test, None))


def _labelled_words(
    train: ClientFeatures,
    x: str,
    y: str,
    num_classes: int,
    path: PathLike | None,
    words: int,
    length: int | None,
) -> Convert:
    if path is None:
        raise ValueError(f"{train.name}: {x} is a text with labels; give vocabulary=PATH")
    known = read_vocabulary(path, words)

    def convert(features: Mapping[str, Any], source: str) -> Batch:
        tokens = word_sequences(_texts(features[x], x, source), known, length or 20)
        return {"x": tokens[:, :-1], "y": _labels(features[y], len(tokens), num_classes, source)}

    return convert


def _labelled_numbers(x: str, y: str, num_classes: int) -> Convert:
    def convert(features: Mapping[str, Any], source: str) -> Batch:
        examples = checked_examples(features[x], f"{source}: {x}")
        return {"x": examples, "y": _labels(features[y], len(examples), num_classes, source)}

    return convert


def _source(
    features: ClientFeatures,
    names: Sequence[str],
    convert: Convert,
    counts: np.ndarray,
    limit: int | None,
    options: str,
) -> ClientSource:
    """The source of converted examples, which all have the shapes of the first client's."""

    def read(client: int) -> Batch:
        where = features.client(client)
        batch = convert(features.read(client, names, limit), where)
        if _examples(batch) != example:
            raise ValueError(
                f"{where} has examples of {_kinds(_examples(batch))}, the first client of "
                f"{_kinds(example)}; give all one shape"
            )
        if len(batch["x"]) != counts[client]:
            raise ValueError(
                f"{where} has {len(batch['x'])} examples, not {counts[client]}; has the file "
                "changed?"
            )
        return batch

    example = _examples(convert(features.read(0, names, limit), features.client(0)))
    facts = [options, features.identity, *features.client_ids]
    identity = hashlib.sha256("\n".join(facts).encode(errors="surrogateescape")).hexdigest()
    return ClientSource(
        features.name, features.client_ids, counts.astype(np.int32), example, read, {}, identity
    )


def _examples(batch: Batch) -> dict[str, jax.ShapeDtypeStruct]:
    return {k: jax.ShapeDtypeStruct(v.shape[1:], v.dtype) for k, v in batch.items()}


def _kinds(example: Mapping[str, jax.ShapeDtypeStruct]) -> str:
    return ", ".join(f"{k} {v.dtype}{list(v.shape)}" for k, v in example.items())


def _count_classes(train: ClientFeatures, test: ClientFeatures, y: str) -> int:
    """One more than the largest label."""
    return 1 + max(int(labels.max()) for f in (train, test) for labels in _all_labels(f, y))


def _all_labels(features: ClientFeatures, y: str) -> Iterator[np.ndarray]:
    for client, count in enumerate(features.counts):
        values = features.read(client, [y], None)[y]
        yield _labels(values, int(count), _MAX_CLASSES, features.client(client))


def _labels(values: Any, count: int, num_classes: int, source: str) -> np.ndarray:
    labels = np.asarray(values)
    labels = labels[:, 0] if labels.shape == (count, 1) else labels  # as in older files of TFF
    return checked_labels(labels, count, num_classes, f"{source}: labels")


def _texts(values: Any, x: str, source: str) -> Sequence[bytes]:
    if not isinstance(values, list):
        raise ValueError(f"{source}: {x} is no text, as it is of the first client; fetch it again")
    return values


def _require(features: ClientFeatures, name: str) -> None:
    if name not in features.features:
        raise ValueError(
            f"{features.name}: has no feature {name!r}, only {_listed(features)}; choose one"
        )


def _listed(features: ClientFeatures) -> str:
    return printable(", ".join(features.features), 200)
