"""Readers of the SQLite files of TensorFlow Federated (TFF) and of google/fedjax.

The examples of TFF are `tf.train.Example`s, protocol buffers of features by name, each a list of
bytes, of float32 or of int64 (https://www.tensorflow.org/api_docs/python/tf/train/Example).
"""

import contextlib
import functools
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_algos.core.files import (
    FileError,
    PathLike,
    TooLargeError,
    max_text_bytes,
    open_regular,
    reading,
)
from fedjax_algos.core.limits import MAX_INT32, host_memory, readable_bytes
from fedjax_algos.core.options import Count
from fedjax_algos.core.reprs import printable
from fedjax_algos.data.federated_data import ClientDataset
from fedjax_algos.data.readers.client_files.client_examples import client_dataset
from fedjax_algos.data.readers.client_files.client_features import ClientFeatures, file_identity
from fedjax_algos.data.readers.client_files.texts import read_vocabulary
from fedjax_algos.data.registry import datasets

# An Example has no shapes: those of TFF's data sets, by the feature and its number of values.
SHAPES = {("pixels", 784): (28, 28), ("image", 3072): (32, 32, 3)}
_TFF_TABLES = {
    "client_metadata": ("client_id", "split_name", "num_examples"),
    "examples": ("client_id", "split_name", "serialized_example_proto"),
}
_FEDJAX_TABLES = {"federated_data": ("client_id", "data", "num_examples")}
_ARRAY, _TEXTS = 1, 4  # types of fedjax's extension of msgpack
_MAGIC = b"SQLite format 3\0"
_PLAIN = 0  # of a column that is neither hidden nor computed
_FIX = "fetch the file again"
_PACKAGE = "fedjax_algos"  # of the description of an Example


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
    """TFF's SQLite files, such as emnist_all, cifar100, shakespeare and stackoverflow.

    The table `examples` has a serialised `tf.train.Example` in each row, and `client_metadata` the
    number of rows of each client. Clients are in the order of their names, examples in that of the
    file. What becomes "x" and "y" is described at `tff_hdf5`. An Example has no shapes: `pixels`
    become float32[28, 28], `image` uint8[32, 32, 3], and other lists of numbers float32[k] or
    int64[k].

    A file without an index over the clients, which TFF's own files have, is read slowly.

    Args:
      path: the file, unpacked: `unlzma emnist_all.sqlite.lzma`.
      train_split, test_split: names of the splits: emnist has `all_train` and `all_test`, and the
        digits alone in `digits_only_train` and `digits_only_test`; stackoverflow also has
        `heldout`.
      x, y, num_classes, vocabulary, words, length: as in `tff_hdf5`.
      max_examples: uses only the first examples or texts of each training client; None for all.
      max_clients: uses only the first training clients; None for all.
      max_test_examples: uses only this number of the test examples or texts, which are drawn at
        random with a fixed seed; None for all.

    Raises:
      ValueError: if the file is missing or damaged, is of another form, or does not fit.

    Source: https://github.com/google-parfait/tensorflow-federated, simulation/datasets.
    """
    return client_dataset(
        _tff_features(path, train_split, max_clients),
        _tff_features(path, test_split),
        x=x,
        y=y,
        num_classes=num_classes,
        vocabulary=read_vocabulary(vocabulary, words) if vocabulary else None,
        length=length,
        max_examples=max_examples,
        max_test_examples=max_test_examples,
    )


def _tff_features(path: PathLike, split: str, max_clients: int | None = None) -> ClientFeatures:
    name = f"{os.fspath(path)}, split {split}"
    with _open_tables(path, _TFF_TABLES) as connection:
        query = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?"
        found = connection.execute(f"{query} ORDER BY client_id", [split]).fetchall()
        if not found:
            splits = connection.execute("SELECT DISTINCT split_name FROM client_metadata")
            known = ", ".join(str(split, errors="replace") for (split,) in splits)
            raise ValueError(f"it has no clients of the split {split!r}, only {known}")
        clients = [client.decode() for client, _ in found[:max_clients]]
        if len(set(clients)) < len(clients):
            raise ValueError("it has a client twice")
        numbers = np.array([count for _, count in found[:max_clients]], np.int64)
        query = "SELECT serialized_example_proto FROM examples WHERE client_id = ? LIMIT 1"
        first = connection.execute(query, [clients[int(np.argmax(numbers > 0))]]).fetchone()
        features = sorted(parse_example(*first)) if first else []

    def read(client: int, names: Sequence[str], limit: int | None) -> Mapping[str, Any]:
        count = int(numbers[client])
        count, more = (limit, 0) if limit is not None and limit < count else (count, 1)
        where = f"{name}: client {clients[client]!r}"
        with _open_tables(path, _TFF_TABLES) as connection:
            query = (
                "SELECT serialized_example_proto FROM examples "
                "WHERE client_id = ? AND split_name = ? ORDER BY rowid LIMIT ?"
            )
            rows = connection.execute(query, [clients[client], split, count + more]).fetchall()
        with reading(where, "examples of TFF", _FIX, KeyError, TypeError):
            if len(rows) != count:
                raise ValueError(f"it has not the {numbers[client]} examples of client_metadata")
            examples = [parse_example(row) for (row,) in rows]
            return {feature: _joined(examples, feature) for feature in names}

    return ClientFeatures(name, clients, numbers, features, read, file_identity(path) + split)


