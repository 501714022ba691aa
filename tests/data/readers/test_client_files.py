"""TFF's files of clients."""

import lzma
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from data_forms import CLIENTS, COUNTS, FORMS, RNG, tff_sqlite

from fedjax_algos.data import datasets, pack
from fedjax_algos.data.readers.sqlite import parse_example
from fedjax_algos.data.readers.texts import CHARACTERS, character_sequences

FORM = FORMS["tff_sqlite"]
TEXTS = [b"a snippet", b"different snippet"]
SNIPPETS = {"KING": {"snippets": TEXTS}, "FOOL": {"snippets": [b"abc"]}}
SENTENCES = {
    "7": {"tokens": [b"one must imagine", b"must"], "score": np.arange(2)},
    "10": {"tokens": [b"one"] * 3, "score": np.arange(3)},
}


def check(batch, client, rows=slice(None)):
    np.testing.assert_array_equal(batch["x"], CLIENTS[client]["pixels"][rows])
    np.testing.assert_array_equal(batch["y"], CLIENTS[client]["label"][rows])
    assert (batch["x"].dtype, batch["y"].dtype) == (np.float32, np.int32)


def test_images_of_writers(tmp_path):
    """Several threads read, and nothing is written."""
    FORM.write(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    data, order = FORM.read(tmp_path), sorted(COUNTS)
    for part in (data.train, data.test):
        assert list(part.client_ids) == order
        assert part.counts.tolist() == [COUNTS[name] for name in order]
    assert data.num_classes == 1 + max(own["label"].max() for own in CLIENTS.values())
    assert data.example_shape == (28, 28)
    assert data.notes == ("no example has the labels 2 of 5 classes",)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(data.train.examples_of, [0, 1, 2] * 8))
    for batch, name in zip(found, order * 8, strict=True):
        check(batch, name)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_limits_and_clients_without_examples(tmp_path):
    FORM.write(tmp_path)
    data = FORM.read(tmp_path, max_examples=2, max_clients=2, num_classes=62)
    assert list(data.train.client_ids) == sorted(COUNTS)[:2]
    assert sorted(data.train.counts.tolist()) == [1, 2]
    check(data.train.examples_of(1), data.train.client_ids[1], slice(2))
    assert (data.test.counts.sum(), data.num_classes) == (6, 62)
    whole = FORM.read(tmp_path).train.identity
    assert FORM.read(tmp_path).train.identity == whole != data.train.identity
    empty = {name: values[:0] for name, values in CLIENTS["f9_00"].items()}
    FORM.write(tmp_path, train=CLIENTS | {"z": empty})
    data = FORM.read(tmp_path, num_classes=5)
    assert list(data.train.client_ids) == sorted(COUNTS)
    assert data.notes == ("1 training clients have no examples and are left out",)
    notes = FORM.read(tmp_path, test_split="train").notes
    assert "the test examples are the training examples" in notes


def test_drawn_test_examples(tmp_path):
    """Different examples of the clients, in their order, and the same ones each time."""
    FORM.write(tmp_path)
    for number in range(1, 7):
        test = FORM.read(tmp_path, max_test_examples=number, num_classes=62).test
        again = FORM.read(tmp_path, max_test_examples=number, num_classes=62).test
        assert (again.identity, again.client_ids) == (test.identity, test.client_ids)
        assert test.counts.sum() == number
        for client, name in enumerate(test.client_ids):
            batch, whole = test.examples_of(client), CLIENTS[name]["pixels"]
            rows = [int((whole == x).all((1, 2)).argmax()) for x in batch["x"]]
            assert rows == sorted(set(rows))
            check(batch, name, rows)
    FORM.write(tmp_path, train=SNIPPETS, test=SNIPPETS)
    texts = FORM.read(tmp_path, length=10, max_test_examples=2).test  # one has two sequences
    found = [len(texts.examples_of(i)["x"]) for i in range(texts.num_clients)]
    assert texts.counts.tolist() == found
    assert sum(found) in (2, 3)


def test_characters(tmp_path):
    """The golden values are in test_texts.py."""
    FORM.write(tmp_path, train=SNIPPETS, test=SNIPPETS)
    data = FORM.read(tmp_path, length=10)
    king = list(data.train.client_ids).index("KING")
    assert data.train.counts[king] == 3
    assert data.num_classes == CHARACTERS.num_classes
    batch, expected = data.train.examples_of(king), character_sequences(TEXTS, 10)
    np.testing.assert_array_equal(batch["x"], expected[:, :-1])
    np.testing.assert_array_equal(batch["y"], expected[:, 1:])
    limited = FORM.read(tmp_path, length=10, max_examples=1)
    assert (limited.train.counts.tolist(), limited.test.counts.sum()) == ([1, 1], 4)
    assert FORM.read(tmp_path).example_shape == (80,)


