"""LEAF's files that contradict themselves or ask for too much: each is refused in one line."""

import json
import os

import pytest

from fedjax_algos.core import files
from fedjax_algos.data.readers.client_files.leaf import leaf

pytest.importorskip("ijson", reason="ijson, an optional package, is not installed")
pytestmark = pytest.mark.usefixtures("bounded")
ZOE = {"x": [[1.0] * 784] * 2, "y": [1, 2]}
LEAF = {"users": ["zoe"], "num_samples": [2], "user_data": {"zoe": ZOE}}


@pytest.fixture
def leaf_refusal(tmp_path):
    """Reads a folder of LEAF with one file of the given text, and returns what follows its path."""
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "b.json").write_text(json.dumps(LEAF))

    def read(content, name="b.json", part="train"):
        path = tmp_path / part / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(ValueError, match=r"; run LEAF's script again$") as error:
            leaf(path=tmp_path, task="femnist")
        text = str(error.value)
        assert text.isprintable()
        assert text.startswith(str(tmp_path / part))
        return text

    return read


def test_leaf_of_what_the_next_test_changes(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "b.json").write_text(json.dumps(LEAF))
    assert leaf(path=tmp_path, task="femnist").train["y"].tolist() == [1, 2]


TEXT = json.dumps(LEAF)
DATA = json.dumps(ZOE)
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LEAF | {"user_data": []}, 'it has no client in "user_data"'),
        (LEAF | {"user_data": {"zoe": [1]}}, 'client \'zoe\' has no lists "x" and "y"'),
        (TEXT[:-2] + f', "zoe": {DATA}}}}}', "client 'zoe' is there twice"),
        (TEXT.replace("[[1.0", DEEP + "[[1.0"), "more than 64 lists or objects"),
        (TEXT.replace('"users": [', f'"users": [{DEEP}'), "more than 64 lists or objects"),
        (TEXT.replace("{", '{"first": ' + DEEP + "1" + "]" * 100_000 + ", ", 1), "more than 64"),
        (TEXT.replace("zoe", "\\u001b[31mz\\u202e") + "]", r"not a LEAF file: "),
        (LEAF | {"user_data": {"\x1b": {}}}, r"'\x1b' has no lists"),
    ],
)
def test_leaf_of_hostile_json(leaf_refusal, content, message):
    assert message in leaf_refusal(content)


def test_leaf_with_a_client_in_two_files(leaf_refusal, tmp_path):
    text = leaf_refusal(LEAF, "c.json")
    assert "c.json: not a LEAF file: client 'zoe' is there twice" in text


@pytest.mark.slow
def test_leaf_bounds_each_client_and_not_the_file(leaf_refusal, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "host_memory", lambda: 64 * 2**18)  # so 256 kB of text
    pixels = ", ".join(["0.0"] * 784)
    names = [f"w{i}" for i in range(100)]
    clients = ", ".join(f'"{name}": {{"x": [[{pixels}]], "y": [1]}}' for name in names)
    counts = json.dumps({"users": names, "num_samples": [1] * 100})[:-1]
    many = f'{counts}, "user_data": {{{clients}}}}}'
    assert len(many) > 300_000
    (tmp_path / "train" / "b.json").write_text(many)
    assert len(leaf(path=tmp_path, task="femnist").train["y"]) == 100
    one = {
        "users": ["zoe"],
        "num_samples": [400],
        "user_data": {"zoe": {k: v * 200 for k, v in ZOE.items()}},
    }
    assert "a client, or what stands before the clients, has more than" in leaf_refusal(one)


def test_leaf_of_a_pipe(leaf_refusal, tmp_path):
    os.mkfifo(tmp_path / "train" / "a.json")
    with pytest.raises(ValueError, match="it is a pipe or a device, not a regular file"):
        leaf(path=tmp_path, task="femnist")
