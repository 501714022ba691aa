"""LEAF's format in small files: values, order of clients, samples left out, damage."""

import json
import tracemalloc

import numpy as np
import pytest
from bad_input_helpers import refused

from fedjax_algos.data import datasets
from fedjax_algos.data.readers.client_files.leaf import leaf
from fedjax_algos.data.readers.client_files.texts import LEAF_SYMBOLS

RNG = np.random.default_rng(0)


def write(folder, part, files):
    """Files in LEAF's format, from {file: {user: (x, y)}}."""
    (folder / part).mkdir(exist_ok=True)
    for name, clients in files.items():
        content = {
            "users": list(clients),
            "num_samples": [len(y) for _, y in clients.values()],
            "user_data": {user: {"x": x, "y": y} for user, (x, y) in clients.items()},
        }
        (folder / part / name).write_text(json.dumps(content))
    return folder


def images(labels):
    pixels = RNG.integers(0, 256, (len(labels), 784), np.uint8)
    return pixels, ((pixels / 255).tolist(), labels)


def test_femnist(tmp_path):
    """Images are exact, files are read by name, and clients without samples are left out."""
    (w2, f2), (w1, f1), (w0, f0), (test, g) = map(images, ([61, 3], [0], [7, 7, 8], [5, 61]))
    write(
        tmp_path, "train", {"b.json": {"w2": f2, "none": ([], [])}, "a.json": {"w1": f1, "w0": f0}}
    )
    write(tmp_path, "test", {"a.json": {"w0": g}, "b.json": {"none": ([], [])}})
    data = datasets.make(f"leaf:{tmp_path},task=femnist")
    expected = np.concatenate([w1, w0, w2]).reshape(-1, 28, 28)
    np.testing.assert_array_equal(data.train["x"], expected)
    np.testing.assert_array_equal(data.test["x"], test.reshape(-1, 28, 28))
    assert data.train["x"].dtype == np.uint8
    assert data.train["y"].tolist() == [0, 7, 7, 8, 61, 3]
    assert data.users.tolist() == [0, 1, 1, 1, 2, 2]
    assert (data.num_classes, data.notes) == (62, ())
    inverted = leaf(path=tmp_path, task="femnist", invert=True)
    np.testing.assert_array_equal(inverted.train["x"], 255 - expected)
    np.testing.assert_array_equal(inverted.test["x"], 255 - test.reshape(-1, 28, 28))


def test_femnist_is_read_client_by_client(tmp_path):
    """Peak memory is that of a file's bytes and text, and not of its numbers in Python as well."""
    clients = {f"w{i}": images([i] * 10)[1] for i in range(40)}
    write(tmp_path, "train", {"a.json": clients})
    write(tmp_path, "test", {"a.json": {"w0": clients["w0"]}})
    del clients
    tracemalloc.start()
    leaf(path=tmp_path, task="femnist")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.1 * (tmp_path / "train" / "a.json").stat().st_size


def test_first_clients_only(tmp_path):
    train = {f"w{i}": images([i, i])[1] for i in range(5)}
    test = {f"w{i}": images([10 + i])[1] for i in range(5)}
    first, others = dict(list(train.items())[:2]), dict(list(train.items())[2:])
    write(tmp_path, "train", {"a.json": first, "b.json": others})
    write(tmp_path, "test", {"a.json": test})
    data = leaf(path=tmp_path, task="femnist", max_clients=3)
    assert data.train["y"].tolist() == [0, 0, 1, 1, 2, 2]
    assert data.users.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.test["y"].tolist() == [10, 11, 12]


def test_shakespeare(tmp_path):
    text = (
        "The fool doth think he is wise, but the wise man knows himself to be a fool. So said he!"
    )
    windows = [text[i : i + 80] for i in range(6)]
    write(tmp_path, "train", {"a.json": {"TOUCHSTONE": (windows[:4], list(text[80:84]))}})
    write(tmp_path, "test", {"a.json": {"TOUCHSTONE": (windows[4:], list(text[84:86]))}})
    data = leaf(path=tmp_path, task="shakespeare")
    assert ["".join(LEAF_SYMBOLS[c] for c in x) for x in data.train["x"]] == windows[:4]
    assert "".join(LEAF_SYMBOLS[c] for c in data.test["y"]) == text[84:86]
    assert (data.train["x"].dtype, data.train["y"].dtype) == (np.uint8, np.int32)
    assert data.num_classes == 80
    shorter = leaf(path=tmp_path, task="shakespeare", alphabet="no_newline")
    assert shorter.num_classes == 79
    np.testing.assert_array_equal(shorter.train["x"] + 1, data.train["x"])


def tweets(*texts):
    return [["1", "Mon", "NO_QUERY", "someone", text] for text in texts]


def sent140(folder):
    train = {
        "ann": (tweets("good good day", "bad", "rare words"), [1, 0, 1]),
        "bob": (tweets("only once"), [0]),
        "cid": (tweets("bad  day", "good bad good unseen"), [0, 1]),
    }
    test = {"ann": (tweets("day day day bad", "nothing known"), [1, 0]), "bob": (tweets(""), [0])}
    write(folder, "train", {"a.json": train})
    return write(folder, "test", {"a.json": test})