def test_words(tmp_path):
    words = tmp_path / "stackoverflow.word_count"
    words.write_text("one 3\nmust 2\nother 1\n")
    FORM.write(tmp_path, train=SENTENCES, test=SENTENCES)
    data = FORM.read(tmp_path, vocabulary=str(words), words=2, length=6)
    batch = data.train.examples_of(list(data.train.client_ids).index("7"))
    assert batch["x"].tolist() == [[4, 1, 2, 3, 5, 0], [4, 2, 5, 0, 0, 0]]
    assert batch["y"].tolist() == [[1, 2, 3, 5, 0, 0], [2, 5, 0, 0, 0, 0]]
    assert (batch["x"].dtype, batch["y"].dtype, data.num_classes) == (np.int32, np.int32, 6)
    labelled = FORM.read(tmp_path, vocabulary=str(words), y="score")
    assert (labelled.example_shape, labelled.num_classes) == ((20,), 3)
    with pytest.raises(ValueError, match="tokens is a text of words"):
        FORM.read(tmp_path)


def test_images_of_integers(tmp_path):
    """CIFAR-100 of TFF has its pixels as integers of 64 bits; other lists keep their length."""
    images, other = RNG.integers(0, 256, (2, 32, 32, 3)), RNG.integers(0, 9, (2, 7))
    features = {"image": images, "label": np.arange(2), "coarse_label": [7, 7], "other": other}
    tff_sqlite(tmp_path, {"0": features}, {"0": features})
    data = FORM.read(tmp_path)
    found = data.train.examples_of(0)
    np.testing.assert_array_equal(found["x"], images.astype(np.uint8), strict=True)
    assert found["y"].tolist() == [0, 1]
    data = FORM.read(tmp_path, x="other", y="coarse_label")
    np.testing.assert_array_equal(data.train.examples_of(0)["x"], other)
    assert (data.train.examples_of(0)["y"].tolist(), data.num_classes) == ([7, 7], 8)


def test_names_of_files_and_splits(tmp_path):
    tff_sqlite(tmp_path, splits=("all_train", "all_test"))
    path = (tmp_path / "a.sqlite").rename(tmp_path / "a?mode=rwc#%41 b.sqlite")
    options = f"path={path},train_split=all_train,test_split=all_test"
    data = datasets.make(f"tff_sqlite:{options}")
    np.testing.assert_array_equal(data.train.examples_of(0)["x"], CLIENTS["f0_01"]["pixels"])
    path.write_bytes(lzma.compress(path.read_bytes(), lzma.FORMAT_ALONE))
    with pytest.raises(ValueError, match=r"unpack one that ends in \.lzma"):
        datasets.make(f"tff_sqlite:{options}")


def test_golden_bytes():
    """Written from the description of protocol buffers, by hand."""
    content = bytes.fromhex(
        "0a2e"  # features, 46 bytes
        "0a0b" + "0a0161" + "1206" + "1a04" + "0a02" + "ac02"  # a: integers, 300
        "0a10" + "0a0162" + "120b" + "0a09" + "0a0278790a03" + "000102"  # b: xy and 3 bytes
        "0a0d" + "0a0163" + "1208" + "1206" + "0a04" + "0000c03f"  # c: floats, 1.5
    )
    assert len(content) == 2 + 46
    found = parse_example(content)
    assert (found["a"].tolist(), found["c"].tolist()) == ([300], [1.5])
    assert found["b"] == [b"xy", b"\0\1\2"]
    assert (found["a"].dtype, found["c"].dtype) == (np.int64, np.float32)
    assert parse_example(b"") == {}
    with pytest.raises(ValueError, match="Example"):
        parse_example(content[:-1])


def test_splits_that_differ_and_files_that_change(tmp_path):
    vectors = {"a": {"pixels": np.zeros((1, 3)), "label": np.zeros(1)}}
    tff_sqlite(tmp_path, test=vectors)
    with pytest.raises(ValueError, match=r"\(3,\).*give both the same names, shapes and types"):
        pack(FORM.read(tmp_path), tmp_path / "packed")
    tff_sqlite(tmp_path)
    data = FORM.read(tmp_path)
    tff_sqlite(tmp_path, {name: {k: v[:1] for k, v in c.items()} for name, c in CLIENTS.items()})
    with pytest.raises(ValueError, match=r"client 'f1_02': .* the 3 examples of client_metadata"):
        data.train.examples_of(1)
