"""SQLite files of TFF and of google/fedjax: small ones are read exactly, hostile ones refused."""

import contextlib
import lzma
import os
import sqlite3
import sys
import zlib

import msgpack
import numpy as np
import pytest
from bad_input_helpers import refused
from tf_records import example

from fedjax_algos.core import files
from fedjax_algos.data import datasets
from fedjax_algos.data.readers.client_files.sqlite import fedjax_sqlite, parse_example, tff_sqlite

RNG = np.random.default_rng(0)
COUNTS = {"f1_02": 3, "f0_01": 1, "f9_00": 2}
PIXELS = {name: RNG.random((count, 28, 28), np.float32) for name, count in COUNTS.items()}
LABELS = {name: RNG.integers(0, 5, count, np.int64) for name, count in COUNTS.items()}
TFF_TABLES = """
CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL,
  serialized_example_proto BLOB NOT NULL);
CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id);
CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL,
  num_examples INTEGER NOT NULL);
"""
FEDJAX_TABLE = """CREATE TABLE federated_data (client_id BLOB NOT NULL PRIMARY KEY,
  data BLOB NOT NULL, num_examples INTEGER NOT NULL);"""


def execute(path, script, *rows):
    """Runs a script, and then statements with their values."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(script)
        for statement, values in rows:
            connection.execute(statement, values)
    return path


def tff_file(path, splits):
    """A file as TFF writes it, of serialised examples: {split: {client: [example]}}."""
    rows = []
    for split, clients in splits.items():
        for client, examples in clients.items():
            each = [("INSERT INTO examples VALUES (?, ?, ?)", (split, client, e)) for e in examples]
            count = ("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, len(examples)))
            rows += [*each, count]
    return execute(path, TFF_TABLES, *rows)


def emnist():
    return {
        name: [
            example(pixels=pixels.ravel().tolist(), label=[label])
            for pixels, label in zip(PIXELS[name], LABELS[name], strict=True)
        ]
        for name in COUNTS
    }


def packed(values):
    """An array in fedjax's extension of msgpack: type 1 for numbers and 4 for texts."""
    if isinstance(values, list):
        return msgpack.ExtType(4, msgpack.packb(((len(values),), values), use_bin_type=True))
    parts = (values.shape, values.dtype.name, values.tobytes())
    return msgpack.ExtType(1, msgpack.packb(parts, use_bin_type=True))


def data_of(**arrays):
    return zlib.compress(msgpack.packb({name: packed(v) for name, v in arrays.items()}))


def fedjax_file(path, clients):
    """A file as fedjax writes it: {client: (data, number of examples)}."""
    statement = "INSERT INTO federated_data VALUES (?, ?, ?)"
    rows = [(statement, (name.encode(), *values)) for name, values in clients.items()]
    return execute(path, FEDJAX_TABLE, *rows)


def fedjax_emnist():
    return {
        n: (data_of(pixels=PIXELS[n], label=LABELS[n].astype(np.int32)), c)
        for n, c in COUNTS.items()
    }


@pytest.fixture
def tff(tmp_path):
    clients = emnist()
    return tff_file(tmp_path / "emnist_all.sqlite", {"all_train": clients, "all_test": clients})


@pytest.fixture
def fedjax(tmp_path):
    return fedjax_file(tmp_path / "federated_emnist.sqlite", fedjax_emnist())


def check_emnist(data, order):
    assert list(data.train.client_ids) == order
    assert data.train.counts.tolist() == [COUNTS[name] for name in order]
    assert data.num_classes == 1 + max(labels.max() for labels in LABELS.values())
    for i, name in enumerate(order):
        batch = data.train.examples_of(i)
        np.testing.assert_array_equal(batch["x"], PIXELS[name])
        np.testing.assert_array_equal(batch["y"], LABELS[name])
        assert (batch["x"].dtype, batch["y"].dtype) == (np.float32, np.int32)


def tff_emnist(path, **options):
    return tff_sqlite(path=path, train_split="all_train", test_split="all_test", **options)


def test_writers(tff, fedjax):
    """Nothing is written."""
    content, entries = tff.read_bytes(), os.listdir(tff.parent)
    options = f"path={tff},train_split=all_train,test_split=all_test"
    check_emnist(datasets.make(f"tff_sqlite:{options}"), sorted(COUNTS))
    check_emnist(datasets.make(f"fedjax_sqlite:train={fedjax},test={fedjax}"), list(COUNTS))
    assert (tff.read_bytes(), os.listdir(tff.parent)) == (content, entries)


def test_options(tff, fedjax):
    some = {"max_examples": 2, "max_clients": 2, "max_test_examples": 4}
    for data in (tff_emnist(tff, **some), fedjax_sqlite(train=fedjax, test=fedjax, **some)):
        assert sorted(data.train.counts.tolist()) == [1, 2]
        assert data.test.counts.sum() == 4
        client = list(data.train.client_ids).index("f1_02")
        np.testing.assert_array_equal(data.train.examples_of(client)["y"], LABELS["f1_02"][:2])


