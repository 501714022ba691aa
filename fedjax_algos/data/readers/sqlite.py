"""Reads the SQLite files of TensorFlow Federated (TFF).

Their examples are `tf.train.Example`s, protocol buffers of features by name. A feature is a list of
bytes, float32 or int64 (https://www.tensorflow.org/api_docs/python/tf/train/Example).
"""

import contextlib
import functools
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, reading, require_regular
from fedjax_algos.base.limits import MAX_INT32, host_memory
from fedjax_algos.core.options import Count
from fedjax_algos.data.federated_data import ClientDataset, datasets
from fedjax_algos.data.readers.client_examples import ClientFeatures, client_dataset, file_identity
from fedjax_algos.data.readers.texts import read_vocabulary

# An Example has no shapes. These are TFF's shapes, by the feature and its number of values.
_SHAPES = {("pixels", 784): (28, 28), ("image", 3072): (32, 32, 3)}
_TABLES = {
    "client_metadata": ("client_id", "split_name", "num_examples"),
    "examples": ("client_id", "split_name", "serialized_example_proto"),
}
_FIX = "fetch the file again, and unpack one that ends in .lzma with unlzma"
# The messages of tensorflow/core/example/example.proto and feature.proto; a map is a list of keys
# and values, and a field's number is its place.
_MESSAGES = {
    "BytesList": "repeated bytes value",
    "FloatList": "repeated float value",
    "Int64List": "repeated int64 value",
    "Feature": "optional BytesList texts; optional FloatList floats; optional Int64List integers",
    "Entry": "optional string key; optional Feature value",
    "Features": "repeated Entry feature",
    "Example": "optional Features features",
}


@datasets.register
def tff_sqlite(
    *,
    path: PathLike,
    train_split: str = "train",
    test_split: str = "test",
    x: str | None = None,
    y: str | None = None,
    num_classes: Count | None = None,
    vocabulary: PathLike | None = None,
    words: Count = 10_000,
    length: Count | None = None,
    max_examples: Count | None = None,
    max_clients: Count | None = None,
    max_test_examples: Count | None = None,
) -> ClientDataset:
    """Reads TFF's SQLite files, such as emnist_all, cifar100, shakespeare and stackoverflow.

    The table `examples` has a serialised `tf.train.Example` in each row, and `client_metadata` the
    number of rows of each client. Clients are sorted by name, and examples keep the order of the
    file. One client is read at a time.

    - Numbers become "x" unchanged, and "y" is their label, int32[n]. An Example has no shapes:
      `pixels` become float32[28, 28], `image` uint8[32, 32, 3], and other lists of numbers
      float32[k] or int64[k].
    - A text becomes ids, as in TFF's baselines: 0 is padding, the symbols are 1 to V, V + 1 is any
      other symbol, and V + 2 and V + 3 are the begin and the end of a text. "x" is int32[n, length]
      and "y" int32[n, length] the ids that follow; there are V + 4 classes.

      - With a vocabulary, the symbols are V words, separated by a blank. Each text is one sequence:
        begin, its first `length` words, and end if it fits (StackOverflow, length 20).
      - Without one, the symbols are TFF's 86 characters. A text with its begin and end is cut into
        pieces of length + 1 ids, and the last piece is padded (Shakespeare, length 80).
    - A text with labels needs a vocabulary; "x" is as above.

    TFF shuffles a client's texts before it takes `max_examples`; here we take the first ones. TFF's
    files have an index over the clients; a file without it is read slowly.

    Args:
      path: the file, unpacked: `unlzma emnist_all.sqlite.lzma`.
      train_split, test_split: names of the splits: emnist has `all_train` and `all_test`, and for
        digits `digits_only_train` and `digits_only_test`; stackoverflow also has `heldout`.
      x: the examples' feature; None for the first found of pixels, image, snippets and tokens.
      y: the labels' feature; None for `label` or, for a text, the ids that follow.
      num_classes: one more than the largest label if None; all labels are then read once.
      vocabulary: a file with a word in each line, the most frequent first, such as TFF's
        stackoverflow.word_count.
      words: the largest number of words used of the vocabulary, 10,000 in StackOverflow's task.
      length: the length of a sequence, in words or characters; 20 words or 80 characters if None.
      max_examples: use only the first examples or texts of each training client; None for all.
      max_clients: use only the first training clients; None for all.
      max_test_examples: draw this many test examples or texts with a fixed seed; None for all.

    Source: Reddi et al., "Adaptive Federated Optimization", https://arxiv.org/abs/2003.00295;
    https://github.com/google-parfait/tensorflow-federated, simulation/datasets and
    simulation/baselines.
    """
    known = read_vocabulary(vocabulary, words) if vocabulary else None
    parts = _features(path, train_split, max_clients), _features(path, test_split)
    return client_dataset(*parts, x, y, num_classes, known, length, max_examples, max_test_examples)