def _joined(examples: Sequence[Mapping[str, Any]], feature: str) -> np.ndarray | list[bytes]:
    """The values of a feature of all examples: [n, ...], or a list of n texts."""
    values = [example[feature] for example in examples]
    if len({(type(value), len(value)) for value in values}) > 1:
        raise ValueError(f"{feature!r} has lists of several lengths or types")
    if isinstance(values[0], list):
        return [text for (text,) in values]
    joined = np.stack(values)
    if joined.shape[1] == 1:
        return joined[:, 0]
    shape = SHAPES.get((feature, joined.shape[1]))
    if shape is None:
        return joined
    if joined.dtype == np.int64:
        if joined.min() < 0 or joined.max() > 255:
            raise ValueError(f"{feature!r} has {joined.max()}, which is no pixel of 0 to 255")
        joined = joined.astype(np.uint8)
    return joined.reshape(-1, *shape)


@datasets.register
def fedjax_sqlite(
    *,
    train: PathLike,
    test: PathLike,
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
    """SQLite files of google/fedjax, such as federated_emnist and stackoverflow.

    The table `federated_data` has a row for each client: its name, the number of its examples, and
    a dictionary of arrays as zlib-compressed msgpack. Clients are in the order of the file. What
    becomes "x" and "y" is described at `tff_hdf5`: texts become ids as TFF numbers them, whereas
    fedjax puts the begin and the end of a text before the words, and joins the texts of a client
    before it cuts them into sequences of characters.

    Args:
      train, test: the files.
      x, y, num_classes, vocabulary, words, length: as in `tff_hdf5`.
      max_examples: uses only the first examples or texts of each training client; None for all.
      max_clients: uses only the first training clients; None for all.
      max_test_examples: uses only this number of the test examples or texts, which are drawn at
        random with a fixed seed; None for all.

    Raises:
      ValueError: if msgpack is not installed, or a file is missing or damaged, is of another form,
        or does not fit.

    Source: https://github.com/google/fedjax, fedjax/core/sqlite_federated_data.py.
    """
    return client_dataset(
        _fedjax_features(train, max_clients),
        _fedjax_features(test),
        x=x,
        y=y,
        num_classes=num_classes,
        vocabulary=read_vocabulary(vocabulary, words) if vocabulary else None,
        length=length,
        max_examples=max_examples,
        max_test_examples=max_test_examples,
    )


def _fedjax_features(path: PathLike, max_clients: int | None = None) -> ClientFeatures:
    with _open_tables(path, _FEDJAX_TABLES) as connection:
        query = "SELECT client_id, num_examples, rowid FROM federated_data ORDER BY rowid LIMIT ?"
        found = connection.execute(query, [max_clients or -1]).fetchall()
        if not found:
            raise ValueError("it has no clients")
        clients = [client.decode(errors="backslashreplace") for client, _, _ in found]
        counts = np.array([count for _, count, _ in found], np.int64)

    def arrays_of(client: int) -> dict[str, Any]:
        where = f"{os.fspath(path)}: client {clients[client]!r}"
        with _open_tables(path, _FEDJAX_TABLES) as connection:
            query = "SELECT data FROM federated_data WHERE rowid = ?"
            ((content,),) = connection.execute(query, [found[client][2]]).fetchall()
        with reading(where, "examples of google/fedjax", _FIX, zlib.error, TypeError):
            return _unpacked(content, int(counts[client]))

    def read(client: int, names: Sequence[str], limit: int | None) -> Mapping[str, Any]:
        arrays = arrays_of(client)
        for name in names:
            if name not in arrays:
                where = f"{os.fspath(path)}: client {clients[client]!r}"
                raise FileError(f"{printable(where)} has no {name!r}; {_FIX}")
        return {name: arrays[name][:limit] for name in names}

    features = sorted(arrays_of(int(np.argmax(counts > 0))))
    return ClientFeatures(os.fspath(path), clients, counts, features, read, file_identity(path))


def _unpacked(content: bytes, count: int) -> dict[str, Any]:
    """The arrays of a client's data by name, each of `count` examples."""
    try:
        import msgpack
    except ImportError as error:
        raise ValueError("fedjax_sqlite needs msgpack; run: pip install msgpack") from error
    limit = max_text_bytes()
    decompressor = zlib.decompressobj()
    content = decompressor.decompress(content, limit)
    if decompressor.unconsumed_tail:
        raise TooLargeError(f"its data have more than {readable_bytes(limit)}; leave clients out")
    if not decompressor.eof:
        raise ValueError("its data are truncated")
    try:
        arrays = dict(msgpack.unpackb(content, ext_hook=_array))
    except (msgpack.UnpackException, AttributeError) as error:
        raise ValueError(f"its data are no msgpack, {type(error).__name__}") from error
    for name, values in arrays.items():
        texts = isinstance(values, list) and all(isinstance(text, bytes) for text in values)
        if not (texts or isinstance(values, np.ndarray)) or len(values) != count:
            raise ValueError(f"{name!r} is no array of the {count} examples of num_examples")
    return arrays


def _array(code: int, content: bytes) -> np.ndarray | list[bytes]:
    """An array of numbers, or a list of texts, of fedjax's extension."""
    import msgpack

    if code == _TEXTS:
        return msgpack.unpackb(content, raw=True)[1]
    if code != _ARRAY:
        raise ValueError(f"it has a value of the unknown type {code}")
    shape, kind, values = msgpack.unpackb(content, raw=True)
    return np.frombuffer(values, np.dtype(kind.decode()).newbyteorder("<")).reshape(shape)


@contextlib.contextmanager
def _open_tables(
    path: PathLike, tables: Mapping[str, Sequence[str]]
) -> Iterator[sqlite3.Connection]:
    """A read-only connection to a file whose tables have these columns; texts are bytes.

    Nothing of the file is executed: extensions stay off, and a view, a virtual table or a computed
    column is refused before it is read.
    """
    errors = sqlite3.Error, AttributeError, TypeError  # of a value of another type
    with reading(path, "an SQLite file of clients", _FIX, *errors):
        with open_regular(path) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise ValueError("it is no SQLite file; unpack one that ends in .lzma with unlzma")
        address = f"{Path(path).absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            connection.text_factory = bytes
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(host_memory() // 2, MAX_INT32))
            connection.execute("PRAGMA trusted_schema = off")
            connection.execute("PRAGMA cell_size_check = on")
            for table, columns in tables.items():
                _check_table(connection, table, columns)
            yield connection


def _check_table(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
    query = "SELECT type, sql FROM sqlite_master WHERE name = ?"
    found = connection.execute(query, [table]).fetchall()
    plain = len(found) == 1 and found[0][0] == b"table" and isinstance(found[0][1], bytes)
    if not plain or found[0][1].split()[1].upper() != b"TABLE":
        raise ValueError(f"it has no table {table!r}")
    described = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
    kinds = {name.decode(errors="replace"): hidden for _, name, *_, hidden in described}
    for column in columns:
        if kinds.get(column) != _PLAIN:
            raise ValueError(f"its table {table!r} has no column {column!r}")


def parse_example(content: bytes) -> dict[str, np.ndarray | list[bytes]]:
    """The features of a serialised Example: float32[k], int64[k] or a list of k bytes."""
    from google.protobuf.message import DecodeError

    try:
        example = _example_type().FromString(content)
    except DecodeError as error:
        raise ValueError("an example is no tf.train.Example") from error
    features: dict[str, np.ndarray | list[bytes]] = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = getattr(feature, kind).value if kind else ()
        dtype = {"float_list": np.float32, "int64_list": np.int64}.get(kind)
        features[name] = list(values) if dtype is None else np.array(values, dtype)
    return features


@functools.cache
def _example_type() -> Any:
    """The type of an Example, by its description in tensorflow/core/example/example.proto."""
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

    def field(name: str, number: int, kind: str, repeated: bool = False, **more: Any) -> dict:
        label = "LABEL_REPEATED" if repeated else "LABEL_OPTIONAL"
        if kind[0].isupper():
            more |= {"typeName": f".{_PACKAGE}.{kind}"}
            kind = "message"
        return {
            "name": name,
            "number": number,
            "label": label,
            "type": f"TYPE_{kind.upper()}",
        } | more

    lists = {"BytesList": "bytes", "FloatList": "float", "Int64List": "int64"}
    entry = {
        "name": "FeatureEntry",
        "field": [field("key", 1, "string"), field("value", 2, "Feature")],
        "options": {"mapEntry": True},
    }
    kinds = [
        field(f"{kind}_list", number, name, oneofIndex=0)
        for number, (name, kind) in enumerate(lists.items(), start=1)
    ]
    messages = [
        *({"name": n, "field": [field("value", 1, k, repeated=True)]} for n, k in lists.items()),
        {"name": "Feature", "field": kinds, "oneofDecl": [{"name": "kind"}]},
        {
            "name": "Features",
            "field": [field("feature", 1, "Features.FeatureEntry", repeated=True)],
            "nestedType": [entry],
        },
        {"name": "Example", "field": [field("features", 1, "Features")]},
    ]
    facts = {"name": "example.proto", "package": _PACKAGE, "syntax": "proto3"}
    pool = descriptor_pool.DescriptorPool()
    pool.Add(
        json_format.ParseDict(
            facts | {"messageType": messages}, descriptor_pb2.FileDescriptorProto()
        )
    )
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))