def test_images_of_integers(tmp_path):
    """CIFAR-100 of TFF has its pixels as integers of 64 bits; other lists keep their length."""
    images, other = RNG.integers(0, 256, (2, 32, 32, 3)), RNG.integers(0, 9, (2, 7))
    records = [
        example(image=image.ravel().tolist(), label=[i], coarse_label=[7], other=row.tolist())
        for i, (image, row) in enumerate(zip(images, other, strict=True))
    ]
    path = tff_file(tmp_path / "c.sqlite", {"train": {"0": records}, "test": {"0": records}})
    data = tff_sqlite(path=path)
    assert data.train.examples_of(0)["x"].dtype == np.uint8
    np.testing.assert_array_equal(data.train.examples_of(0)["x"], images)
    assert data.train.examples_of(0)["y"].tolist() == [0, 1]
    data = tff_sqlite(path=path, x="other", y="coarse_label")
    np.testing.assert_array_equal(data.train.examples_of(0)["x"], other)
    assert (data.train.examples_of(0)["y"].tolist(), data.num_classes) == ([7, 7], 8)


def test_texts_of_both_forms_are_the_same(tmp_path):
    words = tmp_path / "words"
    words.write_text("one 3\nmust 2\n")
    texts = {"7": [b"one must imagine", b"must"], "10": [b"one"]}
    records = {c: [example(tokens=[text]) for text in each] for c, each in texts.items()}
    path = tff_file(tmp_path / "t.sqlite", {"train": records, "test": records})
    clients = {c: (data_of(tokens=each), len(each)) for c, each in texts.items()}
    other = fedjax_file(tmp_path / "f.sqlite", clients)
    options = {"vocabulary": str(words), "length": 6}
    data = tff_sqlite(path=path, **options), fedjax_sqlite(train=other, test=other, **options)
    assert [list(each.train.client_ids) for each in data] == [["10", "7"], ["7", "10"]]
    (first, second) = (d.train.examples_of(i) for d, i in zip(data, (1, 0), strict=True))
    assert first["x"].tolist() == second["x"].tolist() == [[4, 1, 2, 3, 5, 0], [4, 2, 5, 0, 0, 0]]
    assert first["y"].tolist() == second["y"].tolist() == [[1, 2, 3, 5, 0, 0], [2, 5, 0, 0, 0, 0]]


ROWS = "SELECT 1 AS client_id, 1 AS split_name, randomblob(99999999) AS serialized_example_proto"
TFF_DAMAGE = {
    "no table": "DROP TABLE examples",
    "no column": "ALTER TABLE examples RENAME COLUMN client_id TO user",
    "no split": "UPDATE client_metadata SET split_name = 'other'",
    "view": f"DROP TABLE examples; CREATE VIEW examples AS {ROWS}",
    "virtual table": "DROP TABLE examples; CREATE VIRTUAL TABLE examples USING fts5(client_id, "
    "split_name, serialized_example_proto)",
    "computed column": "ALTER TABLE examples RENAME COLUMN client_id TO user; ALTER TABLE examples "
    "ADD COLUMN client_id TEXT AS (user || 'a') VIRTUAL",
    "too few": "UPDATE client_metadata SET num_examples = num_examples + 1",
    "too many": "UPDATE client_metadata SET num_examples = 2 WHERE client_id = 'f1_02'",
    "no number": "UPDATE client_metadata SET num_examples = 'many'",
    "negative": "UPDATE client_metadata SET num_examples = -1",
    "client twice": "INSERT INTO client_metadata SELECT * FROM client_metadata",
    "a text": "UPDATE examples SET serialized_example_proto = 5",
    "cut": "UPDATE examples SET serialized_example_proto = CAST(substr(serialized_example_proto, "
    "1, 99) AS BLOB)",
    "empty": "UPDATE examples SET serialized_example_proto = x''",
    "client's name": "UPDATE client_metadata SET client_id = CAST(x'ff' AS TEXT)",
}
HALF = [0.5] * 784
BAD_EXAMPLES = {
    "no label": [example(pixels=HALF)],
    "one without a label": [example(pixels=HALF, label=[1]), example(pixels=HALF)],
    "other lengths": [example(pixels=[0.5] * n, label=[1]) for n in (784, 9)],
    "a negative label": [example(pixels=HALF, label=[-1])],
    "NaN": [example(pixels=[float("nan")] * 784, label=[1])],
    "texts": [example(pixels=[b"a", b"b"], label=[1])],
    "one number": [example(pixels=[0.5], label=[1])],
    "no pixel": [example(image=[256] * 3072, label=[0])],
}


