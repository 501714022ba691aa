"""LEAF's format in small files: values, order of clients, samples that are left out."""

import tracemalloc

import numpy as np
import pytest
from data_forms import RNG, leaf

from fedjax_algos.data import datasets
from fedjax_algos.data.readers.leaf import leaf as read
from fedjax_algos.data.readers.texts import LEAF_SYMBOLS


def images(labels):
    pixels = RNG.integers(0, 256, (len(labels), 784), np.uint8)
    return pixels.reshape(-1, 28, 28), ((pixels / 255).tolist(), labels)


def test_femnist(tmp_path):
    """Images are exact, files are read by name, and clients without samples are left out."""
    (w2, f2), (w1, f1), (w0, f0), (test, g) = map(images, ([61, 3], [0], [7, 7, 8], [5, 61]))
    none = {"none": ([], [])}
    train = {"b.json": {"w2": f2} | none, "a.json": {"w1": f1, "w0": f0}}
    leaf(tmp_path, train, {"a.json": {"w0": g}, "b.json": none})
    data = datasets.make(f"leaf:{tmp_path},task=femnist")
    expected = np.concatenate([w1, w0, w2])
    np.testing.assert_array_equal(data.train["x"], expected)
    np.testing.assert_array_equal(data.test["x"], test)
    assert data.train["x"].dtype == np.uint8
    assert data.train["y"].tolist() == [0, 7, 7, 8, 61, 3]
    assert data.users.tolist() == [0, 1, 1, 1, 2, 2]
    empty = tuple(f"1 clients of {part} have no samples" for part in ("train", "test"))
    assert (data.num_classes, data.notes) == (62, empty)


def test_first_clients_only(tmp_path):
    """Peak memory is the bytes and text of a file, and not its numbers in Python as well."""
    train = {f"w{i}": images([i] * 10)[1] for i in range(15)}
    test = {f"w{i}": images([10 + i])[1] for i in range(5)}
    leaf(tmp_path, {"a.json": train, "b.json": {"z": images([1])[1]}}, {"a.json": test})
    del train
    tracemalloc.start()
    data = read(path=tmp_path, task="femnist", max_clients=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.1 * (tmp_path / "train" / "a.json").stat().st_size
    assert data.train["y"].tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert data.users.tolist() == data.train["y"].tolist()
    assert data.test["y"].tolist() == [10, 11, 12]


def test_shakespeare(tmp_path):
    text = "The fool doth think he is wise, but the wise man knows himself to be a fool. So said he"
    windows = [text[i : i + 80] for i in range(6)]
    train, test = (windows[:4], list(text[80:84])), (windows[4:], list(text[84:86]))
    leaf(tmp_path, {"a.json": {"TOUCHSTONE": train}}, {"a.json": {"TOUCHSTONE": test}})
    data = read(path=tmp_path, task="shakespeare")
    assert ["".join(LEAF_SYMBOLS[c] for c in x) for x in data.train["x"]] == windows[:4]
    assert "".join(LEAF_SYMBOLS[c] for c in data.test["y"]) == text[84:86]
    assert (data.train["x"].dtype, data.train["y"].dtype) == (np.uint8, np.int32)
    assert data.num_classes == 80


def tweets(*texts):
    return [["1", "Mon", "NO_QUERY", "someone", text] for text in texts]


def test_sent140(tmp_path):
    """good 4, bad 3, day 2, then single words in the order of the text, of which `rare` is used."""
    train = {
        "ann": (tweets("good good day", "bad", "rare words"), [1, 0, 1]),
        "bob": (tweets("only once"), [0]),
        "cid": (tweets("bad  day", "good bad good unseen"), [0, 1]),
    }
    test = {"ann": (tweets("day day day bad", "nothing known"), [1, 0]), "bob": (tweets(""), [0])}
    leaf(tmp_path, {"a.json": train}, {"a.json": test})
    data = read(path=tmp_path, task="sent140", words=4)
    expected = [[8, 0, 4, 0], [0, 12, 0, 0], [0, 0, 0, 12], [0, 6, 6, 0], [8, 4, 0, 0]]
    np.testing.assert_allclose(12 * data.train["x"], expected, rtol=1e-6)
    np.testing.assert_allclose(12 * data.test["x"], [[0, 3, 9, 0]])
    assert data.train["x"].dtype == np.float32
    assert (data.train["y"].tolist(), data.test["y"].tolist()) == ([1, 0, 1, 0, 1], [1])
    assert (data.users.tolist(), data.num_classes) == ([0, 0, 0, 1, 1], 2)
    left_out = "1 training and 2 test samples lack all 4 words and are left out"
    assert data.notes == (left_out,)
    data = read(path=tmp_path, task="sent140")  # it has fewer words than requested
    assert (data.example_shape, len(data.train["y"])) == ((8,), 6)
    assert "0 training and 2 test samples lack all 8 words" in data.notes[0]


def test_words_of_other_tasks(tmp_path):
    with pytest.raises(ValueError, match="words=9 is for task=sent140, not femnist"):
        read(path=tmp_path, task="femnist", words=9)
