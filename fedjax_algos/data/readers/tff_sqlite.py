"""Reader of the SQLite files of TensorFlow Federated (TFF)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_algos.core.files import PathLike, reading
from fedjax_algos.core.options import Count
from fedjax_algos.core.texts import printable
from fedjax_algos.data.client_source import ClientDataset
from fedjax_algos.data.readers.client_examples import client_dataset
from fedjax_algos.data.readers.client_features import ClientFeatures, file_identity
from fedjax_algos.data.readers.sqlite_files import open_tables
from fedjax_algos.data.readers.tf_example import parse_example
from fedjax_algos.data.readers.tokens import read_vocabulary
from fedjax_algos.data.registry import datasets

# An Example has no shapes: those of TFF's data sets, by the feature and its number of values.
SHAPES = {("pixels", 784): (28, 28), ("image", 3072): (32, 32, 3)}
_TABLES = {
    "client_metadata": ("client_id", "split_name", "num_examples"),
    "examples": ("client_id", "split_name", "serialized_example_proto"),
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
        _features(path, train_split, max_clients),
        _features(path, test_split),
        x=x,
        y=y,
        num_classes=num_classes,
        vocabulary=read_vocabulary(vocabulary, words) if vocabulary else None,
        length=length,
        max_examples=max_examples,
        max_test_examples=max_test_examples,
    )


def _features(path: PathLike, split: str, max_clients: int | None = None) -> ClientFeatures:
    name = f"{os.fspath(path)}, split {split}"
    counts: dict[str, int] = {}
    with open_tables(path, _TABLES) as connection:
        query = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?"
        for client, count in connection.execute(f"{query} ORDER BY client_id", [split]):
            identifier = client.decode() if isinstance(client, bytes) else str(client)
            if identifier in counts:
                raise ValueError(f"client {printable(repr(identifier), 50)} is in it twice")
            if not isinstance(count, int) or count < 0:
                raise ValueError(f"client {identifier!r} has {count!r} examples")
            counts[identifier] = count
        if not counts:
            known = connection.execute("SELECT DISTINCT split_name FROM client_metadata").fetchall()
            names = printable(", ".join(str(n, errors="replace") for (n,) in known), 200)
            raise ValueError(f"it has no clients of the split {split!r}, only {names}")
    clients = list(counts)[:max_clients]
    numbers = np.array([counts[client] for client in clients], np.int64)

    def read(client: int, names: Sequence[str], limit: int | None) -> Mapping[str, Any]:
        count = int(numbers[client])
        count, more = (limit, 0) if limit is not None and limit < count else (count, 1)
        where = f"{name}: client {clients[client]!r}"
        with open_tables(path, _TABLES) as connection:
            query = (
                "SELECT serialized_example_proto FROM examples "
                "WHERE client_id = ? AND split_name = ? ORDER BY rowid LIMIT ?"
            )
            rows = connection.execute(query, [clients[client], split, count + more]).fetchall()
        with reading(where, "examples of TFF", "fetch the file again"):
            if len(rows) != count:
                raise ValueError(f"it has not the {numbers[client]} examples of client_metadata")
            examples = [parse_example(_blob(row)) for (row,) in rows]
            return {feature: _joined(examples, feature) for feature in names}

    first = int(np.argmax(numbers > 0))
    with open_tables(path, _TABLES) as connection:
        query = "SELECT serialized_example_proto FROM examples WHERE client_id = ? LIMIT 1"
        found = connection.execute(query, [clients[first]]).fetchone()
        features = sorted(parse_example(_blob(found[0]))) if found else []
    return ClientFeatures(name, clients, numbers, features, read, file_identity(path) + split)


def _blob(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("an example is no bytes")
    return value


def _joined(examples: Sequence[Mapping[str, Any]], feature: str) -> np.ndarray | list[bytes]:
    """The values of a feature of all examples: [n, ...], or a list of n texts."""
    values = [example.get(feature, []) for example in examples]
    if not all(len(value) for value in values):
        raise ValueError(f"an example has no {feature!r}")
    first = values[0]
    if any(type(v) is not type(first) or len(v) != len(first) for v in values):
        raise ValueError(f"{feature!r} has lists of several lengths or types")
    if isinstance(first, list):
        if len(first) != 1:
            raise ValueError(f"{feature!r} has {len(first)} texts in an example, not 1")
        return [text for (text,) in values]
    joined = np.stack(values)
    if len(first) == 1:
        return joined[:, 0]
    shape = SHAPES.get((feature, len(first)))
    if shape is None:
        return joined
    if joined.dtype == np.int64:
        if joined.min() < 0 or joined.max() > 255:
            raise ValueError(f"{feature!r} has {joined.max()}, which is no pixel of 0 to 255")
        joined = joined.astype(np.uint8)
    return joined.reshape(-1, *shape)