def _features(path: PathLike, split: str, max_clients: int | None = None) -> ClientFeatures:
    name = f"{os.fspath(path)}, split {split}"
    with _open_tables(path) as connection:
        query = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?"
        found = connection.execute(f"{query} ORDER BY client_id", [split]).fetchall()
        splits = connection.execute("SELECT DISTINCT split_name FROM client_metadata")
        known = ", ".join(str(split, errors="replace") for (split,) in splits)
        require(found, f"it has no clients of the split {split!r}, only {known}")
        clients = [client.decode() for client, _ in found[:max_clients]]
        numbers = np.array([count for _, count in found[:max_clients]], np.int64)
        query = "SELECT serialized_example_proto FROM examples WHERE client_id = ?"
        one = clients[int(np.argmax(numbers > 0))]
        first = connection.execute(f"{query} LIMIT 1", [one]).fetchone()
        features = sorted(parse_example(*first)) if first else []

    def read(client: int, names: Sequence[str], limit: int | None) -> Mapping[str, Any]:
        count = int(numbers[client])
        count, more = (limit, 0) if limit is not None and limit < count else (count, 1)
        where = f"{name}: client {clients[client]!r}"
        with _open_tables(path) as connection:
            own = f"{query} AND split_name = ? ORDER BY rowid LIMIT ?"
            rows = connection.execute(own, [clients[client], split, count + more]).fetchall()
        with reading(where, "examples of TFF", _FIX, KeyError, TypeError):
            whole = len(rows) == count
            require(whole, f"it does not have the {numbers[client]} examples of client_metadata")
            examples = [parse_example(row) for (row,) in rows]
            return {feature: _joined(examples, feature) for feature in names}

    return ClientFeatures(name, clients, numbers, features, read, file_identity(path) + split)


def _joined(examples: Sequence[Mapping[str, Any]], feature: str) -> np.ndarray | list[bytes]:
    """Returns a feature's values in all examples: [n, ...], or a list of n texts."""
    values = [example[feature] for example in examples]
    kinds = {(type(value), len(value)) for value in values}
    require(len(kinds) == 1, f"{feature!r} has lists of several lengths or types")
    if isinstance(values[0], list):
        return [text for (text,) in values]
    joined = np.stack(values)
    if joined.shape[1] == 1:
        return joined[:, 0]
    shape = _SHAPES.get((feature, joined.shape[1]))
    if shape is None:
        return joined
    if joined.dtype == np.int64:
        pixels = joined.min() >= 0 and joined.max() <= 255
        require(pixels, f"{feature!r} has values that are not pixels of 0 to 255")
        joined = joined.astype(np.uint8)
    return joined.reshape(-1, *shape)


@contextlib.contextmanager
def _open_tables(path: PathLike) -> Iterator[sqlite3.Connection]:
    """Opens a file with TFF's tables read-only and executes nothing in it."""
    # extensions stay off; views, virtual tables and computed columns are refused before reading
    errors = sqlite3.Error, AttributeError, TypeError  # for a value of another type
    with reading(path, "an SQLite file of clients", _FIX, *errors):
        require_regular(path)
        address = f"{Path(path).absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            connection.text_factory = bytes
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(host_memory() // 2, MAX_INT32))
            connection.execute("PRAGMA trusted_schema = off")
            connection.execute("PRAGMA cell_size_check = on")
            query = "SELECT type, sql FROM sqlite_master WHERE name = ?"
            for table, columns in _TABLES.items():
                (found,) = connection.execute(query, [table]).fetchall() or [(b"", b"")]
                stored = set()
                if found[0] == b"table" and found[1].split()[1].upper() == b"TABLE":  # not VIRTUAL
                    described = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
                    stored = {row[1].decode() for row in described if not row[-1]}  # not computed
                message = f"it has no table {table!r} with the columns {', '.join(columns)}"
                require(stored.issuperset(columns), message)
            yield connection


def parse_example(content: bytes) -> dict[str, np.ndarray | list[bytes]]:
    """Parses a serialised Example into features: float32[k], int64[k] or a list of k bytes."""
    from google.protobuf.message import DecodeError

    try:
        example = _example_type().FromString(content)
    except DecodeError as error:
        raise ValueError("an example is not a tf.train.Example") from error
    features: dict[str, np.ndarray | list[bytes]] = {}
    for entry in example.features.feature:
        features[entry.key] = []
        for kind, part in entry.value.ListFields():
            dtype = {"floats": np.float32, "integers": np.int64}.get(kind.name)
            features[entry.key] = list(part.value) if dtype is None else np.array(part.value, dtype)
    return features


@functools.cache
def _example_type() -> Any:
    """Returns the message type of an Example."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = "fedjax_algos"
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package=package)
    file.syntax = "proto3"
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        for number, field in enumerate(fields.split("; "), start=1):
            label, kind, name = field.split()
            types = {"type": f"TYPE_{kind.upper()}"}
            if kind in _MESSAGES:
                types = {"type": "TYPE_MESSAGE", "type_name": f".{package}.{kind}"}
            made.field.add(name=name, number=number, label=f"LABEL_{label.upper()}", **types)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Example"))
