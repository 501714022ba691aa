"""Reader of the SQLite files of google/fedjax."""

import math
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_algos.core.files import PathLike, TooLargeError, max_text_bytes, reading
from fedjax_algos.core.limits import readable_bytes
from fedjax_algos.core.options import Count
from fedjax_algos.core.texts import printable
from fedjax_algos.data.client_source import ClientDataset
from fedjax_algos.data.readers.client_examples import client_dataset
from fedjax_algos.data.readers.client_features import ClientFeatures, file_identity
from fedjax_algos.data.readers.sqlite_files import open_tables
from fedjax_algos.data.readers.tokens import read_vocabulary
from fedjax_algos.data.registry import datasets

_TABLES = {"federated_data": ("client_id", "data", "num_examples")}
_ARRAY, _TEXTS = 1, 4  # types of fedjax's extension of msgpack


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
        _features(train, max_clients),
        _features(test),
        x=x,
        y=y,
        num_classes=num_classes,
        vocabulary=read_vocabulary(vocabulary, words) if vocabulary else None,
        length=length,
        max_examples=max_examples,
        max_test_examples=max_test_examples,
    )


def _features(path: PathLike, max_clients: int | None = None) -> ClientFeatures:
    clients, counts, rows = [], [], []
    with open_tables(path, _TABLES) as connection:
        query = "SELECT client_id, num_examples, rowid FROM federated_data ORDER BY rowid LIMIT ?"
        limit = -1 if max_clients is None else max_clients
        for client, count, row in connection.execute(query, [limit]):
            if not isinstance(client, bytes) or not isinstance(count, int) or count < 0:
                raise ValueError(f"row {row} is no client with a number of examples")
            clients.append(client.decode(errors="backslashreplace"))
            counts.append(count)
            rows.append(row)
        if not clients:
            raise ValueError("it has no clients")

    def arrays_of(client: int) -> dict[str, Any]:
        where = printable(f"{os.fspath(path)}: client {clients[client]!r}")
        with open_tables(path, _TABLES) as connection:
            query = "SELECT data FROM federated_data WHERE rowid = ?"
            found = connection.execute(query, [rows[client]]).fetchone()
        with reading(where, "examples of google/fedjax", "fetch the file again", zlib.error):
            if found is None or not isinstance(found[0], bytes):
                raise ValueError("it has no data")
            return _unpacked(found[0], counts[client])

    def read(client: int, names: Sequence[str], limit: int | None) -> Mapping[str, Any]:
        arrays = arrays_of(client)
        lacking = [name for name in names if name not in arrays]
        if lacking:
            raise ValueError(
                f"{os.fspath(path)}: client {clients[client]!r} has no {lacking[0]!r}; fetch the "
                "file again"
            )
        return {name: arrays[name][:limit] for name in names}

    features = sorted(arrays_of(int(np.argmax(np.array(counts) > 0))))
    identity = file_identity(path)
    return ClientFeatures(
        os.fspath(path), clients, np.array(counts, np.int64), features, read, identity
    )


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
        arrays = msgpack.unpackb(content, ext_hook=_array)
    except (msgpack.UnpackException, TypeError, AttributeError) as error:
        raise ValueError(f"its data are no msgpack, {type(error).__name__}") from error
    kinds = (np.ndarray, list)
    if not isinstance(arrays, dict) or not all(isinstance(v, kinds) for v in arrays.values()):
        raise ValueError("its data are no arrays by name")
    for name, values in arrays.items():
        if len(values) != count:
            raise ValueError(f"{name!r} has {len(values)} examples, but num_examples says {count}")
    return arrays


def _array(code: int, content: bytes) -> np.ndarray | list[bytes]:
    """An array of numbers, or a list of texts, of fedjax's extension."""
    import msgpack

    if code == _TEXTS:
        shape, texts = msgpack.unpackb(content, raw=True)
        if shape != [len(texts)] or not all(isinstance(text, bytes) for text in texts):
            raise ValueError(f"an array of texts has the shape {shape}, not [{len(texts)}]")
        return texts
    if code != _ARRAY:
        raise ValueError(f"it has a value of the unknown type {code}")
    shape, kind, values = msgpack.unpackb(content, raw=True)
    dtype = np.dtype(kind.decode())
    if dtype.kind not in "uif" or not all(isinstance(side, int) and side >= 0 for side in shape):
        raise ValueError(f"an array is of type {dtype} and shape {shape}")
    if not shape or math.prod(shape) * dtype.itemsize != len(values):
        raise ValueError(f"an array is {dtype}{shape}, but has {len(values)} bytes")
    return np.frombuffer(values, dtype.newbyteorder("<")).reshape(shape)