def test_sent140(tmp_path):
    """good 4, bad 3, day 2, then single words in the order of the text, of which `rare` is used."""
    data = leaf(path=sent140(tmp_path), task="sent140", words=4)
    expected = [[2 / 3, 0, 1 / 3, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 1 / 2, 1 / 2, 0]]
    expected += [[2 / 3, 1 / 3, 0, 0]]
    np.testing.assert_allclose(data.train["x"], np.array(expected), rtol=1e-6)
    np.testing.assert_allclose(data.test["x"], [[0, 1 / 4, 3 / 4, 0]])
    assert data.train["x"].dtype == np.float32
    assert data.train["y"].tolist() == [1, 0, 1, 0, 1]
    assert data.test["y"].tolist() == [1]
    assert data.users.tolist() == [0, 0, 0, 1, 1]
    assert data.num_classes == 2
    assert data.notes == (
        "1 training and 2 test samples contain none of the 4 words and are left out",
    )
    data = leaf(path=tmp_path, task="sent140")  # it has fewer words than requested
    assert (data.example_shape, len(data.train["y"])) == ((8,), 6)
    assert "0 training and 2 test samples contain none of the 8 words" in data.notes[0]


GOOD = {
    "femnist": ([[1.0] * 784], [1]),
    "shakespeare": (["a" * 80], ["b"]),
    "sent140": (tweets("some text"), [1]),
}
BAD_PIXELS = 0.5, 1.5, -1.0, "1", "a", {}, 2**60  # of an image
BAD_LABELS = True, "a", None, 62, 2**40, 1.5
BAD = [
    *(("femnist", [[pixel] * 784], [1]) for pixel in BAD_PIXELS),
    *(("femnist", [[1.0] * 784], [label]) for label in BAD_LABELS),
    ("femnist", [[1.0] * 783], [1]),
    ("femnist", [1.0], [1]),
    ("femnist", [[1.0] * 784, [1.0] * 783], [1, 1]),
    ("femnist", [[1.0] * 784, [None] * 784], [1, 1]),
    ("femnist", [[1.0] * 784], [1, 2]),
    ("femnist", "some", [1]),
    ("femnist", [], []),
    ("shakespeare", ["a" * 79], ["b"]),
    ("shakespeare", ["a" * 80], ["bc"]),
    ("shakespeare", ["a" * 80] * 2, ["b", 7]),
    ("shakespeare", ["a" * 79 + "~"], ["b"]),
    ("sent140", ["just text"], [1]),
    ("sent140", [["1", "2", "3"]], [1]),
    ("sent140", tweets("some text"), [4]),
]


def test_leaf_rejects_samples_of_another_task(tmp_path):
    for task, x, y in BAD:
        write(tmp_path, "train", {"a.json": {"zoe": (x, y)}})
        write(tmp_path, "test", {"a.json": {"zoe": GOOD[task]}})
        with refused(tmp_path):
            leaf(path=tmp_path, task=task)


def test_leaf_rejects_damaged_files(tmp_path):
    clients = {name: ([[1.0] * 784], [1]) for name in ("ann", "zoe")}
    for part in ("train", "test"):
        write(tmp_path, part, {"a.json": clients})
    path = tmp_path / "test" / "a.json"
    content = path.read_bytes()
    changed = content.replace(b'"zoe"', b'"\xff"'), content.replace(b"1.0", b"NaN", 1)
    others = content[:-40], content[: len(content) // 2], b"", b"no json", b"[1, 2]"
    for damaged in (*others, b'{"users": []}', *changed):
        path.write_bytes(damaged)
        with refused(path):
            leaf(path=tmp_path, task="femnist")


def test_leaf_rejects_a_client_in_two_files(tmp_path):
    zoe = {"zoe": images([1])[1]}
    write(tmp_path, "train", {"a.json": zoe, "b.json": zoe})
    with refused(tmp_path / "train" / "b.json"):
        leaf(path=tmp_path, task="femnist")


ZOE = '"zoe": {"x": [[1.0]], "y": [1]}'


def test_leaf_rejects_json_that_contradicts_itself(tmp_path):
    (tmp_path / "train").mkdir()
    with refused(tmp_path / "train"):  # which has no file
        leaf(path=tmp_path, task="femnist")
    for content in (
        f'{{"user_data": {{{ZOE}, {ZOE}}}}}',  # a client twice
        '{"user_data": {"zoe": {"x": [], "y": [1], "x": [[1.0]]}}}',  # a key of a client twice
        '{"user_data": {"zoe": {"x": ' + "[" * 100_000,
        '{"first": ' + "[" * 100_000,
        f'{{"user_data": {{{ZOE},}}}}',
        f'{{"user_data": {{{ZOE}}}}} []',
        '{"user_data": {1: {"x": [[1.0]], "y": [1]}}}',
        '{"user_data": []}',
        '{"user_data": {"\\u001b": {}}}',
    ):
        (tmp_path / "train" / "a.json").write_text(content)
        with refused(tmp_path / "train" / "a.json"):
            leaf(path=tmp_path, task="femnist")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("task=celeba", "task='celeba' is unknown; choose femnist, shakespeare or sent140"),
        ("task=sent140,invert=true", "invert is for task=femnist, not sent140; leave it out"),
        ("task=femnist,words=9", "words is for task=sent140"),
        ("task=femnist,alphabet=no_newline", "alphabet is for task=shakespeare"),
    ],
)
def test_leaf_rejects_options_of_other_tasks(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        datasets.make(f"leaf:{tmp_path},{options}")