@pytest.mark.usefixtures("bounded")
def test_damaged_files_of_tff(tff, tmp_path, monkeypatch):
    content, path = tff.read_bytes(), tmp_path / "bad.sqlite"
    for script in TFF_DAMAGE.values():
        path.write_bytes(content)
        execute(path, script)
        with refused(path):
            tff_emnist(path)
    for records in BAD_EXAMPLES.values():
        path.unlink()
        with refused(tff_file(path, {"train": {"a": records}, "test": {"a": records}})):
            tff_sqlite(path=path)
    path.unlink()
    tff_file(path, {"train": {"a": [bytes(10**6)]}})
    monkeypatch.setattr("fedjax_algos.data.readers.client_files.sqlite.host_memory", lambda: 10**6)
    with pytest.raises(ValueError, match="string or blob too big"):
        tff_sqlite(path=path, test_split="train")


@pytest.mark.usefixtures("bounded")
def test_other_files_and_names(tff, tmp_path):
    content, magic = tff.read_bytes(), b"SQLite format 3\0"
    for name, other, message in (
        ("a.lzma", lzma.compress(magic, lzma.FORMAT_ALONE), "unpack one that ends in .lzma"),
        ("other", magic + b"\xff" * 999, "file is not a database"),
        ("cut", content[: len(content) // 3], "malformed|not a database|I/O error"),
    ):
        (tmp_path / name).write_bytes(other)
        with pytest.raises(ValueError, match=message):
            tff_sqlite(path=tmp_path / name)
    odd = tmp_path / "a?mode=rwc#%41 b.sqlite"
    odd.write_bytes(content)
    check_emnist(tff_emnist(odd), sorted(COUNTS))


def extension(code, content):
    return zlib.compress(msgpack.packb({"pixels": msgpack.ExtType(code, content)}))


def array(*parts):
    return extension(1, msgpack.packb(parts))


GOOD = fedjax_emnist()["f1_02"][0]
FEDJAX_DAMAGE = {
    "no zlib": b"PK" + GOOD,
    "truncated": GOOD[:-9],
    "no msgpack": zlib.compress(b"\xc1"),
    "no dictionary": zlib.compress(msgpack.packb([1])),
    "no arrays": zlib.compress(msgpack.packb({"pixels": {}})),
    "deep": zlib.compress(b"\x91" * 10**5),
    "another count": data_of(pixels=PIXELS["f9_00"], label=LABELS["f9_00"]),
    "another type": extension(2, b""),
    "objects": array((3,), "O", b"0" * 24),
    "no type": array((3,), "nothing", b""),
    "huge": array((10**12,), "float32", b"0000"),
    "negative": array((-1,), "float32", b""),
    "scalar": array((), "float32", b"0000"),
    "a text": extension(4, msgpack.packb(((2,), [b"a"]))),
    "a number": 5,
    "another shape": data_of(pixels=PIXELS["f1_02"][:, 1:], label=LABELS["f1_02"]),
}


def read_all(path):
    source = fedjax_sqlite(train=path, test=path).train
    return [source.examples_of(client) for client in range(source.num_clients)]


@pytest.mark.usefixtures("bounded")
def test_damaged_files_of_fedjax(fedjax, tmp_path, monkeypatch):
    for number, data in enumerate(FEDJAX_DAMAGE.values()):
        clients = dict(reversed((fedjax_emnist() | {"f1_02": (data, 3)}).items()))
        path = fedjax_file(tmp_path / f"{number}.sqlite", clients)
        with refused(f"{path}: client 'f1_02'"):
            read_all(path)
    for change, message in (
        ("UPDATE federated_data SET num_examples = 'many'", ": not "),
        ("DELETE FROM federated_data", "it has no clients"),
        ("DROP TABLE federated_data", "no table 'federated_data'"),
    ):
        with pytest.raises(ValueError, match=message):
            read_all(execute(fedjax, change))
    packer = zlib.compressobj()  # 100 MB of zeros in 100 kB
    data = b"".join(packer.compress(bytes(10**6)) for _ in range(100)) + packer.flush()
    path = fedjax_file(tmp_path / "large.sqlite", {"a": (data, 3)})
    monkeypatch.setattr(files, "host_memory", lambda: 64 * 5_000_000)
    with pytest.raises(ValueError, match="have more than 5 MB"):
        read_all(path)
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(ValueError, match="fedjax_sqlite needs the package msgpack; run: pip"):
        read_all(fedjax)


def test_golden_bytes():
    """Written from the description of protocol buffers, by hand."""
    content = bytes.fromhex(
        "0a1f"  # features, 31 bytes
        "0a0b" + "0a0161" + "1206" + "1a04" + "0a02" + "ac02"  # a: integers, 300
        "0a10" + "0a0162" + "120b" + "0a09" + "0a0278790a03" + "000102"  # b: xy and 3 bytes
    )
    assert len(content) == 2 + 31
    found = parse_example(content)
    assert found["a"].tolist() == [300]
    assert found["b"] == [b"xy", b"\0\1\2"]
    assert parse_example(b"") == {}
    with pytest.raises(ValueError, match=r"an example is no tf\.train\.Example"):
        parse_example(content[:-1])
